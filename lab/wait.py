"""Waiting with an end: a deadline, and polling that backs off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock, in seconds."""

    at: float

    @staticmethod
    def after(seconds: float) -> Deadline:
        """``seconds`` from now."""
        return Deadline(time.monotonic() + seconds)

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
    """The first result of ``probe`` that is not None, or None when ``deadline`` passes."""
    for _ in attempts(deadline, first=first, most=most):
        result = probe()
        if result is not None:
            return result
    return None
