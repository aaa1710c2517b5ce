"""What may take long: so many at a time, and calls each in a thread of its own.

Requests share a few dozen threads. Those that wait for a guest, for minutes perhaps, are not to
keep them from all others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from lab.errors import LimitReached

T = TypeVar("T")

_RETRY = 10.0


class Seats:
    """``most`` seats for each token, ``in_all`` for all; ``what`` is done on them. For any thread.

    So one token does not take what is there for all.
    """

    def __init__(self, most: int, what: str, in_all: int) -> None:
        self.most = most
        self.in_all = in_all
        self._what = what
        self._guard = threading.Lock()
        self._taken: Counter[str] = Counter()

    def taken(self, who: str | None = None) -> int:
        """How many seats the token of the id ``who`` has, or all have."""
        with self._guard:
            return self._taken.total() if who is None else self._taken[who]

    def take(self, who: str) -> None:
        """Take a seat for ``who``, which they give back; raises LimitReached if there is none."""
        with self._guard:
            own, all_ = self._taken[who], self._taken.total()
            if own < self.most and all_ < self.in_all:
                self._taken[who] += 1
                return
        taken = f"{own} {self._what} for this token" if own >= self.most else f"{all_} {self._what}"
        raise LimitReached(f"{taken} already", hint="try again", retry_after=_RETRY)

    def give_back(self, who: str) -> None:
        """Undo ``take``."""
        with self._guard:
            self._taken[who] -= 1
            self._taken += Counter()  # forgets who has none

    @contextmanager
    def seat(self, who: str) -> Iterator[None]:
        """A seat of ``who`` for the block; raises LimitReached."""
        self.take(who)
        try:
            yield
        finally:
            self.give_back(who)

    async def run(self, who: str, function: Callable[[], T]) -> T:
        """What ``function`` gives, run in a thread that no other request waits for.

        Nor does the service, when it ends.
        """
        with self.seat(who):
            return await anyio.to_thread.run_sync(
                function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
