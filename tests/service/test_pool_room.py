"""Warm pools beside everything else: room on the host, settings that change, mistakes in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from lab.api.background.poolkeeper import PoolKeeper
from lab.api.core.pool import PAUSE
from lab.api.service import Service
from lab.config.poolfile import WarmPool, parse
from lab.config.settings import Settings
from lab.errors import InvalidSpec
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.service import ahead
from lab.names import EVERYWHERE
from lab.observe.observer import IDLE_EVERY
from lab.requests.labs import CreateLab
from lab.state.records import LabRecord
from tests.support.asking import asking
from tests.support.lifecycle_world import World
from tests.support.page_visit import visit
from tests.support.pool_world import SPEC, members, pool, until, until_full
from tests.support.serve_world import BODY, MEMORY, Site, settings_of, site


def staying(here: Site) -> list[str]:
    """The members of pools; not those that are being removed after a request has their room."""
    return [lab.name for lab in members(here) if lab.state != "removing"]


@pytest.mark.rare
def test_members_make_room_for_requests(tmp_path: Path) -> None:
    """Protects requests from a pool that has taken the host: the last made go first."""
    with site(tmp_path, pool=(pool(3),), memory=8 * MEMORY) as here:
        until_full(here, 3)
        first = members(here)
        oldest = min(first, key=lambda lab: lab.created_at).name
        made = here.make("other", nodes=6)
        assert made["state"] == "ready"
        assert staying(here) == [oldest]
        # What would not fit even without the pool does not cost the pool anything.
        job = here.ask("POST", "/v1/labs", {**BODY, "name": "late", "nodes": 3}).json()["id"]
        assert here.ask("GET", f"/v1/jobs/{job}?wait=1").json()["state"] == "queued"
        assert staying(here) == [oldest]
        here.ask("POST", f"/v1/jobs/{job}/cancel")
        here.ask("DELETE", "/v1/labs/other?wait=20")
        until_full(here, 3)  # there is room again
        assert here.service.core.admission.used().memory <= 8 * MEMORY


def test_what_commands_made_ahead_makes_room_first(tmp_path: Path) -> None:
    """Protects members of pools, and what a user of the host made ahead while there is room."""
    with site(tmp_path, pool=(pool(1),), memory=6 * MEMORY) as here:
        until_full(here, 1)
        (member,) = staying(here)
        with here.service.core.contexts.use() as ctx:
            eager = replace(ctx, settings=replace(ctx.settings, standby=1))
            assert ahead.want(eager, CreateLab.of(SPEC))
            (made,) = ahead.make(eager, timeout=20.0)
        here.service.keeper.keep()
        assert set(staying(here)) == {member, made.name}
        here.make("other", nodes=4)
        assert staying(here) == [member]


@pytest.mark.rare
def test_a_request_that_has_its_room_costs_no_further_member(tmp_path: Path) -> None:
    """Protects pools: a request is let in as soon as it fits, while a removal continues."""

    def slowly(step: str) -> None:
        if step == "storage.destroy":
            time.sleep(0.3)

    @contextmanager
    def slow(settings: Settings) -> Iterator[Context]:
        with World(tmp_path).open(slowly) as ctx:
            yield replace(ctx, settings=settings)

    with site(tmp_path, slow, pool=(pool(3),), memory=8 * MEMORY) as here:
        until_full(here, 3)
        oldest = min(members(here), key=lambda lab: lab.created_at).name
        here.make("other", nodes=6)
        assert staying(here) == [oldest]


def test_a_member_is_offered_when_its_job_has_ended(tmp_path: Path) -> None:
    """Protects claims and room: until then the job has its lock, and nobody else can have it."""
    with site(tmp_path, pool=(pool(1),)) as here:
        until_full(here, 1)
        jobs = here.service.core.store.jobs
        until(lambda: not jobs.open(), "jobs are open")
        (fill,) = jobs.latest(kinds=["fill"])
        jobs.update(fill.id, state="running")
        here.service.keeper.keep()
        assert here.service.core.pool.counts()["small"] == 0
        jobs.update(fill.id, state="succeeded")
        here.service.keeper.keep()
        assert here.service.core.pool.counts()["small"] == 1


def test_the_page_of_a_pools_job_has_no_link_to_its_lab(tmp_path: Path) -> None:
    """Protects the page: a lab of a pool is nobody's yet, and has no page."""
    with site(tmp_path, pool=(pool(1),)) as here:
        until_full(here, 1)
        jobs = here.service.core.store.jobs
        until(lambda: not jobs.open(), "jobs are open")
        (fill,) = jobs.latest(kinds=["fill"])
        with visit(here) as client:
            page = client.get(f"/jobs/{fill.id}").text
            assert fill.lab in page
            assert f"/labs/{fill.lab}" not in page
            assert 'id="back"' in page


