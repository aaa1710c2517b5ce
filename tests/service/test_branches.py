"""Branches of labs over HTTP: whose they are, what they count, what a kill or a cancel leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.api.jobs import work
from lab.api.jobs.submit import new_job, submit
from lab.api.jobs.work import Task
from lab.api.service import Service
from lab.cli import main
from lab.client import Client
from lab.errors import Conflict, NotFound
from lab.lifecycle.labs.query import query
from lab.lifecycle.snapshots import snapshot
from lab.progress import Event
from lab.requests.labs import BranchLab, DeleteLab
from lab.requests.snapshots import TakeSnapshot
from lab.state.service import JobRecord
from tests.support.killed_service import (
    Ask,
    in_child,
    serving,
    sweep,
    token_and_lab,
    until_ended,
)
from tests.support.serve_world import BODY, MEMORY, Site, site, timeless

BRANCHES = "/v1/labs/shop/branches"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.make("shop")
        yield found


def tables(here: Site, lab: str) -> list[str]:
    with here.service.core.contexts.use() as ctx:
        found = query(ctx, lab, None, "SELECT name FROM sqlite_master")
    return [str(row[0]) for row in found.rows]


def write(here: Site, lab: str, table: str) -> None:
    with here.service.core.contexts.use() as ctx:
        query(ctx, lab, "n2", f"CREATE TABLE {table} (id INT)")


def test_a_branch_has_the_data_and_is_alone(here: Site) -> None:
    """Protects what a branch is for: the same data, and nothing that one does reaches the other."""
    write(here, "shop", "before")
    made = here.ask("POST", f"{BRANCHES}?wait=60", {})
    assert made.status_code == 201, made.text
    (lab,) = made.json()
    assert made.headers["Location"] == f"/v1/labs/{lab['name']}"
    assert (lab["name"], lab["state"], lab["started"]) == ("shop-2", "ready", "warm")
    assert lab["owner"] == "root"
    assert lab["project"] == here.ask("GET", "/v1/labs/shop").json()["project"]
    assert lab["expires_at"] is not None
    (taken,) = [one for one in here.ask("GET", "/v1/labs/shop/snapshots").json() if one["at"]]
    assert lab["parent"] == f"lab:shop@{taken['label']}"
    assert taken["branches"] == ["shop-2"]
    assert taken["expires_at"] is not None
    write(here, "shop-2", "mine")
    assert tables(here, "shop-2") == ["before", "mine"]
    assert tables(here, "shop") == ["before"]
    (job,) = here.ask("GET", "/v1/jobs?kind=branch").json()["items"]
    assert (job["lab"], job["about"], lab["job"]) == ("shop", "labs:shop-2", job["id"])
    steps = [event["step"] for event in here.stream(f"/v1/jobs/{job['id']}/events")]
    assert {"snapshot", "branch", "restore"} <= set(steps)


def test_several_branches_of_a_snapshot(here: Site) -> None:
    """Protects parallel runs: as many labs as were requested, of one moment."""
    write(here, "shop", "before")
    here.ask("POST", "/v1/labs/shop/snapshots?wait=60", {"name": "mine"})
    write(here, "shop", "later")
    body = {"name": "try", "at": "mine", "count": 3, "ttl": "30m"}
    made = here.ask("POST", f"{BRANCHES}?wait=60", body, Idempotency_Key="one")
    assert [lab["name"] for lab in made.json()] == ["try-1", "try-2", "try-3"]
    assert [tables(here, lab["name"]) for lab in made.json()] == [["before"]] * 3
    again = here.ask("POST", f"{BRANCHES}?wait=60", body, Idempotency_Key="one")
    assert [timeless(lab) for lab in again.json()] == [timeless(lab) for lab in made.json()]
    labels = [one["name"] for one in here.ask("GET", "/v1/labs/shop/snapshots").json()]
    assert labels == ["origin", "mine"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"count": 0}, 422),
        ({"count": 51}, 422),
        ({"name": "Shop"}, 422),
        ({"name": "a" * 24, "count": 2}, 422),
        ({"at": "teapot"}, 404),
        ({"name": "shop"}, 409),
        ({"ttl": "300d"}, 429),
    ],
)
def test_what_is_refused_makes_nothing(here: Site, body: dict[str, object], status: int) -> None:
    """Protects from a job that can only fail, and from snapshots that nobody needs."""
    answer = here.ask("POST", BRANCHES, body)
    assert answer.status_code == status, answer.text
    assert len(here.ask("GET", "/v1/labs/shop/snapshots").json()) == 1


def test_branches_are_for_those_who_may_use_the_lab(here: Site) -> None:
    assert here.ask("POST", BRANCHES, {}, token=here.token(scope="read")).status_code == 403
    assert here.ask("POST", BRANCHES, {}, token=here.token(project="others")).status_code == 404
    assert here.ask("POST", "/v1/labs/nobody/branches", {}).status_code == 404


@pytest.mark.parametrize(
    ("quota", "word"),
    [
        ({"labs": 2}, "2 labs"),
        ({"nodes": 5}, "5 nodes"),
        ({"memory": 5 * MEMORY}, "of memory"),
        ({"cpus": 5}, "5 processors"),
        ({"disk": 5 << 30}, "5G of disk"),
    ],
)
def test_each_branch_counts_as_a_lab(here: Site, quota: dict[str, Any], word: str) -> None:
    """Protects the other projects: a lab of two nodes and two branches are six nodes."""
    token = here.token(project="small", **quota)
    here.make("mine", token=token, disk=1 << 30)
    path = "/v1/labs/mine/branches"
    refused = here.ask("POST", path, {"count": 2, "at": "origin"}, token=token)
    assert refused.status_code == 429, refused.text
    assert word in refused.json()["detail"]
    assert refused.json()["detail"].endswith("with 2 branches")
    made = here.ask("POST", f"{path}?wait=60", {"at": "origin"}, token=token)
    assert made.status_code == 201, made.text
    assert here.ask("POST", path, {"at": "origin"}, token=token).status_code == 429


def test_quotas_count_branches_that_are_being_made(here: Site) -> None:
    """Protects the host from requests side by side: branches count before they exist."""
    token = here.token("coming", project="coming", labs=4)
    here.make("mine", token=token)
    core = here.service.core
    record = next(one for one in core.store.tokens.all() if one.name == "coming")
    request = BranchLab(lab="mine", at="origin", count=2)
    core.store.jobs.add(job := new_job(record, request))  # it is not begun
    refused = here.ask("POST", "/v1/labs/mine/branches", {"at": "origin"}, token=token)
    assert refused.status_code == 409  # a lab has one such job at a time
    here.make("other", token=token)
    body = {**BODY, "name": "fifth"}
    refused = here.ask("POST", "/v1/labs", body, token=token)
    assert "limited to 4 labs, and would have 5 with this lab" in refused.json()["detail"]
    core.store.jobs.remove_all([job.id])
    assert here.ask("POST", "/v1/labs?wait=60", body, token=token).status_code == 201


def test_a_removal_that_is_refused_ends_nothing(here: Site) -> None:
    """Protects what is done with a lab, and its guests, from a request that cannot be met."""
    here.ask("POST", f"{BRANCHES}?wait=60", {"name": "twig"})
    core = here.service.core
    token = core.store.tokens.all()[0]
    created_at = core.store.labs.get("shop").created_at
    request = TakeSnapshot(lab="shop", created_at=created_at)
    core.store.jobs.add(job := new_job(token, request))  # it is not begun
    removal = DeleteLab(lab="shop", created_at=created_at)
    delete = Task(new_job(token, removal), removal, again=False)
    with core.contexts.use() as ctx:
        with pytest.raises(Conflict, match="has branches: twig"):
            work.delete(ctx, delete)
        assert not core.store.jobs.get(job.id).cancel
        deferred = replace(delete, request=DeleteLab(created_at=created_at, defer=True))
        work.delete(ctx, deferred)
    assert core.store.jobs.get(job.id).cancel
    core.store.jobs.remove_all([job.id])


def test_a_lab_that_waits_for_its_last_branch_takes_no_memory(here: Site) -> None:
    """Protects other labs from waiting for room that is free, for as long as a branch lives."""
    used = here.service.core.admission.used
    one = used()
    here.ask("POST", f"{BRANCHES}?wait=60", {"name": "twig"})
    assert used() == one + one
    here.ask("DELETE", "/v1/labs/shop?wait=60&defer=true")
    assert here.ask("GET", "/v1/labs/shop").json()["state"] == "removing"
    left = used()
    assert (left.memory, left.cpus) == (one.memory, one.cpus)
    assert left.ports == 2 * one.ports, "it keeps those until it is gone"


def test_branches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Protects the host: branches need as much memory as labs."""
    with site(tmp_path, memory=6 * MEMORY) as here:
        here.make("shop")
        refused = here.ask("POST", BRANCHES, {"count": 4})
        assert refused.status_code == 429
        assert refused.json()["detail"].startswith("4 branches need 3G of memory")
        made = here.ask("POST", f"{BRANCHES}?wait=60", {"count": 2})
        assert made.status_code == 201, made.text


