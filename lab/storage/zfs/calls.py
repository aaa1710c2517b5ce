"""The calls that are running, and commands that outlive a killed call.

A command survives its killed process: ``zfs`` continues in the kernel, and a volume may appear a
moment later. So each call that changes something has a directory while it runs, locked by the
process, and a file in it that its commands lock as well. If the file is locked and the directory
is not, a command of a killed call still runs, and others wait for it.

The directory's name is a token: datasets below ``.work`` that start with it belong to the call.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from lab.errors import HostUnfit
from lab.locks import flock
from lab.names import VolumeName
from lab.paths import PRIVATE, entries, make_directory
from lab.storage import clone_lock
from lab.values import dataclass
from lab.wait import Deadline

_NOTE = "call"
_SETTLE = 60.0
_GATES = 64


@dataclass(frozen=True)
class RunningCall:
    """A running call. ``handle``: inherited by its commands."""

    token: str
    handle: int


class RunningCalls:
    """The calls of one installation, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._calls = directory / "works"
        self._gates = directory / "gates"

    @contextlib.contextmanager
    def begin(self, what: str) -> Iterator[RunningCall]:
        """A running call; ``what`` describes it."""
        make_directory(self._calls, PRIVATE)
        with clone_lock.scratch(self._calls) as path:
            handle = os.open(path / _NOTE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                flock.take(handle)
                os.write(handle, what.encode())
                yield RunningCall(path.name, handle)
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def gate(self, volume: VolumeName, *, shared: bool = False) -> Iterator[None]:
        """Keep ``volume`` from being destroyed or rolled back; ``shared``: by others only.

        The last commands of killed calls have ended by then.
        """
        place = self._gates / f"{zlib.crc32(str(volume).encode()) % _GATES:02d}"
        make_directory(place, PRIVATE)
        with clone_lock.hold(place, shared=shared):
            self.settle()
            yield

    def settle(self) -> None:
        """Wait for the commands of killed calls; raises HostUnfit if one does not end."""
        for path in entries(self._calls):
            with (
                contextlib.suppress(BlockingIOError, FileNotFoundError),
                clone_lock.hold(path, shared=True, wait=False),
            ):
                _wait_for_commands(path)

    def alive(self, token: str) -> bool:
        """True if the process of that call is alive."""
        try:
            with clone_lock.hold(self._calls / token, shared=True, wait=False):
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def bury(self) -> list[str]:
        """Remove the directories of dead processes' calls; returns their descriptions."""
        done = []
        for path in clone_lock.abandoned(self._calls):
            _wait_for_commands(path)
            with contextlib.suppress(FileNotFoundError):
                done.append((path / _NOTE).read_text(errors="replace"))
                (path / _NOTE).unlink()
            path.rmdir()
        return done


def _wait_for_commands(path: Path) -> None:
    try:
        handle = os.open(path / _NOTE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if flock.take_until(handle, Deadline.after(_SETTLE), shared=True, first=0.002):
            return
    finally:
        os.close(handle)
    raise HostUnfit(
        "a zfs command of a killed process does not end",
        hint="`zpool status` shows whether the pool is suspended",
    )
