"""Reading and writing the whole device of a ZVol."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from lab.errors import HostUnfit
from lab.storage import EXTENT, Extent, sparse
from lab.storage.zfs.links import forbidden
from lab.storage.zfs.pool import Pool

_ZEROS = bytes(EXTENT)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def write(pool: Pool, device: Path, extents: Iterable[Extent], needs: int) -> None:
    """Write ``extents`` to the new volume at ``device``, and wait for the disks.

    Zeros are not written, as a new volume reads as zeros. ``needs``: about how many bytes they are.
    Raises HostUnfit, with figures if the pool is full: writes then fail with the errors of a bad
    disk.
    """
    written = 0
    try:
        with _opened(device, os.O_WRONLY) as handle:
            for offset, data in extents:
                if data != _ZEROS[: len(data)]:
                    sparse.fill(handle, data, offset)
                    written += len(data)
            os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        needs = max(needs, written)
        full = pool.full(needs)
        if error.errno == errno.EIO and pool.space().free > needs:
            raise HostUnfit(
                f"{device} cannot be written: {error.strerror}",
                hint=f"`zpool status {pool.layout.root.partition('/')[0]}` shows the fault",
            ) from error
        raise full from error


def read(device: Path, size: int) -> Generator[Extent, None, None]:
    """All that is not zeros, to be closed if it is not read to its end; ``size`` in bytes."""
    with _opened(device, os.O_RDONLY) as handle:
        for offset in range(0, size, EXTENT):
            data = os.pread(handle, min(EXTENT, size - offset), offset)
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
