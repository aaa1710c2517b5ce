"""Warm pools, for tests of the service that has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lab.config.labfile import spec_of
from lab.config.poolfile import WarmPool
from lab.state.records import LabRecord
from tests.support.serve_world import MEMORY, Site

VALUES = {"blueprint": "galera", "nodes": 2, "memory": MEMORY}
SPEC = spec_of(VALUES)


def pool(count: int, name: str = "small", **changes: Any) -> WarmPool:
    return WarmPool(name, {**VALUES, **changes}, count)


def members(here: Site) -> list[LabRecord]:
    return [lab for lab in here.service.core.store.labs.all() if lab.pool]


def until(true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def until_full(here: Site, count: int, name: str = "small") -> None:
    """Wait until ``count`` labs of a pool are there, and as many can be claimed.

    The service may not have seen yet that one is gone.
    """

    def full() -> bool:
        there = [lab for lab in members(here) if lab.pool == name]
        ready = [lab for lab in there if lab.state == "ready"]
        return len(there) == len(ready) == here.service.core.pool.counts()[name] == count

    until(full, "the pool does not fill")
