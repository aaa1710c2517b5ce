"""An observer continues after every fault, and does not repeat one as fast as it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Hashable, Mapping

from lab.errors import HostUnfit
from lab.observe.observer import Look, Observer
from lab.observe.round import Observation, Observed
from lab.wait import Deadline, until


def _look(name: str) -> Look:
    return lambda: Observation(name, time.time(), {"n1": Observed("ready")})


def _begin(names: Collection[str]) -> Mapping[str, Look]:
    return {name: _look(name) for name in names}


def test_a_record_that_cannot_be_read_is_read_seldom() -> None:
    """Protects the log and the processors of a service whose disk is full."""
    errors: list[Exception] = []
    broken = threading.Event()

    def known() -> Mapping[str, Hashable]:
        if broken.is_set():
            raise HostUnfit("the state cannot be read")
        return {"shop": 1}

    observer = Observer(known, _begin, errors.append)
    observer.start()
    try:
        assert observer.wait({"shop": 1}, 10.0)
        broken.set()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            observer.want({"shop": 1})  # somebody reads all the time
            time.sleep(0.05)
        assert 1 <= len(errors) <= 6
        broken.clear()
        observer.changed("shop")
        assert observer.wait({"shop": 1}, 10.0)
    finally:
        observer.stop()


def test_many_labs_do_not_wake_it_all_the_time() -> None:
    """Protects the processors of a host with more labs than there are rounds for."""
    calls = 0
    labs: dict[str, Hashable] = {f"lab{number}": 1 for number in range(600)}

    def known() -> Mapping[str, Hashable]:
        nonlocal calls
        calls += 1
        return labs

    observer = Observer(known, _begin, lambda _: None)
    observer.start()
    try:
        assert until(lambda: observer.rounds > 60, Deadline.after(20))
        before, began = calls, time.monotonic()
        time.sleep(2.0)
        assert (calls - before) / (time.monotonic() - began) < 45
    finally:
        observer.stop()


def test_a_thread_that_cannot_start_is_one_round_less() -> None:
    """Protects a lab from being observed no more, as the host had no thread left for a moment."""
    errors: list[Exception] = []
    observer = Observer(lambda: {"shop": 1, "crm": 1}, _begin, errors.append)
    size = threading.stack_size()
    observer.start()
    try:
        assert observer.wait({"shop": 1, "crm": 1}, 10.0)
        threading.stack_size(1 << 46)  # no such thread can start
        try:
            observer.changed("shop")
            observer.changed("crm")
            assert until(lambda: bool(errors), Deadline.after(10))
        finally:
            threading.stack_size(size)
        assert observer.wait({"shop": 1, "crm": 1}, 20.0)
    finally:
        observer.stop()
