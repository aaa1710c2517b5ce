"""Heartbeats for a lab, for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lab.errors import LabError


@contextmanager
def alive(give: Callable[[str], object], name: str, every: float | None) -> Iterator[None]:
    """Send heartbeats for the lab ``name`` in the block, three in each timeout.

    ``give``: sends one. ``every``: the heartbeat timeout in seconds; None: no heartbeats.
    """
    done = threading.Event()

    def beat(pause: float) -> None:
        while not done.wait(pause):
            with suppress(LabError):  # the next one may succeed
                give(name)

    if every is None:
        yield
        return
    thread = threading.Thread(target=beat, args=[every / 3], daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
