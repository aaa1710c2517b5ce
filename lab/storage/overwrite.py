"""Writing to a volume from the host, while no guest has it open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from lab.errors import HostUnfit, InvalidSpec
from lab.storage import Volume, qcow2_fill, sparse

GRAIN = 1 << 14
"""Bytes: extents begin and end at multiples of this, or at the end of the volume."""


# Writes to a ZVol on a full pool fail with the errors of a defective disk.
_UNFIT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM)


def overwrite(volume: Volume, extents: Iterable[tuple[int, bytes]]) -> None:
    """Write ascending ``extents`` (offset, bytes) to a clone that is still unchanged.

    They are on stable storage when this returns; if it raises, the volume is unusable. Raises
    HostUnfit if there is no space, InvalidSpec for extents out of place.
    """
    try:
        if volume.format == "qcow2":
            qcow2_fill.fill(volume.path, extents)
        else:
            _write(volume.path, volume.size, extents)
    except OSError as error:
        if error.errno not in _UNFIT:
            raise
        raise HostUnfit(
            f"{volume.path} cannot be written: {error.strerror}",
            hint="free some space; `lab doctor` shows the free space",
        ) from error


def _write(path: Path, size: int, extents: Iterable[tuple[int, bytes]]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for offset, data in extents:
            if offset + len(data) > size:
                raise InvalidSpec("data lies beyond the end of the disk")
            sparse.fill(handle, data, offset)
        os.fsync(handle)
    finally:
        os.close(handle)
