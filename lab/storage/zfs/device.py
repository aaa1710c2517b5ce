"""Reading and writing the whole device of a ZVol."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lab.errors import HostUnfit
from lab.storage import sparse
from lab.storage.zfs.links import forbidden
from lab.storage.zfs.pool import Pool

CHUNK = 1 << 20
"""Bytes per read or write."""

_ZEROS = bytes(CHUNK)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def write(pool: Pool, device: Path, pieces: Iterable[tuple[int, bytes]], needs: int) -> None:
    """Write each (offset, bytes) to the new volume at ``device``, and wait for the disks.

    Zeros are not written, as a new volume reads as zeros. ``needs``: bytes of all pieces. Raises
    HostUnfit, with figures if the pool is full: writes then fail with the errors of a bad disk.
    """
    try:
        with _opened(device, os.O_WRONLY) as handle:
            for offset, data in pieces:
                if data != _ZEROS[: len(data)]:
                    sparse.fill(handle, data, offset)
            os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        full = pool.full(needs)
        if error.errno == errno.EIO and pool.space().free > needs:
            raise HostUnfit(
                f"{device} cannot be written: {error.strerror}",
                hint=f"`zpool status {pool.layout.root.partition('/')[0]}` shows the fault",
            ) from error
        raise full from error


def read(device: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each chunk that is not zeros; ``size`` in bytes."""
    with _opened(device, os.O_RDONLY) as handle:
        for offset in range(0, size, CHUNK):
            data = os.pread(handle, min(CHUNK, size - offset), offset)
            if data != _ZEROS[: len(data)]:
                yield offset, data


@contextlib.contextmanager
def _opened(device: Path, flags: int) -> Iterator[int]:
    try:
        handle = os.open(device, flags | os.O_CLOEXEC)
    except PermissionError as error:
        raise forbidden(device) from error
    try:
        yield handle
    finally:
        os.close(handle)
