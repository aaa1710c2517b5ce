"""Protects the cause of an error: a disk that cannot be read is not blamed on what is written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from lab.errors import HostUnfit
from lab.names import VolumeName
from lab.storage import Extent, VolumeSnapshot
from lab.storage.rules import readable


def _broken() -> Iterator[Extent]:
    yield 0, b"data"
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_error_while_reading_names_the_snapshot() -> None:
    extents = readable(VolumeSnapshot(VolumeName.parse("labs/a/n1/os"), "x", 512), _broken())
    assert next(extents) == (0, b"data")
    with pytest.raises(HostUnfit, match="snapshot x of volume labs/a/n1/os cannot be read: Input"):
        next(extents)
