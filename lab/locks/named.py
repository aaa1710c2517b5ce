"""Locks that the kernel holds: they vanish with the process, however it ends.

A lock is an flock(2) on a file in the home. It is exclusive (building, removing) or
shared (using). Locks are not re-entrant: taking one twice in a row waits for oneself.

An exclusive holder removes the file when it releases the lock, and ``sweep`` removes the others:
``lab run``, the pytest plugin and CI give each lab and snapshot a new name, so a home that lives
for months would otherwise keep a file of each.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from lab.errors import Busy
from lab.locks import flock
from lab.paths import Home, is_full, unwritable
from lab.wait import Deadline, attempts

LockKind = Literal[
    "lab",
    "template",
    "image",
    "snapshot",
    "standby",
    "hosts",
    "use",
    "state",
    "boot",
    "restore",
    "upgrade",
    "bench",
]

PROBE_GRACE = 0.05
"""Seconds before a lock counts as busy; ``held`` takes a free one for microseconds."""
PROBE_PATIENCE = 5.0
"""Seconds for which a probe may hold a lock on an overloaded host."""


_POLL = 0.05
"""Seconds between two tries at most: a reset waits for a standby that is nearly made."""


class _Needless(Exception):
    """The lock is needed no more."""


@contextlib.contextmanager
def lock(
    home: Home,
    kind: LockKind,
    name: str,
    *,
    shared: bool = False,
    wait: bool = True,
    deadline: Deadline | None = None,
    on_wait: Callable[[int | None], object] | None = None,
    unless: Callable[[], bool] | None = None,
) -> Iterator[bool]:
    """Hold the lock of a lab, template, image or snapshot for the block; gives True.

    ``shared`` holders exclude only exclusive ones. ``on_wait`` is called once before
    waiting, with the holder's pid if it is known (exclusive holders note theirs).
    ``unless``: asked while waiting until ``deadline``; if it is True the lock is needed no
    more, and the block is run without it and given False. Who waits for something to be made
    is then not kept waiting by those who use it already.

    Raises Busy if it is held and ``wait`` is False or ``deadline`` passes, HostUnfit
    if the home cannot be written.
    """
    path = home.lock(kind, name)
    if not home.locks.is_dir():
        home.create()
    needless = False
    fd = _acquire(path, shared, Deadline.after(PROBE_GRACE))
    patience = Deadline.after(PROBE_PATIENCE)
    while fd is None and not patience.passed and _asked_for(path):
        fd = _acquire(path, shared, Deadline.after(PROBE_GRACE))
    if fd is None and wait:
        if on_wait is not None:
            on_wait(_holder(path))
        try:
            fd = (
                _acquire(path, shared, deadline, unless) if deadline else _take(path, shared=shared)
            )
        except _Needless:
            needless = True
    if needless:
        yield False
        return
    if fd is None:
        raise _busy(kind, name, _holder(path))
    try:
        _note_holder(fd, shared=shared)
        yield True
    finally:
        _release(path, fd, shared=shared)


def held(home: Home, kind: LockKind, name: str) -> bool:
    """True if some process holds that lock, shared or exclusive; never waits."""
    path = home.lock(kind, name)
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            if not flock.try_take(fd):
                return True
            if flock.is_at(fd, path):
                return False
        finally:
            os.close(fd)


def until_free(
    home: Home, kind: LockKind, name: str, halt: Callable[[], object] = lambda: None
) -> None:
    """Return once no process holds that lock exclusively.

    ``halt`` is called meanwhile, and raises if the lock is no longer wanted.
    """
    try:
        fd = os.open(home.lock(kind, name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unwritable(home.lock(kind, name), error) from error
    try:
        for _ in attempts(Deadline(math.inf), first=0.005, most=0.05):
            if flock.try_take(fd, shared=True):
                return
            halt()
    finally:
        os.close(fd)


def sweep(home: Home) -> None:
    """Remove the files of locks that nobody holds, such as those of killed commands.

    Who opened one just before looks, once it has the lock, whether it is still there.
    """
    for path in sorted(home.locks.glob("*.lock")):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if flock.try_take(fd) and flock.is_at(fd, path):
                    path.unlink()
            finally:
                os.close(fd)


def _acquire(
    path: Path, shared: bool, deadline: Deadline, unless: Callable[[], bool] | None = None
) -> int | None:
    for _ in attempts(deadline, first=0.005, most=_POLL):
        if unless is not None and unless():
            raise _Needless
        with contextlib.suppress(BlockingIOError):
            return _take(path, shared=shared, wait=False)
    return None


def _take(path: Path, *, shared: bool, wait: bool = True) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        return flock.open_locked(path, flags, shared=shared, wait=wait)
    except BlockingIOError:
        raise
    except OSError as error:
        raise unwritable(path, error) from error


def _release(path: Path, fd: int, *, shared: bool) -> None:
    try:
        if not shared and flock.is_at(fd, path):
            # Nobody else holds it, and who waits for it looks whether it is still there.
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        flock.release(fd)


def _note_holder(fd: int, *, shared: bool) -> None:
    """Write our process id into the lock file, for messages; not on a full disk."""
    try:
        os.ftruncate(fd, 0)
        if not shared:
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        if not is_full(error):
            raise


def _holder(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_bytes()[:20])
        os.kill(pid, 0)
        return pid
    return None


def _asked_for(path: Path) -> bool:
    """True if ``held`` has the lock: exclusively, but without a note of who that is."""
    if _holder(path) is not None:
        return False
    try:
        flock.release(_take(path, shared=True, wait=False))
    except BlockingIOError:
        return True
    return False


def _busy(kind: LockKind, name: str, pid: int | None) -> Busy:
    who = f"process {pid}" if pid else "another process"
    if (kind, name) == ("state", "serve"):
        return Busy(
            f"a service of this home runs already ({who})",
            hint="`lab --home DIR serve` serves another home",
        )
    if kind == "upgrade":
        return Busy(
            f"lab {name} is being upgraded: {who} is working on it",
            hint="try again when it is done; `lab status` shows the versions of its servers",
        )
    return Busy(
        f"{kind} {name} is busy: {who} is working on it",
        hint="try again when it is done" + (f"; `ps {pid}` shows what it is" if pid else ""),
    )