@pytest.mark.rare
def test_a_member_that_boots_is_called_off_at_once(tmp_path: Path) -> None:
    """Protects requests on a small host: nobody waits until the nodes of a pool have booted."""

    @contextmanager
    def slow(settings: Settings) -> Iterator[Context]:
        with World(tmp_path, boot_seconds=20.0).open() as ctx:
            yield replace(ctx, settings=settings)

    with site(tmp_path, slow, pool=(pool(1),), memory=2 * MEMORY) as here:

        def forms() -> bool:
            return any(event.step == "form" for event in here.service.core.store.events.latest())

        until(forms, "the pool does not fill")
        asked = time.monotonic()
        job = here.ask("POST", "/v1/labs", {**BODY, "name": "other", "nodes": 1}).json()["id"]
        until(lambda: here.service.core.store.jobs.get(job).state == "running", "it waits", 10.0)
        assert time.monotonic() - asked < 5.0
        fill = here.ask("GET", "/v1/jobs?kind=fill").json()["items"][0]
        assert fill["state"] == "cancelled"
        assert members(here) == []
        here.ask("POST", f"/v1/jobs/{job}/cancel")
        until(lambda: here.service.core.store.jobs.get(job).state == "cancelled", "it boots", 5.0)


def test_a_pool_stays_within_the_budget(tmp_path: Path) -> None:
    """Protects the host: what does not fit is not made, and is no failure."""
    with site(tmp_path, pool=(pool(3),), memory=5 * MEMORY) as here:
        until_full(here, 2)
        until(lambda: not here.service.core.store.jobs.open(), "jobs are open")
        here.service.keeper.keep()
        assert len(members(here)) == 2
        assert {job.state for job in here.service.core.store.jobs.latest()} == {"succeeded"}


@pytest.mark.rare
def test_changed_settings_change_the_pool(tmp_path: Path) -> None:
    """Protects from labs that nobody asks for any more: another size, fewer, other keys, none."""
    with site(tmp_path, pool=(pool(2),)) as here:
        until_full(here, 2)
        old = {lab.name for lab in members(here)}
    with site(tmp_path, pool=(pool(2),)) as here:
        until_full(here, 2)
        assert {lab.name for lab in members(here)} == old  # the next service continues with them
        # As if the image had been another when they were made.
        here.service.core.store.labs.update(min(old), image="mariadb-0")
        until(lambda: min(old) not in {lab.name for lab in members(here)}, "it is still there")
        until_full(here, 2)
        kept = {lab.name for lab in members(here)}
    with site(tmp_path, pool=(pool(1),)) as here:
        until_full(here, 1)
        assert {lab.name for lab in members(here)} < kept
    with site(tmp_path, pool=(pool(1, nodes=1),)) as here:
        until_full(here, 1)
        assert [lab.node_count for lab in members(here)] == [1]
    with site(tmp_path, pool=(pool(1, nodes=1),), publish=EVERYWHERE) as here:
        until_full(here, 1)
        assert [lab.address for lab in members(here)] == [EVERYWHERE]
    with site(tmp_path) as here:
        until(lambda: not members(here), "the pool is still there")
    left = [one for one in World(tmp_path).there() if one.startswith(("lab ", "guest ", "port "))]
    assert left == []


def test_a_pool_that_cannot_be_filled_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """Protects the host from trying again and again, and requests from mistakes in a pool."""
    small = 1 << 20  # less than the image has
    with site(tmp_path, pool=(pool(1, disk=small), pool(1, "good", nodes=1))) as here:
        until_full(here, 1, "good")
        here.make("other")
        until(lambda: not here.service.core.store.jobs.open(), "jobs are open")
        here.service.keeper.keep()
        jobs = here.ask("GET", "/v1/jobs?kind=fill").json()["items"]
        assert [job["state"] for job in jobs].count("succeeded") == 1
        # On a busy machine all this takes longer than the pause: then it was tried again after it.
        tries = sorted(
            [datetime.fromisoformat(job[key]) for key in ("created_at", "ended_at")]
            for job in jobs
            if job["state"] == "failed"
        )
        assert tries
        for (_, ended), (again, _) in pairwise(tries):
            assert (again - ended).total_seconds() > PAUSE - 1
        token = here.token("ci")
        assert here.ask("GET", "/v1/jobs", token=token).json()["items"] == []


