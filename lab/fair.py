"""One of several locks, first come, first served: nobody is overtaken, however many wait.

Who wants one draws a ticket, a lock that is held while waiting, and may look for a free lock
once no lower ticket is held. A ticket is gone when its process is, so nobody waits for the dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.errors import Busy
from lab.locks import LockKind, held, lock
from lab.paths import Home
from lab.wait import Deadline

_PAUSE = 0.01
"""Seconds between two looks of the first in line; those behind look less often."""
_LONGEST = 0.5
_LINE = "line"


@contextmanager
def ticket(home: Home, kind: LockKind) -> Iterator[int]:
    """A place behind all who wait for a lock of ``kind`` already, for the block."""
    with ExitStack() as stack:
        with lock(home, kind, _LINE):
            number = max(_numbers(home, kind), default=0) + 1
            stack.enter_context(lock(home, kind, _name(number), wait=False))
        yield number


def take_one(
    home: Home, kind: LockKind, count: int, place: int, deadline: Deadline, into: ExitStack
) -> bool:
    """Hold one of the ``count`` locks of ``kind`` in ``into``; False if ``deadline`` passes first.

    ``place``: a ticket that the caller holds.
    """
    while True:
        before = sorted(number for number in _numbers(home, kind) if number < place)
        # The nearest first: it is the one that most likely waits still.
        if not any(held(home, kind, _name(number)) for number in reversed(before)):
            for number in range(count):
                try:
                    into.enter_context(lock(home, kind, str(number), wait=False))
                except Busy:
                    continue
                return True
        if deadline.passed:
            return False
        time.sleep(min(_PAUSE * (1 + len(before)), _LONGEST, deadline.left))


def _name(number: int) -> str:
    return f"{_LINE}-{number}"


def _numbers(home: Home, kind: LockKind) -> list[int]:
    """The tickets that were drawn, those of the dead among them until they are swept away."""
    stem = f"{kind}.{_LINE}-"
    found = (path.name[len(stem) : -len(".lock")] for path in home.locks.glob(f"{stem}*.lock"))
    return [int(number) for number in found if number.isdecimal()]
