"""Locks that end with their process, and scratch directories that belong to one.

The lock is the kernel's (flock) on a directory itself: no lock files, nothing stale after a
crash, and it excludes threads as well as processes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from lab.locks import flock
from lab.paths import entries


@contextlib.contextmanager
def hold(directory: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the lock on ``directory``, which is still at its path when the lock is acquired.

    Raises FileNotFoundError if it is absent or was removed during the wait, BlockingIOError if
    the lock is held elsewhere and ``wait`` is False.
    """
    handle = _lock(directory, shared=shared, wait=wait)
    try:
        yield
    finally:
        flock.release(handle)


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new locked directory in ``parent``, removed at the end unless it was renamed.

    Renaming it publishes it. ``abandoned`` lists those whose process died.
    """
    path, handle = _new_held(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        flock.release(handle)


def abandoned(parent: Path) -> Iterator[Path]:
    """Each scratch directory in ``parent`` whose process died, locked during the iteration.

    Empty ones are removed silently: a process that is just creating one tries again.
    """
    for path in entries(parent):
        if path.is_dir():
            with contextlib.suppress(BlockingIOError, FileNotFoundError), hold(path, wait=False):
                if any(path.iterdir()):
                    yield path
                else:
                    path.rmdir()


def _new_held(parent: Path) -> tuple[Path, int]:
    while True:
        path = parent / secrets.token_hex(8)
        path.mkdir(mode=0o700)
        # a sweep may see it before we hold it, and remove it
        with contextlib.suppress(FileNotFoundError):
            return path, _lock(path, shared=False, wait=True)


def _lock(directory: Path, *, shared: bool, wait: bool) -> int:
    return flock.open_locked(directory, os.O_RDONLY | os.O_DIRECTORY, shared=shared, wait=wait)
