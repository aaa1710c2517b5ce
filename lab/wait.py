"""Waiting with an end: a deadline, and polling that backs off."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import field
from typing import TypeVar

from lab.values import dataclass

T = TypeVar("T")

_SIGNS = 100_000
"""Signs of progress that a deadline remembers at most: after that it moves no more."""


@dataclass
class Deadline:
    """A moment on the monotonic clock, in seconds. With ``latest`` progress moves it, up to then.

    ``within``: how long after the last progress it is at least.
    """

    at: float
    latest: float = 0.0
    within: float = 0.0
    _seen: set[int] = field(default_factory=set, repr=False, compare=False)

    @staticmethod
    def after(seconds: float, *, slower: float = 1.0) -> Deadline:
        """``seconds`` from now; up to ``slower`` times as long while there is progress.

        It is at least half of ``seconds`` after the last progress: what hangs from its first
        half on ends as without ``slower``.
        """
        now = time.monotonic()
        return Deadline(now + seconds, now + seconds * slower, seconds / 2)

    def saw(self, sign: Hashable) -> None:
        """Note what was found; that is progress if it was not found before."""
        key = hash(sign)  # it may be all that a program printed
        if self.latest > self.at and key not in self._seen and len(self._seen) < _SIGNS:
            self._seen.add(key)
            self.at = max(self.at, min(time.monotonic() + self.within, self.latest))

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """True once the moment has come."""
        return time.monotonic() >= self.at


def attempts(
    deadline: Deadline, *, first: float = 0.01, factor: float = 1.3, most: float = 0.5
) -> Iterator[int]:
    """Yield 0, 1, 2, ... with growing pauses between, until ``deadline``; at least once.

    ``first``, ``most``: the shortest and longest pause in seconds.
    """
    pause = first
    number = 0
    while True:
        yield number
        if deadline.passed:
            return
        time.sleep(min(pause, deadline.left))
        pause = min(pause * factor, most)
        number += 1


def until(
    probe: Callable[[], T | None], deadline: Deadline, *, first: float = 0.01, most: float = 0.5
) -> T | None:
    """The first result of ``probe`` that is true, or None when ``deadline`` passes."""
    for _ in attempts(deadline, first=first, most=most):
        if result := probe():
            return result
    return None
