"""Reading and writing volumes as a whole: their extents, or the stream of ``zfs send``.

In archives such a stream has an envelope::

    header   one line of JSON: {"format": "lab-volume-zfs", "version": 1, "label": ..., "size":
             bytes as a guest sees it, "data": bytes it takes on a pool}, then the SHA-256 of
             that line, 32 bytes
    pieces   length (32-bit big-endian, at most 1 MiB), the bytes, then the SHA-256 of all
             bytes before it but earlier sums, 32 bytes
    end      length 0 and its sum; nothing may follow

``zfs receive`` parses the stream in the kernel, so each piece is verified before it is passed on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain

from lab.errors import InvalidSpec
from lab.names import VolumeName
from lab.storage import PLAIN, Content, Source, Tags, VolumeSnapshot, rules
from lab.storage.stream import (
    Opening,
    StreamHeader,
    damaged,
    header_bytes,
    read_exactly,
    read_header,
)
from lab.storage.zfs import device, links
from lab.storage.zfs.calls import RunningCall, RunningCalls
from lab.storage.zfs.commands import telling
from lab.storage.zfs.creation import VolumeCreation, rounded
from lab.storage.zfs.faults import Fault
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.properties import HOME, RECEIVED, options
from lab.storage.zfs.removal import Removal

_FORMAT = "lab-volume-zfs"

_LENGTH = struct.Struct(">I")
_LIMIT = 1 << 20
_SUM = 32


class Streams:
    """Reads snapshots of ``pool``, and creates volumes with one snapshot."""

    def __init__(
        self, pool: Pool, calls: RunningCalls, removal: Removal, creation: VolumeCreation
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._removal = removal
        self._creation = creation

    @contextmanager
    def read(self, snapshot: VolumeSnapshot, found: Dataset) -> Iterator[Content]:
        """All data except zeros, from a temporary clone: a snapshot has no device."""
        size, name = found.number("volsize"), snapshot.volume
        with self._calls.begin(f"read of {name}") as work:
            aside = f"{self._pool.layout.works}/{work.token}.0"
            with self._pool.room():
                settings = self._pool.creation_options(name, {}, PLAIN)
                self._pool.make(work, "clone", *settings, found.name, aside)
            try:
                with closing(device.read(links.wait_for(aside, size), size)) as extents:
                    data = found.number("referenced")
                    yield Content(size, data, rules.readable(snapshot, extents))
            finally:
                self._removal.raze(work, aside)

    def write(self, volume: VolumeName, label: str, content: Content, tags: Tags) -> VolumeSnapshot:
        """Written below ``.work``, then renamed."""
        size = rounded(rules.check_size(content.size))
        blank = self._creation.blank(volume, size, tags, PLAIN)
        extents = rules.in_place(volume, content.size, content.extents)

        def fill(work: RunningCall, name: str) -> int:
            self._creation.fits(content.data)
            with self._pool.room(content.data):
                self._pool.make(work, *blank, name)
                device.write(self._pool, links.wait_for(name, size), extents, content.data)
                tag = options({HOME: self._pool.home})
                self._pool.run.zfs("snapshot", *tag, f"{name}@{label}", work=work)
            return size

        self._creation.hidden(volume, tags, "copy", fill)
        return VolumeSnapshot(volume, label, size)

    @contextmanager
    def send(self, snapshot: VolumeSnapshot, found: Dataset) -> Iterator[Iterator[bytes]]:
        """The stream of ``zfs send``, with blocks as they are on disk, in our envelope."""
        header = StreamHeader(snapshot.label, found.number("volsize"), found.number("referenced"))
        with closing(self._pool.run.output("send", "-Lec", found.name)) as pieces:
            yield _wrapped(header, pieces)

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """Received below ``.work``, checked, then renamed."""
        opening = read_header(source, _FORMAT)
        head = opening.header

        def fill(work: RunningCall, name: str) -> int:
            self._creation.fits(head.data)
            with self._pool.room(head.data):
                settings = self._pool.creation_options(volume, tags, PLAIN)
                return self._receive(work, name, settings, opening, source)

        made = self._creation.hidden(volume, tags, "receive", fill)
        return VolumeSnapshot(volume, head.label, made.size)

    def _receive(
        self, work: RunningCall, name: str, settings: list[str], opening: Opening, source: Source
    ) -> int:
        head = opening.header
        frozen = f"{name}@{head.label}"
        self._pool.folder(work, self._pool.layout.works)
        pieces = _unwrapped(source, opening.raw)
        args = ["receive", "-u", *settings, *options({RECEIVED: head.label}), frozen]
        with telling({Fault.BAD_STREAM: damaged("ZFS does not read it")}):
            self._pool.run.feed(pieces, *args, work=work)
        kinds = "filesystem,volume,snapshot"
        found = {one.name: one for one in self._pool.run.datasets("-r", "-t", kinds, name)}
        if set(found) != {name, frozen} or found[name].kind != "volume" or found[name].origin:
            raise InvalidSpec("this stream does not hold one snapshot of one volume")
        if found[name].number("volsize") != head.size:
            raise damaged("the size of the volume differs from its header")
        self._pool.run.zfs("set", f"{HOME}={self._pool.home}", frozen, work=work)
        return head.size


def _wrapped(header: StreamHeader, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The whole; ``pieces`` have at most 1 MiB each."""
    line = header_bytes(header, _FORMAT)
    yield line
    digest = hashlib.sha256(line)
    for piece in chain(pieces, (b"",)):
        length = _LENGTH.pack(len(piece))
        digest.update(length + piece)
        yield length + piece + digest.digest()


def _unwrapped(source: Source, line: bytes) -> Iterator[bytes]:
    """The pieces behind the header ``line``; raises InvalidSpec for the first that is damaged."""
    digest = hashlib.sha256(line)
    while True:
        length = read_exactly(source, _LENGTH.size)
        (size,) = _LENGTH.unpack(length)
        if size > _LIMIT:
            raise damaged("a piece is out of place")
        piece = read_exactly(source, size)
        digest.update(length + piece)
        if read_exactly(source, _SUM) != digest.digest():
            raise damaged("checksum mismatch")
        if not piece:
            break
        yield piece
    if source.read(1):
        raise damaged("data after its end")
