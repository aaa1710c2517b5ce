"""Snapshots of labs and going back to them, over HTTP and by what uses that."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from lab.api.jobs.quota import check_snapshots, snapshots_of
from lab.api.jobs.submit import new_job, submit
from lab.api.service import Service
from lab.cli import main
from lab.client import Client
from lab.config.settings import Settings
from lab.errors import Conflict, InvalidSpec, LimitReached, NotFound
from lab.hypervisor import memory_of
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.labs.query import query
from lab.lifecycle.service.usage import Snapshots
from lab.lifecycle.snapshots import snapshot
from lab.names import CaptureRef, Owner
from lab.progress import Event
from lab.requests.snapshots import TakeSnapshot
from lab.state.service import JobRecord
from lab.storage import Storage
from tests.support.killed_service import Ask, hooked, sweep, token_and_lab, until_ended
from tests.support.serve_world import BODY, Site, site

SNAPSHOTS = "/v1/labs/shop/snapshots"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.make("shop")
        yield found


def tables(here: Site) -> list[str]:
    with here.service.core.contexts.use() as ctx:
        found = query(ctx, "shop", None, "SELECT name FROM sqlite_master")
    return [str(row[0]) for row in found.rows]


def write(here: Site, table: str) -> None:
    with here.service.core.contexts.use() as ctx:
        query(ctx, "shop", "n2", f"CREATE TABLE {table} (id INT)")


def test_there_and_back(here: Site) -> None:
    """Protects what a snapshot is for: what was written after it is gone, the rest is there."""
    write(here, "before")
    taken = here.ask("POST", f"{SNAPSHOTS}?wait=60", {"name": "upgrade"})
    assert taken.status_code == 201, taken.text
    label = taken.json()["label"]
    assert label.startswith("upgrade.")
    assert taken.json() in here.ask("GET", SNAPSHOTS).json()
    write(here, "later")
    back = here.ask("POST", "/v1/labs/shop/rollback?wait=60", {"to": "upgrade"})
    assert (back.status_code, back.json()["state"]) == (200, "succeeded")
    assert tables(here) == ["before"]
    node = here.ask("POST", "/v1/labs/shop/rollback?wait=60", {"node": "n2"})
    assert node.status_code == 200
    assert here.ask("POST", "/v1/labs/shop/rollback?wait=60", {}).status_code == 200
    assert tables(here) == []
    assert here.ask("DELETE", f"{SNAPSHOTS}/{label}?wait=60").status_code == 204
    assert here.ask("DELETE", f"{SNAPSHOTS}/{label}?wait=60").status_code == 404
    kinds = [job["kind"] for job in here.ask("GET", "/v1/jobs?lab=shop").json()["items"]]
    assert kinds == ["delete-snapshot", *["rollback"] * 3, "snapshot", "create"]


def test_all_of_a_snapshot_is_shown(here: Site) -> None:
    """Protects who decides what to keep: RAM, its size, the pause, the end, the parent."""
    origin = here.ask("GET", SNAPSHOTS).json()[0]
    assert (origin["label"], origin["current"], origin["warm"]) == ("origin", True, False)
    template = here.ask("GET", "/v1/labs/shop").json()["template"]
    assert origin["parent"] == f"template:{template}@formed"
    body = {"name": "mine", "ttl": "2h", "protected": True}
    taken = here.ask("POST", f"{SNAPSHOTS}?wait=60", body).json()
    assert taken["warm"]
    assert taken["ram"] > 0
    assert taken["pause"] > 0
    assert taken["expires_at"] > taken["at"]
    assert (taken["protected"], taken["current"], taken["branches"]) == (True, True, [])
    bare = here.ask("POST", f"{SNAPSHOTS}?wait=60", {"name": "bare", "disks_only": True}).json()
    assert (bare["warm"], bare["why_cold"]) == (False, "it was taken with disks only")
    assert (bare["parent"], bare["expires_at"]) == (f"lab:shop@{taken['label']}", None)
    shown = {one["label"]: one for one in here.ask("GET", SNAPSHOTS).json()}
    assert [one["label"] for one in shown.values() if one["current"]] == [bare["label"]]
    assert shown[taken["label"]] == {**taken, "current": False}


def test_a_protected_snapshot_is_removed_by_force_only(here: Site) -> None:
    """Protects what somebody wants to keep from those who clean up."""
    here.ask("POST", f"{SNAPSHOTS}?wait=60", {"name": "mine"})
    kept = here.ask("PATCH", f"{SNAPSHOTS}/mine", {"protected": True})
    assert (kept.status_code, kept.json()["protected"]) == (200, True)
    refused = here.ask("DELETE", f"{SNAPSHOTS}/mine?wait=60")
    assert refused.status_code == 409
    assert "protected" in refused.json()["detail"]
    assert here.ask("PATCH", f"{SNAPSHOTS}/mine", {}).status_code == 422
    assert here.ask("PATCH", f"{SNAPSHOTS}/none", {"protected": True}).status_code == 404
    theirs = here.token(project="others")
    answer = here.ask("PATCH", f"{SNAPSHOTS}/mine", {"protected": False}, token=theirs)
    assert answer.status_code == 404
    assert here.ask("DELETE", f"{SNAPSHOTS}/mine?wait=60&force=true").status_code == 204


def test_a_rollback_resumes_or_boots(here: Site) -> None:
    """Protects seconds, and those who need a boot."""
    here.ask("POST", f"{SNAPSHOTS}?wait=60", {"name": "mine"})
    for body, started in (({"to": "mine"}, "warm"), ({"to": "mine", "cold": True}, "cold")):
        done = here.ask("POST", "/v1/labs/shop/rollback?wait=60", body)
        assert done.status_code == 200, done.text
        assert here.ask("GET", "/v1/labs/shop").json()["started"] == started
    body = {"to": "mine", "keep_sessions": True}
    assert here.ask("POST", "/v1/labs/shop/rollback?wait=60", body).status_code == 200


def test_a_quota_of_disk_counts_the_ram_of_snapshots(here: Site) -> None:
    """Protects the host's disk: RAM is on it as well."""
    disk = 1 << 30
    token = here.token(project="small", disk=5 * disk)
    here.make("one", token=token, nodes=1, disk=disk)
    path = "/v1/labs/one/snapshots"
    assert here.ask("POST", f"{path}?wait=60", {}, token=token).status_code == 201
    with here.service.core.contexts.use() as ctx:
        (ram,) = [path for path in ctx.home.captured("one") if path.suffix == ".state"]
        with ram.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, 64 << 20)
    # Three times the lab's disk, and 64 MiB, are within the quota; two labs more are not.
    assert here.ask("POST", f"{path}?wait=60", {}, token=token).status_code == 201
    body = {"blueprint": "single", "memory": BODY["memory"], "disk": disk}
    assert here.ask("POST", "/v1/labs?wait=60", body, token=token).status_code == 201
    refused = here.ask("POST", "/v1/labs?wait=60", body, token=token)
    assert refused.status_code == 429
    assert "limited to 5G of disk, and would have 5.1G" in refused.json()["detail"]


