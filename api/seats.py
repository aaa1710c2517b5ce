"""Calls that may take long: so many at a time, each in a thread of its own.

Requests share a few dozen threads. Those that wait for a guest, for minutes perhaps, are not to
keep them from all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from lab.errors import LimitReached

T = TypeVar("T")

_RETRY = 10.0


class Seats:
    """``most`` seats; ``what`` is done on them. For use in the service's loop only."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.taken = 0
        self._what = what

    def take(self) -> None:
        """Take a seat; raises LimitReached if there is none. Who took it gives it back."""
        if self.taken >= self.most:
            raise LimitReached(
                f"{self.taken} {self._what} already", hint="try again", retry_after=_RETRY
            )
        self.taken += 1

    def give_back(self) -> None:
        """Undo ``take``."""
        self.taken -= 1

    @contextmanager
    def seat(self) -> Iterator[None]:
        """A seat for the block."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    async def run(self, function: Callable[[], T]) -> T:
        """What ``function`` gives, run in a thread that no other request waits for.

        Nor does the service, when it ends.
        """
        with self.seat():
            return await anyio.to_thread.run_sync(
                function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )


class Shares:
    """``most`` seats for each who takes some; ``what`` is done on them. For use by any thread."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self._what = what
        self._guard = threading.Lock()
        self._seats: dict[str, Seats] = {}

    def taken(self, who: str) -> int:
        """How many seats ``who`` has."""
        with self._guard:
            return self._seats[who].taken if who in self._seats else 0

    def take(self, who: str) -> None:
        """Take one of the seats of ``who``; raises LimitReached if all are taken."""
        with self._guard:
            self._seats.setdefault(who, Seats(self.most, self._what)).take()

    def give_back(self, who: str) -> None:
        """Undo ``take``."""
        with self._guard:
            self._seats[who].give_back()
            if not self._seats[who].taken:
                del self._seats[who]
