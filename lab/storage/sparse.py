"""Files with holes: which parts hold data, and copies that keep the holes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

_FICLONE = 0x40049409
_CHUNK = 8 << 20
_NO_REFLINK = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)


def allocated(path: Path) -> int:
    """Bytes that ``path`` takes on disk."""
    return path.stat().st_blocks * 512


def taken(paths: Iterable[Path]) -> int:
    """Bytes that those of ``paths`` take on disk that exist: others may be removing some."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += allocated(path)
    return total


def extents(handle: int) -> Iterator[tuple[int, int]]:
    """Offset and length in bytes of each part of the open file that is not a hole."""
    offset, end = 0, os.fstat(handle).st_size
    while offset < end:
        try:
            start = os.lseek(handle, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        offset = os.lseek(handle, start, os.SEEK_HOLE)
        yield start, offset - start


def read(handle: int, parts: list[tuple[int, int]], chunk: int) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each of the extents ``parts``, at most ``chunk`` bytes at a time."""
    for start, length in parts:
        for offset in range(start, start + length, chunk):
            yield offset, os.pread(handle, min(chunk, start + length - offset), offset)


def copy(source: Path, target: Path, *, floor: int = 0) -> None:
    """Copy ``source`` to the new file ``target``, sharing blocks where the file system can.

    Its owner alone may read and write it. Raises FileExistsError; OSError with ENOSPC before
    anything is written if it can't fit with ``floor`` bytes left, so that a copy does not take the
    last bytes from running guests.
    """
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as writer, source.open("rb") as reader:
        if _reflink(reader.fileno(), writer.fileno()):
            return
        status = os.fstatvfs(writer.fileno())
        if allocated(source) + floor > status.f_bavail * status.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(target))
        os.ftruncate(writer.fileno(), os.fstat(reader.fileno()).st_size)
        for offset, length in extents(reader.fileno()):
            _copy_extent(reader.fileno(), writer.fileno(), offset, length)


def shares_blocks(directory: Path) -> bool:
    """Whether copies in ``directory`` share their blocks, and take no space at first."""
    with (
        tempfile.TemporaryFile(dir=directory) as source,
        tempfile.TemporaryFile(dir=directory) as target,
    ):
        return _reflink(source.fileno(), target.fileno())


def take(source: Path, target: Path) -> None:
    """Hard-link ``source`` to ``target`` if it can belong to this user alone, else copy it.

    Raises as ``copy`` does.
    """
    if source.is_symlink() or source.stat().st_nlink > 1:
        copy(source, target)
        return
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
            raise
        copy(source, target)


def write(path: Path, size: int, parts: Iterable[tuple[int, bytes]]) -> None:
    """Write the new file ``path`` of ``size`` bytes that holds ``parts``, offsets and contents."""
    with path.open("xb") as file:
        os.ftruncate(file.fileno(), size)
        for offset, data in parts:
            fill(file.fileno(), data, offset)


def fill(handle: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of the open file."""
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


def reserve(path: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Where reading holes takes space, give ``path`` all that it can need; raises OSError.

    That is so in memory (tmpfs): a page of a hole that a process reads in its mapping is allocated,
    and where that fails, the kernel ends the process (SIGBUS). Elsewhere holes are read as zeros.
    """
    if _in_memory(path, mounts):
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, os.fstat(file.fileno()).st_size))


def _in_memory(path: Path, mounts: Path) -> bool:
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False  # not Linux
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0] == "tmpfs"
    return False


def _reflink(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True


def _copy_extent(reader: int, writer: int, offset: int, length: int) -> None:
    end = offset + length
    while offset < end:
        copied = _in_kernel(reader, writer, offset, min(end - offset, _CHUNK))
        if not copied:
            data = os.pread(reader, min(end - offset, _CHUNK), offset)
            if not data:
                return  # the source shrank
            fill(writer, data, offset)
            copied = len(data)
        offset += copied


def _in_kernel(reader: int, writer: int, offset: int, length: int) -> int:
    """Bytes copied by the kernel; 0 if it cannot copy these files."""
    with contextlib.suppress(AttributeError):  # FreeBSD's Python may lack it
        try:
            return os.copy_file_range(reader, writer, length, offset, offset)
        except OSError as error:
            if error.errno not in (*_NO_REFLINK, errno.EPERM):
                raise
    return 0