def test_what_makes_no_sense_is_told_at_once(here: Site) -> None:
    for path, body, status in (
        (SNAPSHOTS, {"name": "hourly"}, 422),
        (SNAPSHOTS, {"name": "a b"}, 422),
        ("/v1/labs/nobody/snapshots", {}, 404),
        ("/v1/labs/shop/rollback", {"to": "teapot"}, 404),
        ("/v1/labs/shop/rollback", {"node": "n9"}, 404),
    ):
        assert here.ask("POST", path, body).status_code == status, (path, body)
    assert here.ask("POST", SNAPSHOTS, {}, token=here.token(scope="read")).status_code == 403


@pytest.mark.rare
def test_the_client_and_the_command_line(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Event] = []
    with Client(str(here.client.base_url), here.admin) as client:
        taken = client.snapshots.take("shop", "one", listener=heard.append)
        assert taken in client.snapshots.all("shop")
        write(here, "later")
        assert client.rollback("shop", "one", listener=heard.append).state == "ready"
        assert {"snapshot", "rollback"} <= {event.step for event in heard}
        with pytest.raises(InvalidSpec, match="hourly"):
            client.snapshots.take("shop", "hourly")
        bare = client.snapshots.take("shop", "bare", disks_only=True, ttl=3600.0, protected=True)
        assert (bare.warm, bare.protected) == (False, True)
        assert bare.expires_at is not None
        assert client.snapshots.protect("shop", "bare", protected=False).protected is False
        assert client.snapshots.protect("shop", "bare").protected
        with pytest.raises(Conflict, match="protected"):
            client.snapshots.remove("shop", "bare")
        client.snapshots.remove("shop", "bare", force=True)
        assert client.rollback("shop", "one", cold=True).started == "cold"
        client.snapshots.remove("shop", "one")
        with pytest.raises(NotFound):
            client.rollback("shop", "one")
    monkeypatch.setenv("LAB_URL", str(here.client.base_url))
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    assert main(("snapshot", "take", "shop", "--label", "two")) == 0
    label = capsys.readouterr().out.strip()
    assert main(("snapshot", "ls", "shop", "-o", "name")) == 0
    assert label in capsys.readouterr().out.split()
    assert main(("rollback", "shop", "--to", "two", "-o", "name")) == 0
    assert capsys.readouterr().out == "shop\n"
    assert main(("snapshot", "ls", "shop", "--tree")) == 0
    assert f"{label}  " in capsys.readouterr().out
    # The RAM of the second is what differs from that of the first.
    assert main(("stop", "shop")) == main(("start", "shop")) == 0
    assert main(("snapshot", "take", "shop", "--label", "three")) == 0
    assert "of RAM on disk" in capsys.readouterr().err
    assert main(("rollback", "shop", "--to", "three")) == 0
    assert main(("snapshot", "take", "shop", "--label", "four")) == 0
    assert main(("snapshot", "rm", "shop", "three", "four")) == 0
    assert main(("snapshot", "rm", "shop", label)) == 0
    assert main(("snapshot", "rm", "shop", label)) == 3


