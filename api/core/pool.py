"""The ready members of the warm pools, and which pools failed to be filled."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from lab.config.poolfile import WarmPool

PAUSE = 20.0
"""Seconds until a lab that could not be created is tried again; doubled each time."""
_LONGEST = 1200.0


class Pool:
    """Ready labs by pool. Safe for use by several threads.

    Holds only members that the keeper found sound since this process began. ``wake`` is set when
    the keeper is to look at the pools at once.
    """

    def __init__(self, pools: Sequence[WarmPool]) -> None:
        self.pools = pools
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._ready: dict[str, list[str]] = {}
        self._unsound: set[str] = set()
        self._failures: dict[str, tuple[int, float]] = {}
        self._hits = Counter[str]()
        self._misses = Counter[str]()

    def offer(self, ready: Mapping[str, Sequence[str]]) -> None:
        """Replace the members that can be claimed: names by pool, in the order of their use."""
        with self._lock:
            self._ready = {name: list(found) for name, found in ready.items()}

    def withdraw(self, name: str) -> None:
        """Let the lab ``name`` be claimed no more."""
        with self._lock:
            for ready in self._ready.values():
                if name in ready:
                    ready.remove(name)

    def pop(self, pool: str) -> str:
        """The next member of a pool, which is no longer offered; empty if there is none."""
        with self._lock:
            ready = self._ready.get(pool)
            return ready.pop(0) if ready else ""

    def counts(self) -> dict[str, int]:
        """How many labs of each pool can be claimed."""
        with self._lock:
            return {pool.name: len(self._ready.get(pool.name, ())) for pool in self.pools}

    def requested(self, pool: str, *, hit: bool) -> None:
        """Count a request that the pool serves; ``hit``: it was given a member."""
        with self._lock:
            (self._hits if hit else self._misses)[pool] += 1

    def requests(self, pool: str) -> tuple[int, int]:
        """The hits and misses of a pool since this process began."""
        with self._lock:
            return self._hits[pool], self._misses[pool]

    def report_unsound(self, name: str) -> None:
        """A member did not answer when it was claimed: the keeper is to remove it."""
        with self._lock:
            self._unsound.add(name)
        self.wake.set()

    def take_unsound(self) -> set[str]:
        """The members reported since the last call."""
        with self._lock:
            found, self._unsound = self._unsound, set()
            return found

    def filled(self, pool: str, *, failed: bool) -> None:
        """A job that creates a member has ended."""
        with self._lock:
            count, _ = self._failures.pop(pool, (0, 0.0))
            if failed:
                pause = min(_LONGEST, PAUSE * 2**count)
                self._failures[pool] = (count + 1, time.monotonic() + pause)

    def paused(self, pool: str) -> bool:
        """Whether the last member could not be created and the pause after that is not over."""
        with self._lock:
            return time.monotonic() < self._failures.get(pool, (0, 0.0))[1]
