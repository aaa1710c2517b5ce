"""Where the parts of an archive gather until all of them are there.

::

    <parent>/<kind>.<key>/    held (flock) by the process that receives it
      identity                of the archive's header
      keep                    exists if another transfer is to resume where this one ends
      <number>                a part; <number>.index: what of it is good

A stage goes when it was used, or when the transfer failed, unless it is to be kept. What a
killed process left is removed by who finds it: at once, or ``KEPT`` seconds after the last
chunk if it is to be kept.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from lab.errors import Conflict
from lab.exchange.arrival import Arrival, chunks
from lab.exchange.content import Chunk
from lab.exchange.header import Header, Part
from lab.storage import clone_lock, rules

KEPT = 24 * 3600.0
"""Seconds that what arrived is kept after a transfer was cut off, if it is kept at all."""

_LOOK_EVERY = 64 << 20


class Stage:
    """The parts of one archive in ``directory``, which the caller holds.

    ``floor``: bytes that stay free on the file system.
    """

    def __init__(self, directory: Path, header: Header, floor: int) -> None:
        self._directory = directory
        self._names = [part.name for part in header.parts]
        self._floor = floor
        self._unseen = 0

    def path(self, name: str) -> Path:
        """The file of a part; there once it has begun to arrive."""
        return self._directory / f"{self._names.index(name):03}"

    def open(self, part: Part) -> Arrival:
        """A part, to be received."""
        return Arrival(self.path(part.name), part)

    def chunks(self, name: str) -> Iterator[Chunk]:
        """The chunks of a part that is complete."""
        return chunks(self.path(name))

    def need(self, size: int) -> None:
        """Raise HostUnfit, with figures, unless ``size`` bytes fit."""
        free = self._free()
        if size + self._floor > free:
            raise rules.no_space(str(self._directory.parent), size + self._floor, free)

    def took(self, size: int) -> None:
        """``size`` bytes were written; raises HostUnfit when the floor is reached.

        What was announced decides nothing: others write too, and archives may lie.
        """
        self._unseen += size
        if self._unseen >= _LOOK_EVERY:
            self._unseen = 0
            self.need(0)

    def _free(self) -> int:
        return shutil.disk_usage(self._directory).free


def drop(parent: Path, header: Header) -> None:
    """Remove what an earlier transfer of the same left, unless another process is at it."""
    directory = parent / f"{header.kind}.{header.key}"
    with (
        contextlib.suppress(BlockingIOError, FileNotFoundError),
        clone_lock.hold(directory, wait=False),
    ):
        shutil.rmtree(directory)


@contextlib.contextmanager
def stage(parent: Path, header: Header, *, keep: bool, floor: int) -> Iterator[Stage]:
    """The stage of an archive: with what an earlier transfer of the same left, if ``keep``.

    Raises Conflict if another process is receiving it.
    """
    directory = parent / f"{header.kind}.{header.key}"
    with _held(directory):
        identity, marker = directory / "identity", directory / "keep"
        same = identity.exists() and identity.read_text() == header.identity
        if not (keep and same and marker.exists()):
            _empty(directory)
            identity.write_text(header.identity)
            if keep:
                marker.touch()
        kept = keep
        try:
            yield Stage(directory, header, floor)
            kept = False
        finally:
            if not kept:
                shutil.rmtree(directory)


def remove_abandoned(parent: Path, now: float | None = None) -> tuple[list[str], list[str]]:
    """Remove what killed and cut transfers left; what was removed, and what is still kept."""
    removed, left = [], []
    for directory in clone_lock.abandoned(parent):
        over = _last_write(directory) + KEPT
        if (directory / "keep").exists() and over > (time.time() if now is None else now):
            left.append(f"{directory.name}: an interrupted import; --resume continues it")
            continue
        shutil.rmtree(directory, ignore_errors=True)
        removed.append(f"unfinished import {directory.name}")
    return removed, left


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        while True:
            directory.mkdir(mode=0o700, exist_ok=True)
            try:
                stack.enter_context(clone_lock.hold(directory, wait=False))
            except FileNotFoundError:
                continue  # another process has just removed it
            except BlockingIOError:
                raise Conflict(
                    f"another process is importing {directory.name}",
                    hint="try again when it is done",
                ) from None
            break
        yield


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def _last_write(directory: Path) -> float:
    return max(path.lstat().st_mtime for path in (directory, *directory.iterdir()))
