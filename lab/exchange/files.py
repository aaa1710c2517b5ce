"""The ends of an archive: a file, a pipe, our own stdin and stdout."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.exchange.frames import Sink
from lab.locks import flock

STANDARD = "-"
"""What stands for our stdin or stdout."""

_URLS = ("http://", "https://")

_BUFFER = 1 << 20


@contextlib.contextmanager
def target(where: str, *, resume: bool) -> Iterator[Sink]:
    """What an archive is written to: ``-``, a device or pipe, or a file that must not exist.

    A file appears under its name when it is complete and on stable storage; until then it is
    called ``<name>.part``. ``resume``: what is there is compared with what is written, and only
    what comes behind it is written. Raises Conflict, NotFound, InvalidSpec, HostUnfit.
    """
    path = Path(where)
    if where == STANDARD:
        if sys.stdout.isatty():
            raise InvalidSpec(
                "the archive cannot be written to a terminal",
                hint="name a file, or redirect the output",
            )
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif path.exists() and not path.is_file():
        with path.open("wb", buffering=_BUFFER) as device:
            yield device
    else:
        with _file(path, resume=resume) as file:
            yield file


@contextlib.contextmanager
def source(where: str) -> Iterator[BinaryIO]:
    """What an archive is read from: ``-``, or a file. Raises NotFound, InvalidSpec."""
    if where == STANDARD:
        if sys.stdin.isatty():
            raise InvalidSpec(
                "an archive cannot be read from a terminal", hint="name a file, or pipe it in"
            )
        yield sys.stdin.buffer
        return
    if where.lower().startswith(_URLS):
        raise InvalidSpec(
            "an archive cannot be read from a URL",
            hint="`curl -C - -o FILE URL` downloads it, and resumes; then import FILE",
        )
    try:
        file = Path(where).open("rb", buffering=_BUFFER)  # noqa: SIM115  # closed below
    except OSError as error:
        raise NotFound(f"{where} cannot be read: {error.strerror}") from None
    with file:
        yield file


class _File:
    """Compares what is written with what is there, and writes what is not."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle
        self._at = 0
        self._there = os.fstat(handle).st_size

    def write(self, data: bytes, /) -> int:
        length = min(len(data), max(0, self._there - self._at))
        if length and self._read(length) != data[:length]:
            raise Conflict(
                f"{self._path} is not a partial copy of this archive"
                f" (it differs between bytes {self._at} and {self._at + length})",
                hint="remove it, or export to another file",
            )
        left = memoryview(data)[length:]
        at = self._at + length
        while left:
            done = os.pwrite(self._handle, left, at)
            left, at = left[done:], at + done
        self._at += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def finish(self) -> None:
        """Nothing may be there behind the end."""
        if self._there > self._at:
            raise Conflict(
                f"{self._path} is longer than this archive",
                hint="remove it, or export to another file",
            )
        os.fsync(self._handle)

    def _read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = os.pread(self._handle, length - len(found), self._at + len(found))
            if not more:
                break
            found += more
        return found


@contextlib.contextmanager
def _file(path: Path, *, resume: bool) -> Iterator[_File]:
    partial = path.with_name(f"{path.name}.part")
    if path.exists():
        if not resume:
            raise Conflict(
                f"{path} exists already", hint="remove it; --resume continues a partial one"
            )
        partial = partial if partial.exists() else path
    with _opened(partial) as handle:
        _lock(partial, handle)
        if not resume:
            os.ftruncate(handle, 0)
        file = _File(partial, handle)
        try:
            yield file
            file.finish()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise HostUnfit(
                f"{partial} cannot be written: {error.strerror}",
                hint="free some space; --resume continues the partial file",
            ) from error
        if partial != path:
            partial.rename(path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    # The name is known before: in a directory that others can write to, they may have made it.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise NotFound(f"there is no directory {path.parent}") from None
    except OSError as error:
        raise HostUnfit(f"{path} cannot be written: {error.strerror}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            raise HostUnfit(
                f"{path} is not a file of ours alone: it has another owner or name, or is no file",
                hint="export to a directory that only you can write to",
            )
        yield handle
    finally:
        os.close(handle)


def _lock(path: Path, handle: int) -> None:
    if not flock.try_take(handle):
        raise Conflict(f"another process is writing {path}", hint="try again when it is done")
