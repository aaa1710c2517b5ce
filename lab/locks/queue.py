"""One of several locks, first come, first served: nobody is overtaken, however many wait.

A process draws a ticket, a lock that is held while waiting, and is first once no lower ticket
is held. A ticket is gone when its process is, so nobody waits for the dead. Only who is first
looks for a free lock; each of the others waits for the one before it (after the queue lock of
Craig, Landin and Hagersten).

There may be several lines for the same locks: ``of`` names one that is not the common one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lab.errors import Busy
from lab.locks.named import LockKind, held, lock, until_free
from lab.paths import Home

_LINE = "line"


@contextmanager
def ticket(home: Home, kind: LockKind, of: str = "") -> Iterator[int]:
    """A place behind all who wait for a lock of ``kind`` already, for the block."""
    with ExitStack() as stack:
        with lock(home, kind, _line(of)):
            number = max(_numbers(home, kind, of), default=0) + 1
            stack.enter_context(lock(home, kind, _name(number, of), wait=False))
        yield number


def is_first(home: Home, kind: LockKind, place: int, of: str = "") -> bool:
    """Whether nobody waits for a lock of ``kind`` before the ticket ``place``."""
    return not any(held(home, kind, _name(one, of)) for one in _before(home, kind, place, of))


def until_first(
    home: Home,
    kind: LockKind,
    place: int,
    halt: Callable[[], object] = lambda: None,
    of: str = "",
) -> None:
    """Wait until ``is_first``, however long those before wait; ``halt`` as for ``until_free``."""
    for number in _before(home, kind, place, of):
        until_free(home, kind, _name(number, of), halt)


def waiting(home: Home, kind: LockKind, place: int = sys.maxsize, of: str = "") -> int:
    """How many wait in a line, or do so before the ticket ``place``."""
    return sum(held(home, kind, _name(one, of)) for one in _before(home, kind, place, of))


def taken(home: Home, kind: LockKind, count: int) -> int:
    """How many of the ``count`` locks are held."""
    return sum(held(home, kind, str(number)) for number in range(count))


def take_free(home: Home, kind: LockKind, count: int, into: ExitStack) -> bool:
    """Hold one of the ``count`` locks of ``kind`` in ``into``; False if none is free.

    For who is first in line.
    """
    for number in range(count):
        try:
            into.enter_context(lock(home, kind, str(number), wait=False))
        except Busy:
            continue
        return True
    return False


def _before(home: Home, kind: LockKind, place: int, of: str = "") -> list[int]:
    """The tickets that were drawn before, the latest first: it is the one to wait for."""
    return sorted((n for n in _numbers(home, kind, of) if n < place), reverse=True)


def _line(of: str) -> str:
    return f"{_LINE}-{of}" if of else _LINE


def _name(number: int, of: str = "") -> str:
    return f"{_line(of)}-{number}"


def _numbers(home: Home, kind: LockKind, of: str = "") -> list[int]:
    """The tickets that were drawn, those of the dead among them until they are swept away."""
    stem = f"{kind}.{_line(of)}-"
    found = (path.name[len(stem) : -len(".lock")] for path in home.locks.glob(f"{stem}*.lock"))
    return [int(number) for number in found if number.isdecimal()]
