"""Upgrades of labs over HTTP: a job with a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lab.api.jobs import submit, work
from lab.client import Client
from lab.errors import Interrupted, InvalidSpec, LabError, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import inspect
from lab.requests.labs import UpgradeLab
from lab.views.upgrades import UpgradeStep, UpgradeView
from tests.support.lifecycle_world import World, at, count, lab_request, raising
from tests.support.serve_world import MEMORY, Site, site

BODY = {"blueprint": "galera", "nodes": 2, "memory": MEMORY, "name": "shop",
        "engine": "mariadb:10.11"}  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("upgrades")) as running:
        yield running


def test_a_job_and_its_report(here: Site) -> None:
    """Protects rehearsals on a host of their own: all that the command line reports."""
    here.ask("POST", "/v1/labs?wait=60", BODY)
    for body, status in (({}, 422), ({"to": "x y"}, 422),
                         ({"to": "mariadb:11.8", "node": "n9"}, 404),
                         ({"to": "mariadb:11.8", "workload": ["x"]}, 422),
                         ({"to": "mariadb:11.8", "statements": "SELECT 1"}, 422)):  # fmt: skip
        assert here.ask("POST", "/v1/labs/shop/upgrade", body).status_code == status
    body = {"to": "mariadb:11.8", "node": "n2"}
    done = here.ask("POST", "/v1/labs/shop/upgrade?wait=60", body)
    assert (done.status_code, done.json()["kind"]) == (200, "upgrade")
    report = here.ask("GET", f"/v1/jobs/{done.json()['id']}/report").json()
    assert [(one["node"], one["state"], one["after"]) for one in report["steps"]] == [
        ("n2", "upgraded", "11.8.6")
    ]
    assert (report["lost"], report["workload"]) == (0, None)
    create = here.ask("GET", "/v1/jobs?kind=create").json()["items"][0]["id"]
    assert here.ask("GET", f"/v1/jobs/{create}/report").status_code == 404
    with Client(str(here.client.base_url), here.admin) as client:
        view = client.upgrade("shop", "mariadb:11.8")
        assert [(step.node, step.state) for step in view.steps] == [("n1", "upgraded")]
        assert set(view.steps[0].unanswered) == {"n1", "n2"}
        with pytest.raises(InvalidSpec, match="cannot run on the engine"):
            client.upgrade("shop", "mysql:9.7")
        with pytest.raises(NotFound):
            client.upgrade("none", "mariadb:11.8")
        with pytest.raises(TypeError, match="workload"):
            client.upgrade("shop", "mariadb:11.8", workload=("x",))
    here.ask("DELETE", "/v1/labs/shop?wait=20")


def run(ctx: Context, *, again: bool = False) -> str:
    """The work of a job that upgrades the lab; the id of the job."""
    request = UpgradeLab(lab="shop", to="mariadb:11.8")
    job = submit.service_job(request)
    ctx.store.jobs.add(job)
    with pytest.raises(LabError) as failed:
        work.upgrade(ctx, work.Task(job, request, again))
    return f"{type(failed.value).__name__}: {failed.value.what} {job.id}"


def failing(tmp_path: Path, error: Exception) -> tuple[str, World]:
    """What a job says whose step fails with that."""
    world = World(tmp_path)
    with world.open() as ctx:
        up(ctx, lab_request("galera", "shop", nodes=2, engine="mariadb:10.11"))
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    with world.open(at("carry.end", raising(error))) as ctx:
        return run(ctx), world


def test_a_step_that_fails(tmp_path: Path) -> None:
    """The job fails with what the step says, and has the report."""
    said, world = failing(tmp_path, NotReady("no"))
    assert said.startswith("NotReady: n2 of shop was not upgraded: no ")
    with world.open() as ctx:
        [step] = ctx.store.jobs.report(said.split()[-1])["steps"]
        assert (step["node"], step["state"]) == ("n2", "rolled back")
        assert inspect.lab(ctx, "shop").state == "ready"


def test_a_job_that_is_cancelled(tmp_path: Path) -> None:
    """Protects the lab: nobody else would put the node back whose system is half replaced."""
    said, world = failing(tmp_path, Interrupted("the job was cancelled"))
    assert said.startswith("Interrupted: ")
    with world.open() as ctx:
        assert {node.engine_version for node in inspect.lab(ctx, "shop").nodes} == {"10.11.6"}
        assert (inspect.lab(ctx, "shop").state, count(ctx, "n2")) == ("ready", 0)


def test_a_lab_that_is_gone_when_its_job_is_cancelled(tmp_path: Path) -> None:
    """Protects who reads the job: it was cancelled, as the lease of its lab had ended."""
    world = World(tmp_path)
    with world.open() as ctx:
        up(ctx, lab_request("single", "shop", engine="mariadb:10.11"))

    def hook(step: str) -> None:
        if step == "image.begin":
            with world.open() as other:
                down(other, "shop", force=True)
            raise Interrupted("the job was cancelled")

    with world.open(hook) as ctx:
        assert run(ctx).startswith("Interrupted: the job was cancelled")


def test_a_service_that_was_killed(tmp_path: Path) -> None:
    """The node is put back, and the job says what was done."""
    world = World(tmp_path)
    with world.open() as ctx:
        up(ctx, lab_request("galera", "shop", nodes=2, engine="mariadb:10.11"))
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    assert world.killed(run, "upgrade.begin") == "upgrade.begin"
    with world.open() as ctx:
        assert "was interrupted: the service was restarted" in run(ctx, again=True)
        assert (inspect.lab(ctx, "shop").state, count(ctx, "n2")) == ("ready", 0)


def test_a_service_that_was_killed_afterwards(tmp_path: Path) -> None:
    """Protects who polls: an upgrade whose report is there was not interrupted."""
    view = UpgradeView("shop", "mariadb:11.8", (), 1.0, 2, 0, 0, ())
    step = UpgradeStep("n2", "10.11.6", "", "rolled back", "", 1.0, 1.0, why="no")
    request = UpgradeLab(lab="shop", to="mariadb:11.8")
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("single", "shop"))
        done, failed = submit.service_job(request), submit.service_job(request)
        for job, report in ((done, view), (failed, replace(view, steps=(step,)))):
            ctx.store.jobs.add(job)
            ctx.store.jobs.add_report(job.id, msgspec.to_builtins(report))
        assert work.upgrade(ctx, work.Task(done, request, True)) == "shop"
        with pytest.raises(NotReady, match="n2 of shop was not upgraded: no"):
            work.upgrade(ctx, work.Task(failed, request, True))


def test_what_was_interrupted_waits_for_room(here: Site) -> None:
    """Protects the host: after it was started again, the lab is started again as well."""
    here.ask("POST", "/v1/labs?wait=60", {**BODY, "name": "off"})
    here.ask("POST", "/v1/labs/off/stop?wait=20", {})
    core, jobs = here.service.core, here.service.jobs
    job = submit.service_job(UpgradeLab(lab="off", to="mariadb:11.8"))
    core.store.jobs.add(job)
    core.store.jobs.update(job.id, state="running", started_at=1.0)
    used = core.admission.used().memory
    here.change(memory=used + MEMORY, queue_timeout=1.0)
    try:
        jobs.perform(job.id)
    finally:
        here.change(memory=0, queue_timeout=30.0)
    assert "memory" in str(core.store.jobs.get(job.id).error)
    assert here.ask("GET", "/v1/labs/off").json()["state"] == "stopped"


def test_its_snapshots_count(here: Site) -> None:
    """Protects the quota of a project: an upgrade takes one for each node."""
    token = here.token("few", project="few", snapshots=2)
    here.ask("POST", "/v1/labs?wait=60", {**BODY, "name": "few", "nodes": 3}, token=token)
    body = {"to": "mariadb:11.8"}
    found = here.ask("POST", "/v1/labs/few/upgrade", body, token=token)
    assert found.status_code == 429
    assert "these 3 snapshots" in found.json()["detail"]
    done = here.ask("POST", "/v1/labs/few/upgrade?wait=60", {**body, "node": "n3"}, token=token)
    assert done.status_code == 200, done.json()
