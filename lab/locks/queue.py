"""One of several locks, first come, first served: nobody is overtaken, however many wait.

A process draws a ticket, a lock that is held while waiting, and is first once no lower ticket
is held. A ticket is gone when its process is, so nobody waits for the dead. Only who is first
looks for a free lock; each of the others waits for the one before it (after the queue lock of
Craig, Landin and Hagersten).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lab.errors import Busy
from lab.locks.named import LockKind, held, lock, until_free
from lab.paths import Home

_LINE = "line"


@contextmanager
def ticket(home: Home, kind: LockKind) -> Iterator[int]:
    """A place behind all who wait for a lock of ``kind`` already, for the block."""
    with ExitStack() as stack:
        with lock(home, kind, _LINE):
            number = max(_numbers(home, kind), default=0) + 1
            stack.enter_context(lock(home, kind, _name(number), wait=False))
        yield number


def is_first(home: Home, kind: LockKind, place: int) -> bool:
    """Whether nobody waits for a lock of ``kind`` before the ticket ``place``."""
    return not any(held(home, kind, _name(number)) for number in _before(home, kind, place))


def until_first(
    home: Home, kind: LockKind, place: int, halt: Callable[[], object] = lambda: None
) -> None:
    """Wait until ``is_first``, however long those before wait; ``halt`` as for ``until_free``."""
    for number in _before(home, kind, place):
        until_free(home, kind, _name(number), halt)


def ahead(home: Home, kind: LockKind, count: int, place: int) -> int:
    """How many are before the ticket ``place``: waiting ones, and holders of the ``count``."""
    waiting = sum(held(home, kind, _name(number)) for number in _before(home, kind, place))
    return waiting + sum(held(home, kind, str(number)) for number in range(count))


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


def _before(home: Home, kind: LockKind, place: int) -> list[int]:
    """The tickets that were drawn before, the latest first: it is the one to wait for."""
    return sorted((n for n in _numbers(home, kind) if n < place), reverse=True)


def _name(number: int) -> str:
    return f"{_LINE}-{number}"


def _numbers(home: Home, kind: LockKind) -> list[int]:
    """The tickets that were drawn, those of the dead among them until they are swept away."""
    stem = f"{kind}.{_LINE}-"
    found = (path.name[len(stem) : -len(".lock")] for path in home.locks.glob(f"{stem}*.lock"))
    return [int(number) for number in found if number.isdecimal()]
