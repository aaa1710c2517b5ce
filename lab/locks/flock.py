"""The kernel's lock on an open file or directory, flock(2); no other module calls it.

It belongs to the opened file: so it excludes threads as well as processes, children that inherit
the descriptor hold it too, and it ends with the last of them, however that ends. It is
exclusive, or shared by those that take it ``shared``.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lab.wait import Deadline, attempts


def take(handle: int, *, shared: bool = False) -> None:
    """Take the lock; waits for it."""
    fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_take(handle: int, *, shared: bool = False) -> bool:
    """Take the lock unless another holds it; whether that succeeded."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_until(
    handle: int, deadline: Deadline, *, shared: bool = False, first: float = 0.005
) -> bool:
    """Take the lock until ``deadline``; whether that succeeded. ``first``: as of ``attempts``."""
    return any(try_take(handle, shared=shared) for _ in attempts(deadline, first=first, most=0.05))


def open_locked(
    path: Path, flags: int, *, shared: bool = False, wait: bool = True, mode: int = 0o600
) -> int:
    """Open ``path`` and take its lock; it is still at its path then. ``release`` ends both.

    ``flags``, ``mode``: as of open(2). Raises BlockingIOError if another holds the lock and
    ``wait`` is False, OSError if the file cannot be opened, also if it vanished meanwhile.
    """
    while True:
        handle = os.open(path, flags | os.O_CLOEXEC, mode)
        try:
            if wait:
                take(handle, shared=shared)
            elif not try_take(handle, shared=shared):
                raise BlockingIOError(f"{path} is locked")
            if is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        release(handle)


def is_at(handle: int, path: Path) -> bool:
    """Whether the opened file is still the one that others find at ``path``."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def release(handle: int) -> None:
    """Unlock and close: a child forked meanwhile may still have the descriptor."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