def test_a_pool_that_can_never_be_is_told_at_the_start(tmp_path: Path) -> None:
    """Protects operators from finding a mistake in the log."""
    for changes in ({"blueprint": "nope"}, {"profile": "nope"}, {"engine": "percona"}):
        with (
            pytest.raises(InvalidSpec, match=r"nope|cannot run on the engine"),
            site(tmp_path, pool=(pool(1, **changes),)),
        ):
            pass


def test_a_file_of_a_pool_is_read_at_the_start(tmp_path: Path) -> None:
    """Protects labs of pools from being created without the statements that they are to have."""
    kept = replace(pool(1), init=str(tmp_path / "absent.sql"))
    with pytest.raises(InvalidSpec, match=r"small: init: .*absent.sql cannot be read"):
        Service(settings_of(tmp_path, pool=(kept,)))


def test_published_labs_are_claimed_too(tmp_path: Path) -> None:
    """Protects pools whose labs are reached by TLS: the look before a claim goes the same way."""
    with site(tmp_path, pool=(pool(1),), publish=EVERYWHERE) as here:
        until_full(here, 1)
        name = members(here)[0].name
        answer = here.ask("POST", "/v1/labs?wait=30", BODY)
        assert (answer.status_code, answer.json()["name"]) == (201, name)


def test_pools_are_read_from_settings() -> None:
    """Protects the settings: a mistake is reported with its place."""
    table = {"blueprint": "pxc", "nodes": 1, "memory": "1G", "cpus": 2, "count": 4}
    assert parse([table]) == (
        WarmPool("pxc", {"blueprint": "pxc", "nodes": 1, "memory": 1 << 30, "cpus": 2}, 4),
    )
    for wrong, reported in (
        ([{"nodes": 3}], "no blueprint"),
        ([table, table], "two pools have the name pxc"),
        ([{**table, "count": 0}], "from 1 to 100"),
        ([{**table, "nodez": 1}], "unknown key 'nodez'"),
        ([{**table, "nodes": 10}], "1 to 9 nodes"),
    ):
        with pytest.raises(InvalidSpec, match=reported):
            parse(wrong)


def test_a_member_that_comes_while_the_pool_is_looked_at(tmp_path: Path) -> None:
    """Protects the host's memory: a pool never has one lab more than it should."""

    class Late(PoolKeeper):
        """Gets to filling only once the job that was at it is over."""

        def _make_room(self, ctx: Context, ready: list[LabRecord]) -> list[LabRecord]:
            del ctx
            until(lambda: not self._core.store.jobs.open(), "the job does not end")
            return ready

    @contextmanager
    def slow(settings: Settings) -> Iterator[Context]:
        with World(tmp_path, boot_seconds=0.5).open() as ctx:
            yield replace(ctx, settings=settings)

    with site(tmp_path, slow, pool=(pool(1),)) as here:
        jobs = here.service.core.store.jobs
        until(lambda: any(job.kind == "fill" for job in jobs.open()), "the pool is not filled")
        Late(here.service.core, here.service.jobs).keep()
        until_full(here, 1)
        assert len(members(here)) == 1
        assert [job.kind for job in jobs.latest()] == ["fill"]


@pytest.mark.rare
def test_a_lab_that_is_claimed_while_labs_are_listed(tmp_path: Path) -> None:
    """A round of questions takes as long as nodes may; lists and claims meanwhile break nothing."""
    asked, answer = threading.Event(), threading.Event()
    answer.set()

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with open_context(settings) as ctx:

            def hold_the_first(_port: int, _timeout: float) -> None:
                waits = not answer.is_set() and not asked.is_set()
                asked.set()
                if waits:
                    answer.wait(10)

            yield asking(ctx, hold_the_first)

    with site(tmp_path, opener, pool=(pool(1),)) as here:
        until_full(here, 1)
        here.make("other", nodes=1)
        asked.clear()
        answer.clear()
        assert asked.wait(2 * IDLE_EVERY), "the observer's next round"
        listed = here.ask("GET", "/v1/labs")
        claimed = here.ask("POST", "/v1/labs?wait=30", BODY).json()
        answer.set()
        assert listed.status_code == 200, listed.text
        there = here.ask("GET", "/v1/labs").json()["items"]
        assert {lab["name"] for lab in there} == {"other", claimed["name"]}
