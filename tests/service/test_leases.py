"""What the service does in time, and what it makes room for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lab.api.jobs.submit import service_job, submit
from lab.api.service import Service
from lab.config.settings import Settings
from lab.errors import Busy
from lab.lifecycle.core.context import Context
from lab.lifecycle.service import token as tokens
from lab.locks.named import lock
from lab.locks.queue import take_free
from lab.requests.labs import CreateLab, RollBack, StopLab
from lab.requests.snapshots import TakeSnapshot
from lab.requests.tokens import CreateToken
from lab.wait import Deadline, until
from tests.support.killed_service import hooked
from tests.support.lifecycle_world import World
from tests.support.serve_world import BODY, MEMORY, Site, settings_of, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("leases")
    with site(root, memory=5 * MEMORY, queue_timeout=60.0) as found:
        yield found


def test_a_stopped_lab_waits_for_its_room(here: Site) -> None:
    """Protects the host from being overcommitted by labs that are started again."""
    for name in ("one", "two"):
        here.make(name, nodes=2)
    assert here.ask("POST", "/v1/labs/one/stop?wait=20").status_code == 200
    here.make("three", nodes=2)
    for asked in ("start", "restart", "rollback"):
        body = {"to": "origin"} if asked == "rollback" else None
        answer = here.ask("POST", f"/v1/labs/one/{asked}?wait=1", body)
        assert answer.status_code == 202, answer.text
        job = answer.json()
        assert job["state"] == "queued"
        here.ask("POST", f"/v1/jobs/{job['id']}/cancel")
        assert here.ask("GET", f"/v1/jobs/{job['id']}?wait=20").json()["state"] == "cancelled"
    job = here.ask("POST", "/v1/labs/one/start").json()["id"]
    here.ask("DELETE", "/v1/labs/two?wait=20")
    assert here.ask("GET", f"/v1/jobs/{job}?wait=20").json()["state"] == "succeeded"
    assert here.service.core.admission.used().memory == 4 * MEMORY
    for name in ("one", "three"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_what_runs_already_needs_no_room(here: Site) -> None:
    """Protects a lab whose start was killed: it can be started, however full the host is."""
    here.make("half", nodes=5)
    here.service.core.store.labs.update("half", state="stopped")  # not recorded as started yet
    here.make("beside", nodes=5)
    assert here.ask("POST", "/v1/labs/half/start?wait=20").status_code == 200
    for name in ("half", "beside"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_signs_of_life_are_leases(here: Site) -> None:
    """Protects the limits of tokens: no heartbeat gives more than they allow."""
    short = here.token("short", ttl=600.0)
    body = {**BODY, "ttl": 60, "heartbeat": 3600}
    assert here.ask("POST", "/v1/labs", body, token=short).status_code == 429


def test_no_warning_comes_between_two_heartbeats(here: Site) -> None:
    """Protects webhooks from a message for each heartbeat."""
    here.make("beating", heartbeat=60)
    here.make("leased", ttl=3600)
    labs, sweeper = here.service.core.store.labs, here.service.sweeper
    assert sweeper.warning(labs.get("beating")) == 30
    assert sweeper.warning(labs.get("leased")) == here.service.core.settings.serve.warn_before
    for name in ("beating", "leased"):
        here.ask("DELETE", f"/v1/labs/{name}?wait=20")


def test_a_job_is_about_the_lab_that_was_meant(here: Site) -> None:
    """Protects a lab from what was asked for another that had its name."""
    here.make("same")
    old = here.service.core.store.labs.get("same")
    request = StopLab(lab="same", force=True, created_at=old.created_at - 1.0)
    job = submit(here.service.jobs, service_job(request, project=old.project))
    ended = here.ask("GET", f"/v1/jobs/{job.id}?wait=20").json()
    assert (ended["state"], ended["error"]["status"]) == ("failed", 404)
    assert here.ask("GET", "/v1/labs/same").json()["state"] == "ready"


def test_schedules_of_snapshots_are_kept(here: Site) -> None:
    """Protects long-lived labs: no cron job is needed where a service runs."""
    here.make("kept", snapshots="hourly:2")

    def taken() -> bool:
        here.later(60.0)
        found = here.ask("GET", "/v1/labs/kept/snapshots").json()
        return any(one["name"] == "hourly" for one in found)

    assert until(taken, Deadline.after(20), first=0.2)


def rotate(here: Site) -> None:
    """Have schedules looked at, as the sweeper does each minute."""
    here.later(60.0)
    here.service.sweeper.rotate()


@pytest.mark.parametrize("plan", ["hourly:2,daily:1", "weekly:1"])
def test_a_schedule_that_fails_is_left_for_an_hour(tmp_path: Path, plan: str) -> None:
    """Protects the record, and the guests that each try freezes, from a job each minute.

    And a lab with one snapshot a week from a second week without.
    """
    # No sweep of its own: it would try first, and have no job yet when we look for one.
    with site(tmp_path, sweep=3600.0) as here:
        jobs, floor = here.service.core.store.jobs, here.service.core.settings.space_floor

        def failed() -> list[str]:
            assert until(lambda: not jobs.open(), Deadline.after(20))
            return [job.id for job in jobs.latest(kinds=["snapshot"], lab="full")]

        here.make("full", snapshots=plan)
        here.change(space_floor=1 << 62)
        rotate(here)
        first = failed()
        assert [jobs.get(one).state for one in first] == ["failed"]
        rotate(here)
        assert failed() == first
        jobs.update(first[0], created_at=time.time() - 3601)
        rotate(here)
        second = failed()
        assert set(second) > set(first)
        rotate(here)
        assert failed() == [second[0]]  # one is kept
        here.change(space_floor=floor)
        jobs.update(second[0], created_at=time.time() - 3601)
        rotate(here)
        assert [jobs.get(one).state for one in failed()] == ["succeeded", "failed"]


def test_a_scheduled_snapshot_is_one_of_the_jobs_of_a_lab(tmp_path: Path) -> None:
    """Protects who stops a lab just then from a job that fails: it is refused, and says why."""
    armed, reached, go_on = (threading.Event() for _ in range(3))

    def hook(step: str) -> None:
        if step == "hypervisor.pause" and armed.is_set():
            reached.set()
            assert go_on.wait(20)

    with site(tmp_path, hooked(tmp_path, hook)) as here:
        lab = here.make("met", snapshots="hourly:1")
        assert until(lambda: not here.service.core.store.jobs.open(), Deadline.after(20))
        armed.set()
        asked = TakeSnapshot(lab=lab["name"], scheduled=True)
        ours = service_job(asked, project="admin")
        submit(here.service.jobs, ours)
        try:
            assert reached.wait(20)
            refused = here.ask("POST", "/v1/labs/met/stop?wait=20")
            assert (refused.status_code, refused.json()["title"]) == (409, "Busy")
            assert ours.id in refused.json()["detail"]
            with pytest.raises(Busy, match=ours.id):
                submit(here.service.jobs, replace(ours, id="another"))
        finally:
            go_on.set()
        here.ask("GET", f"/v1/jobs/{ours.id}?wait=20")
        assert here.ask("POST", "/v1/labs/met/stop?wait=20").status_code == 200


@contextmanager
def slow(
    root: Path, at: str, reached: threading.Event, go_on: threading.Event
) -> Iterator[Service]:
    """A service whose labs wait at a step until they may continue."""

    def hook(step: str) -> None:
        if step == at:
            reached.set()
            assert go_on.wait(20)

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with World(root).open(hook) as ctx:
            yield replace(ctx, settings=settings)

    service = Service(settings_of(root), opener)
    service.open()
    try:
        yield service
    finally:
        go_on.set()
        service.close()


def test_a_lease_that_was_changed_while_the_lab_was_made(tmp_path: Path) -> None:
    """Protects who extends early: what was answered holds."""
    reached, go_on = threading.Event(), threading.Event()
    with slow(tmp_path, "hypervisor.restore", reached, go_on) as service:
        tokens.create(service.core.store, CreateToken(name="ci", scope="use", project="shop"))
        asked = msgspec.convert({**BODY, "name": "early", "ttl": 600.0}, CreateLab)
        submit(service.jobs, service_job(asked, project="shop"))
        assert reached.wait(20)
        end = time.time() + 7200
        service.core.store.labs.update("early", expires_at=end)
        go_on.set()
        assert until(lambda: service.core.store.labs.get("early").state == "ready",
                     Deadline.after(20))  # fmt: skip
        assert service.core.store.labs.get("early").expires_at == end


def test_who_goes_back_holds_no_turn_while_waiting(tmp_path: Path) -> None:
    """Protects from a deadlock with a command that recreates the template, and waits for a slot."""
    from lab.lifecycle.labs.rollback import rollback
    from lab.lifecycle.labs.up import up
    from tests.support.lifecycle_world import named

    world = World(tmp_path)
    with world.open() as ctx, ThreadPoolExecutor(1) as pool:
        up(ctx, named("shop"))
        key = ctx.store.labs.get("shop").template
        assert key

        def back() -> str:
            with world.open() as other:
                return rollback(other, RollBack(lab="shop"), timeout=20.0).state

        with lock(ctx.home, "template", key):
            done = pool.submit(back)
            assert until(lambda: ctx.store.labs.get("shop").state == "stopped",
                         Deadline.after(20))  # fmt: skip
            time.sleep(0.3)
            with ExitStack() as held:
                assert take_free(ctx.home, "restore", 1, held)
        assert done.result(30) == "ready"
