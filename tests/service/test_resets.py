"""Resets over HTTP, after which the service makes the next standby."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.client import Client
from lab.errors import LimitReached
from lab.lifecycle.labs.query import query
from lab.lifecycle.nodes import standby
from lab.locks.named import lock
from lab.requests.labs import MakeStandby
from lab.units import MIB
from lab.wait import Deadline, until
from tests.support.serve_world import MEMORY, Site, site

LAB = "/v1/labs/shop"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.make("shop")
        taken = found.ask("POST", f"{LAB}/snapshots?wait=60", {"name": "base"})
        assert taken.status_code == 201, taken.text
        yield found


def label_of(here: Site) -> str:
    """The label of the snapshot, once the lab has a standby for it."""

    def look() -> str:
        return str(here.ask("GET", LAB).json()["standby"])

    return until(look, Deadline.after(20)) or ""


def tables(here: Site) -> int:
    with here.service.core.contexts.use() as ctx:
        return len(query(ctx, "shop", None, "SELECT name FROM sqlite_master").rows)


def write(here: Site) -> None:
    with here.service.core.contexts.use() as ctx:
        query(ctx, "shop", None, "CREATE TABLE later (id INT)")


def test_each_reset_makes_the_next_standby(here: Site) -> None:
    """The first reset restores; the others take over what the service made after the one before."""
    guests = set()
    for _ in range(3):
        write(here)
        back = here.ask("POST", f"{LAB}/reset?wait=60", {"to": "base"})
        assert (back.status_code, back.json()["state"]) == (200, "succeeded"), back.text
        assert tables(here) == 0
        shown = here.ask("GET", LAB).json()
        assert shown["at"].startswith("base.")
        guests.add(shown["nodes"][0]["guest"])
        assert label_of(here) == shown["at"]
    assert len(guests) == 3
    kinds = [job["kind"] for job in here.ask("GET", "/v1/jobs?lab=shop").json()["items"]]
    assert kinds == [*["standby", "reset"] * 3, "snapshot", "create"]


def test_a_standby_is_made_and_removed(here: Site) -> None:
    made = here.ask("PUT", f"{LAB}/standby?wait=60", {"to": "base"})
    assert (made.status_code, made.json()["state"]) == (200, "succeeded"), made.text
    assert label_of(here).startswith("base.")
    assert here.ask("PUT", f"{LAB}/standby?wait=60", {"to": "none"}).status_code == 404
    assert here.ask("DELETE", f"{LAB}/standby?wait=60").status_code == 204
    assert here.ask("GET", LAB).json()["standby"] == ""
    with here.service.core.contexts.use() as ctx:
        assert len(ctx.hypervisor.guests()) == len(ctx.store.nodes.of("shop"))


def test_the_client_resets(here: Site) -> None:
    with Client(str(here.client.base_url), here.admin) as client:
        write(here)
        first = client.reset("shop", "base")
        assert first.state == "ready"
        assert label_of(here).startswith("base.")
        write(here)
        again = client.reset("shop")
        assert tables(here) == 0
        assert again.nodes[0].guest != first.nodes[0].guest


def test_a_standby_counts(here: Site) -> None:
    """Protects others: its memory is used, and it goes first where a request lacks room."""
    core = here.service.core
    token = here.token("small", project="small", memory=2 * MEMORY + MIB)
    small = here.make("small", token=token)
    refused = pytest.raises(LimitReached, match="this standby")
    with Client(str(here.client.base_url), token) as client, refused:
        client.run(MakeStandby(lab=small["name"]))
    before = core.admission.used()
    assert here.ask("PUT", f"{LAB}/standby?wait=60", {"to": "base"}).status_code == 200
    used = core.admission.used()
    assert used.memory - before.memory == len(core.store.nodes.of("shop")) * standby.COST
    assert core.store.standbys.all()
    here.change(memory=used.memory + 2 * MEMORY - MIB)
    here.make("third")
    assert core.store.standbys.all() == []


def test_standbys_that_are_being_made_count_together(here: Site) -> None:
    """Protects a quota from requests at the same time: the second knows of the first."""
    core = here.service.core
    room = 4 * MEMORY + 2 * standby.COST + MIB
    token = here.token("two", project="two", memory=room)
    for name in ("one", "two"):
        here.make(name, token=token)
    with lock(core.settings.home, "standby", "one"):  # its job waits for that
        first = here.ask("PUT", "/v1/labs/one/standby", {}, token=token)
        assert first.status_code == 202
        second = here.ask("PUT", "/v1/labs/two/standby", {}, token=token)
        assert second.status_code == 429
        assert "this standby" in second.json()["detail"]
        cancelled = here.ask("POST", f"/v1/jobs/{first.json()['id']}/cancel", token=token)
        assert cancelled.status_code in (200, 202)
        here.settled()  # a job that waits for the lock can be cancelled
    job = here.ask("GET", f"/v1/jobs/{first.json()['id']}", token=token).json()
    assert job["state"] == "cancelled"
