"""Limits on what runs at the same time, and threads for calls that may take long.

Requests share a few dozen threads. Those that wait for a guest, for minutes perhaps, must not block
all others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from lab.errors import LimitReached

T = TypeVar("T")

_RETRY = 10.0
_WINDOW = 60.0


class Limit:
    """At most ``per_token`` slots for each token, ``in_all`` together; safe for any thread.

    ``what``: what slots are used for, in a message such as "16 programs run in nodes already". With
    the limit for each token, one of them cannot use up what is there for all.
    """

    def __init__(self, per_token: int, what: str, in_all: int) -> None:
        self.per_token = per_token
        self.in_all = in_all
        self._what = what
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()

    def used(self, token: str | None = None) -> int:
        """How many slots the token with the id ``token`` has, or all tokens have."""
        with self._lock:
            return self._used.total() if token is None else self._used[token]

    def acquire(self, token: str) -> None:
        """Take a slot for ``token``, until ``release``; raises LimitReached if there is none."""
        with self._lock:
            own, all_ = self._used[token], self._used.total()
            if own < self.per_token and all_ < self.in_all:
                self._used[token] += 1
                return
        many = own >= self.per_token
        used = f"{own} {self._what} for this token" if many else f"{all_} {self._what}"
        raise LimitReached(f"{used} already", hint="try again", retry_after=_RETRY)

    def release(self, token: str) -> None:
        """Undo ``acquire``."""
        with self._lock:
            self._used[token] -= 1
            self._used += Counter()  # removes tokens without slots

    @contextmanager
    def slot(self, token: str) -> Iterator[None]:
        """A slot for the block; raises LimitReached."""
        self.acquire(token)
        try:
            yield
        finally:
            self.release(token)

    async def run(self, token: str, function: Callable[[], T]) -> T:
        """What ``function`` returns, run in a thread of its own, with a slot.

        If the request is cancelled, the thread is abandoned: the end of the service does not wait
        for it.
        """
        with self.slot(token):
            return await anyio.to_thread.run_sync(
                function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )


class Rate:
    """At most ``most`` uses for each token within ``_WINDOW`` seconds; safe for any thread.

    ``clock``: seconds that only grow.
    """

    def __init__(
        self, most: int, what: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[str, deque[float]] = {}

    def use(self, token: str) -> None:
        """Count a use by ``token``; raises LimitReached if there are enough already."""
        now = self._clock()
        with self._lock:
            self._uses = {one: uses for one, uses in self._uses.items() if uses[-1] + _WINDOW > now}
            uses = self._uses.setdefault(token, deque(maxlen=self._most))
            if len(uses) == self._most and uses[0] + _WINDOW > now:
                raise LimitReached(
                    f"this token {self._what} {self._most} times within a minute, its limit",
                    hint="send fewer requests",
                    retry_after=uses[0] + _WINDOW - now,
                )
            uses.append(now)


class Limits:
    """The limits of a service. ``rate``: jobs that a token may submit within a minute."""

    def __init__(self, rate: int) -> None:
        self.submissions = Rate(rate, "submitted jobs")
        self.requests = Limit(192, "requests are being answered", 2000)
        self.programs = Limit(16, "programs run in nodes", 64)
        self.followers = Limit(16, "logs are followed", 64)
        self.streams = Limit(64, "streams of events are open", 400)
        self.waits = Limit(64, "requests wait", 400)
        self.collections = Limit(1, "garbage collections run", 1)
        self.transfers = Limit(4, "archives are transferred", 4)
        self.uploads = Limit(2, "dumps are uploaded", 8)
        self.tunnels = Limit(16, "tunnels into nodes are open", 64)