def test_the_client_and_the_command_line(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Event] = []
    with Client(str(here.client.base_url), here.admin) as client:
        one, two = client.branch("shop", "try", count=2, ttl=600.0, listener=heard.append)
        assert (one.name, two.name) == ("try-1", "try-2")
        assert one.parent == two.parent
        assert one.parent.startswith("lab:shop@branch.")
        assert "branch" in {event.step for event in heard}
        with pytest.raises(Conflict, match="try-1"):
            client.branch("shop", "try", count=2)
        with pytest.raises(NotFound):
            client.branch("nobody")
        assert [lab.name for lab in client.branch("shop", at="origin")] == ["shop-2"]
    monkeypatch.setenv("LAB_URL", str(here.client.base_url))
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    assert main(("branch", "shop", "--at", "origin", "-o", "name")) == 0
    assert capsys.readouterr().out == "shop-3\n"
    assert main(("status", "shop-3")) == 0
    assert "parent    lab:shop@origin\n" in capsys.readouterr().out


def ask_for_two(service: Service) -> JobRecord:
    """What POST does with an Idempotency-Key."""
    token = service.core.store.tokens.all()[0]
    lab = service.core.store.labs.get("shop")
    request = BranchLab(lab="shop", created_at=lab.created_at, count=2, ttl=3600.0, owner="ci")
    job = new_job(token, request, project=lab.project, key="the-key")
    return submit(service.jobs, job)


