"""Snapshots of labs and going back to them, over HTTP and by what uses that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from lab.api.jobs.quota import snapshots_of
from lab.api.jobs.requests import TakeSnapshot
from lab.api.jobs.submit import new_job, submit
from lab.api.service import Service
from lab.cli import main
from lab.client import Client
from lab.config.settings import Settings
from lab.errors import InvalidSpec, NotFound
from lab.lifecycle import snapshot
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.query import query
from lab.progress import Event
from lab.state.records import JobRecord
from lab.storage import Storage
from tests.support.killed_service import Ask, sweep, token_and_lab, until_ended
from tests.support.serve_world import Site, site

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
        kept = snapshot.take(ctx, "often", "mine").label
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
        assert snapshots_of(here.service.core, "admin") == {"shop": 2, "other": 0}
        assert asked == ["labels"]


class Noted:
    """A storage; what it is asked is noted."""

    def __init__(self, storage: Storage, asked: list[str]) -> None:
        self._storage = storage
        self._asked = asked

    def __getattr__(self, name: str) -> object:
        self._asked.append(name)
        return getattr(self._storage, name)


def take(service: Service) -> JobRecord:
    token, request = service.core.store.tokens.all()[0], TakeSnapshot(name="one")
    return submit(service.jobs, new_job(token, "snapshot", request, lab="shop", key="the-key"))


def taken(service: Service, ask: Ask) -> None:
    """One snapshot, whole, by one job; and the lab keeps running."""
    done = until_ended(service, ask(service).id)
    assert done.state == "succeeded"
    with service.core.contexts.use() as ctx:
        found = [view.label for view in snapshot.snapshots(ctx, "shop") if view.name == "one"]
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}
    assert [f"snapshot:{label}" for label in found] == [done.about]


def test_a_snapshot_that_was_killed_is_taken_once(tmp_path: Path) -> None:
    """Protects labs from being paused forever, and from snapshots that nobody knows of."""
    sweep(tmp_path, take, token_and_lab, most=5, after=taken)
