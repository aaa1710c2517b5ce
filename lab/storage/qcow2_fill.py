"""Writing into a qcow2 overlay that is still empty, without QEMU.

Source: docs/interop/qcow2.txt of QEMU, version 3. Behind the clusters of an empty image (see
``qcow2_format``) come, in turn, the data clusters of one L2 table and that table; at the end
more refcount blocks, if one is not enough. Clusters of zeros become entries of that type.

Measured on 298 extents (61 MiB) above a base of 1 GiB, with QEMU 7.2: 0.05 s and 43 MiB here, 0.9 s
and 356 MiB by ``qemu-img convert -B``, 0.4 s and 62 MiB by ``qemu-io``; ``qemu-img convert
--target-is-zero`` is as fast, but clusters that were overwritten with zeros read as the base.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from lab.errors import InvalidSpec
from lab.storage import sparse
from lab.storage.qcow2_format import read_header

_COPIED = 1 << 63  # refcount is one
_READS_AS_ZEROS = 1
_REFCOUNT_BYTES = 2
_ENTRY = 8


def fill(path: Path, extents: Iterable[tuple[int, bytes]]) -> None:
    """Write ascending ``extents`` (offset, bytes), whole clusters each, into the empty ``path``.

    Only the last one may end within a cluster, at the end of the disk. The file is on stable
    storage when this returns, and unusable if it raises. Raises InvalidSpec for extents
    out of place and for a file that is not empty.
    """
    header = read_header(path)
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        disk = _Filling(handle, header.size, header.cluster_size)
        for offset, data in extents:
            disk.add(offset, data)
        disk.finish()
        os.fsync(handle)
    finally:
        os.close(handle)


class _Filling:
    def __init__(self, handle: int, size: int, cluster: int) -> None:
        self._handle = handle
        self._size = size
        self._cluster = cluster
        self._used = os.fstat(handle).st_size // cluster
        self._l1 = bytearray((self._used - 3) * cluster)
        self._zeros = bytes(cluster)
        self._entries = cluster // _ENTRY
        self._table: list[int] = []
        self._number = -1
        self._next = 0
        if os.pread(handle, len(self._l1), 3 * cluster) != self._l1:
            raise InvalidSpec("the disk has been written to already")

    def add(self, offset: int, data: bytes) -> None:
        """The next extent."""
        end = offset + len(data)
        whole = offset % self._cluster == 0 and (end % self._cluster == 0 or end == self._size)
        if not data or offset < self._next or end > self._size or not whole:
            raise InvalidSpec("an extent is out of place, or beyond the end of the disk")
        for at in range(0, len(data), self._cluster):
            self._add_cluster((offset + at) // self._cluster, data[at : at + self._cluster])
        self._next = end

    def finish(self) -> None:
        """Write the refcounts first, then the L1 table, which makes the data visible."""
        self._write_table()
        cluster = self._cluster
        per_block = cluster // _REFCOUNT_BYTES
        blocks = 1
        while blocks * per_block < self._used + blocks - 1:
            blocks += 1
        if blocks > self._entries:
            raise InvalidSpec("too much data for the refcounts of the disk")
        places = [2, *range(self._used, self._used + blocks - 1)]
        self._used += blocks - 1
        for number, place in enumerate(places):
            count = min(per_block, self._used - number * per_block)
            self._write(struct.pack(">H", 1) * count, place)
        os.ftruncate(self._handle, self._used * cluster)
        self._write(struct.pack(f">{blocks}Q", *(place * cluster for place in places)), 1)
        os.fsync(self._handle)
        self._write(bytes(self._l1), 3)

    def _add_cluster(self, number: int, data: bytes) -> None:
        table, entry = divmod(number, self._entries)
        if table != self._number:
            self._write_table()
            self._number, self._table = table, [0] * self._entries
        if data != self._zeros[: len(data)]:
            self._table[entry] = self._used * self._cluster | _COPIED
            self._append(data.ljust(self._cluster, b"\0"))
        else:
            self._table[entry] = _READS_AS_ZEROS

    def _write_table(self) -> None:
        if self._number < 0:
            return
        found = struct.pack(">Q", self._used * self._cluster | _COPIED)
        self._l1[self._number * _ENTRY : (self._number + 1) * _ENTRY] = found
        self._append(struct.pack(f">{self._entries}Q", *self._table))

    def _append(self, data: bytes) -> None:
        self._write(data, self._used)
        self._used += 1

    def _write(self, data: bytes, place: int) -> None:
        sparse.fill(self._handle, data, place * self._cluster)