def two_there(service: Service, ask: Ask) -> None:
    """Two branches, of one snapshot, by one job of the project; and their lab keeps running."""
    done = until_ended(service, ask(service).id)
    assert done.state == "succeeded"
    labs = [lab for lab in service.core.store.labs.all() if lab.name != "shop"]
    assert [(lab.job, lab.state, lab.project) for lab in labs] == [(done.id, "ready", "shop")] * 2
    assert done.about == f"labs:{','.join(lab.name for lab in labs)}"
    with service.core.contexts.use() as ctx:
        (taken,) = [one for one in snapshot.snapshots(ctx, "shop") if one.name == "branch"]
        assert taken.branches == tuple(lab.name for lab in labs)
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}


@pytest.mark.rare  # test_killed does it to a create
def test_branches_whose_job_was_killed_are_not_made_twice(tmp_path: Path) -> None:
    """Protects the promise of 202: as many labs as were requested, at whatever step it ended."""
    sweep(tmp_path, ask_for_two, token_and_lab, most=5, after=two_there)


def test_a_job_that_is_cancelled_leaves_no_branch(tmp_path: Path) -> None:
    """Protects from labs that are in no answer: the first branch is removed with the second."""

    def act() -> None:
        there, go_on = threading.Event(), threading.Event()
        restored: list[str] = []

        def hook(step: str) -> None:
            if step == "hypervisor.restore" and service_ready.is_set():
                restored.append(step)
                if len(restored) == 3:  # the second branch: a lab has two nodes
                    there.set()
                    assert go_on.wait(20)

        service_ready = threading.Event()
        with serving(tmp_path, hook) as service:
            token_and_lab(service)
            service_ready.set()
            job = ask_for_two(service)
            assert there.wait(20)
            service.jobs.cancel(job)
            go_on.set()
            assert until_ended(service, job.id).state == "cancelled"
            assert [lab.name for lab in service.core.store.labs.all()] == ["shop"]
            assert service.core.store.jobs.get(job.id).lab == "shop"
            with service.core.contexts.use() as ctx:
                assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]

    assert in_child(act) == 0
