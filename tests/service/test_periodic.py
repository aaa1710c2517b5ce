"""What the service does beside requests: it continues whatever happens, and ends when it is to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.api.background.periodic import Periodic, close_all
from lab.api.service import Service
from lab.config.settings import Settings
from lab.errors import HostUnfit
from lab.lifecycle.core.context import Context
from lab.names import Owner
from tests.support.killed_service import CREATE, in_child, submit_create, token, until_ended
from tests.support.lifecycle_world import World
from tests.support.pool_world import pool
from tests.support.serve_world import settings_of

SOON = 10.0
"""Seconds in which anything that happens at all has happened."""


def test_a_task_that_fails_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    """Protects leases: a run that failed, with an error of ours or any other, is not the last."""
    made, errors = threading.Semaphore(0), [HostUnfit("no libvirt"), ZeroDivisionError("oops")]

    def go() -> None:
        if errors:
            raise errors.pop(0)
        made.release()

    periodic = Periodic("test", go, 0.01)
    periodic.start()
    assert made.acquire(timeout=SOON)
    assert made.acquire(timeout=SOON)
    periodic.stop()
    periodic.join()
    reported = [
        one.__dict__.get("error", "")
        for one in caplog.records
        if one.msg == "a periodic task failed"
    ]
    assert reported == ["no libvirt", ""]
    assert "oops" in caplog.text


def test_a_task_runs_when_woken() -> None:
    """Protects who waits for the pool: no wake is lost, one during a run causes another."""
    inside, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def go() -> None:
        inside.release()
        assert go_on.acquire(timeout=SOON)

    periodic = Periodic("test", go, 3600.0)
    periodic.start()
    periodic.wake()
    assert inside.acquire(timeout=SOON)
    periodic.wake()
    periodic.wake()
    go_on.release()
    assert inside.acquire(timeout=SOON)  # one more for both
    periodic.stop()
    assert periodic.ending
    go_on.release()
    periodic.join()
    assert not inside.acquire(blocking=False)  # none after the end, though it was woken


def test_a_thread_that_never_started_can_be_stopped() -> None:
    """Protects a service whose start failed."""
    periodic = Periodic("test", lambda: None, 1.0)
    periodic.stop()
    periodic.join()


def test_parts_end_together(caplog: pytest.LogCaptureFixture) -> None:
    """Protects the end of the service: one part that hangs or fails keeps no other from ending."""
    go_on, ended = threading.Event(), threading.Event()
    hang = [f"hangs {number}" for number in range(20)]
    parts: dict[str, Callable[[], object]] = dict.fromkeys(hang, go_on.wait)
    began = time.monotonic()
    close_all({**parts, "fails": lambda: 1 / 0, "ends": ended.set}, seconds=0.5)
    assert 0.5 <= time.monotonic() - began < 0.5 * len(hang) / 2, "they share the limit"
    go_on.set()
    assert ended.is_set()
    left = {one.__dict__["part"]: one.msg for one in caplog.records if "part" in one.__dict__}
    late = dict.fromkeys(hang, "timed out waiting for a part to close")
    assert left == {**late, "fails": "a part failed to close"}


class Gate:
    """Holds every thread but those that are ours at its next step, once it is shut."""

    def __init__(self) -> None:
        self.shut = False
        self.held: set[str] = set()
        self._open = threading.Event()

    def __call__(self, step: str) -> None:
        if self.shut and step.startswith(("hypervisor.", "storage.")):
            self.held.add(threading.current_thread().name.partition("_")[0])
            self._open.wait()


@contextmanager
def stuck(root: Path, gate: Gate) -> Iterator[Service]:
    """A service with a lab that may be idle and a full pool; ``gate`` is before every step.

    No job is open: one that the gate stops within a transaction would keep others from writing.
    """

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with World(root).open(gate) as ctx:
            yield replace(ctx, settings=settings)

    # Members of the pool are made of another image than what is asked for here.
    service = Service(settings_of(root, sweep=3600.0, pool=(pool(1, nodes=1),)), opener)
    service.open()
    token(service)
    made = submit_create(service, {**CREATE, "idle": 60, "snapshots": "hourly:1"})
    assert until_ended(service, made.id).state == "succeeded"
    deadline = time.monotonic() + 30
    while service.core.pool.counts()["small"] < 1 or service.core.store.jobs.open():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield service


@pytest.mark.rare
def test_a_busy_service_ends_in_time(tmp_path: Path) -> None:
    """Protects restarts: a sweeper, an idle watch, a pool and a job that hang cost seconds."""

    def act() -> None:
        gate = Gate()
        with stuck(tmp_path, gate) as service:
            # What the sweeper does itself, besides asking for jobs.
            service.core.store.resources.intend(Owner("lab", "left"), "guest", "lab-left-n1")
            gate.shut = True
            for periodic in (
                service.sweeper.periodic,
                service.keeper.periodic,
                service.idle.periodic,
            ):
                periodic.wake()
            submit_create(service, {**CREATE, "name": "never"}, key=None)
            deadline = time.monotonic() + 30
            while len(gate.held) < 4:
                assert time.monotonic() < deadline, gate.held
                time.sleep(0.01)
            began = time.monotonic()
            service.close(grace=1.0)
            took = time.monotonic() - began
            assert 1.0 <= took < 1.0 + 3.0 + 1.0, took

    assert in_child(act) == 0


def test_a_service_at_rest_ends_at_once(tmp_path: Path) -> None:
    """Protects restarts: nothing is waited for that is not being done."""

    def act() -> None:
        with stuck(tmp_path, Gate()) as service:
            began = time.monotonic()
            service.close()
            assert time.monotonic() - began < 2.0

    assert in_child(act) == 0