def test_a_schedule_is_kept_to(
    here: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects disks, and snapshots that no schedule took: only its own go, the oldest first."""
    here.make("often", snapshots="hourly:2")
    with here.service.core.contexts.use() as ctx:
        volumes = snapshot.volumes_of(ctx, "often")
        for hour in (1, 2, 3, 4):
            ctx.storage.snapshot(volumes, f"hourly.20200101t0{hour}0000")
        kept = snapshot.take(ctx, TakeSnapshot(lab="often", name="mine")).label
    monkeypatch.setenv("LAB_URL", str(here.client.base_url))
    monkeypatch.setenv("LAB_TOKEN", here.admin)
    assert main(("snapshot", "prune", "often")) == 0
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "removed often@hourly.20200101t010000", "removed often@hourly.20200101t020000"]  # fmt: skip
    labels = [one["label"] for one in here.ask("GET", "/v1/labs/often/snapshots").json()]
    assert [label for label in labels if label != "origin"] == [
        "hourly.20200101t030000", "hourly.20200101t040000", kept]  # fmt: skip
    again = here.ask("POST", "/v1/labs/often/snapshots/prune?wait=30")
    assert (again.status_code, again.json()) == (200, {"removed": []})
    other = here.token(project="others")
    with Client(str(here.client.base_url), other) as client, pytest.raises(NotFound):
        client.snapshots.prune("often")
    with Client(str(here.client.base_url), here.admin) as client:
        assert client.snapshots.prune("often") == []


def test_snapshots_of_a_project_are_counted_by_one_listing(tmp_path: Path) -> None:
    """Protects the host: on ZFS each listing is a program, and each request counts."""
    asked: list[str] = []

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with open_context(settings) as ctx:
            yield replace(ctx, storage=cast(Storage, Noted(ctx.storage, asked)))

    with site(tmp_path, opener) as here:
        for name in ("shop", "other"):
            here.make(name)
        for name in ("one", "two"):
            assert here.ask("POST", f"{SNAPSHOTS}?wait=60", {"name": name}).status_code == 201
        here.make("theirs", token=here.token(project="elsewhere"))
        asked.clear()
        counted = snapshots_of(here.service.core, "admin")
        kept = counted.labs
        assert {name: len(one.labels) for name, one in kept.items()} == {"shop": 2, "other": 0}
        assert kept["shop"].ram > 0 == kept["other"].ram
        assert asked == ["labels"]


def test_the_sweeper_resumes_what_a_killed_snapshot_left_paused(here: Site) -> None:
    """Protects clients of a lab whose user was at the command line, and does not return."""
    with here.service.core.contexts.use() as ctx:
        memory_of(ctx.hypervisor).pause(list(ctx.hypervisor.guests()))
        ctx.home.directory(CaptureRef(Owner("lab", "shop"), "one.20260101t000000")).mkdir(
            parents=True
        )
        here.service.sweeper.rotate()
        here.settled()
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}


LOOKED_AT = (
    "hypervisor.pause", "hypervisor.resume", "storage.snapshot", "storage.persist",
    "storage.clone", "hypervisor.restore",
)  # fmt: skip
"""Steps at which no transaction is open."""


@pytest.mark.parametrize(
    ("path", "body"),
    [(SNAPSHOTS, {"name": "one"}), ("/v1/labs/shop/branches", {"name": "twig"})],
)
def test_a_snapshot_counts_once_whenever_it_is_counted(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    """Protects quotas from requests side by side: the job and the snapshot are one.

    Listed at any step, and counted at any later one.
    """
    guard, listed, counts = threading.Lock(), list[Snapshots](), Counter[int]()
    sites: list[Site] = []

    def count(step: str) -> None:
        if step in LOOKED_AT and sites and guard.acquire(blocking=False):  # not for its own steps
            core = sites[0].service.core
            token = core.store.tokens.all()[0]
            lab = core.store.labs.get("shop")
            try:
                listed.append(snapshots_of(core, token.project))
                if not core.store.jobs.latest(kinds=["snapshot", "branch"]):
                    return
                for one in (*listed[:: len(listed) // 4 + 1], listed[-1]):
                    with pytest.raises(LimitReached) as refused:
                        check_snapshots(core, replace(token, max_snapshots=0), lab, one)
                    found = re.search(r"would have (\d+) with", refused.value.what)
                    counts[int(found[1]) - 1 if found else -1] += 1
            finally:
                guard.release()

    with site(tmp_path, hooked(tmp_path, count)) as here:
        here.make("shop")
        sites.append(here)
        count("storage.persist")
        made = here.ask("POST", f"{path}?wait=60", body)
        assert made.status_code == 201, made.text
        count("storage.persist")
        sites.clear()
        assert list(counts) == [1], counts
        assert len(listed) > 4


class Noted:
    """A storage; what it is asked is noted."""

    def __init__(self, storage: Storage, asked: list[str]) -> None:
        self._storage = storage
        self._asked = asked

    def __getattr__(self, name: str) -> object:
        self._asked.append(name)
        return getattr(self._storage, name)


def take(service: Service) -> JobRecord:
    token, request = service.core.store.tokens.all()[0], TakeSnapshot(lab="shop", name="one")
    return submit(service.jobs, new_job(token, request, key="the-key"))


def taken(service: Service, ask: Ask) -> None:
    """One snapshot, whole, by one job; and the lab keeps running."""
    done = until_ended(service, ask(service).id)
    assert done.state == "succeeded"
    with service.core.contexts.use() as ctx:
        found = [view.label for view in snapshot.snapshots(ctx, "shop") if view.name == "one"]
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}
    assert [f"snapshot:{label}" for label in found] == [done.about]


@pytest.mark.rare  # test_killed does it to a create
def test_a_snapshot_that_was_killed_is_taken_once(tmp_path: Path) -> None:
    """Protects labs from being paused forever, and from snapshots that nobody knows of."""
    sweep(tmp_path, take, token_and_lab, most=5, after=taken)
