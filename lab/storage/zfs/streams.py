"""Send and receive: with ``zfs send``, or in the plain format that all drivers read."""

from __future__ import annotations

from typing import BinaryIO

from lab.errors import InvalidSpec
from lab.names import VolumeName
from lab.storage import PLAIN, Source, Tags, VolumeSnapshot
from lab.storage.stream import (
    Opening,
    StreamHeader,
    StreamReader,
    damaged,
    read_header,
    write_stream,
)
from lab.storage.zfs import device, envelope, links
from lab.storage.zfs.births import Births, rounded
from lab.storage.zfs.commands import telling
from lab.storage.zfs.faults import Fault
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.properties import HOME, RECEIVED, options
from lab.storage.zfs.removal import Removal
from lab.storage.zfs.works import Work, Works


class Streams:
    """Sends snapshots of ``pool``, and creates volumes from streams."""

    def __init__(self, pool: Pool, works: Works, removal: Removal, births: Births) -> None:
        self._pool = pool
        self._works = works
        self._removal = removal
        self._births = births

    def send(self, snapshot: VolumeSnapshot, found: Dataset, to: BinaryIO) -> None:
        """Write the stream of ``zfs send``, with blocks as they are on disk, in our envelope."""
        header = StreamHeader(snapshot.label, found.number("volsize"), found.number("referenced"))
        envelope.wrap(to, header, self._pool.run.output("send", "-Lec", found.name))

    def send_plain(self, snapshot: VolumeSnapshot, found: Dataset, to: BinaryIO) -> None:
        """Write all data except zeros, read from a temporary clone.

        It is read twice, as the header has the total length.
        """
        size, name = found.number("volsize"), snapshot.volume
        with self._works.begin(f"send of {name}") as work:
            aside = f"{self._pool.layout.works}/{work.token}.0"
            with self._pool.room():
                birth = self._pool.birth(name, {}, PLAIN)
                self._pool.make(work, "clone", *birth, found.name, aside)
            try:
                path = links.wait_for(aside, size)
                data = sum(len(piece) for _, piece in device.read(path, size))
                header = StreamHeader(snapshot.label, size, data)
                write_stream(to, header, device.read(path, size))
            finally:
                self._removal.raze(work, aside)

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """See ``Storage.receive``; both formats."""
        opening = read_header(source)
        head = opening.header

        def fill(work: Work, name: str) -> int:
            self._births.fits(head.data)
            with self._pool.room(head.data):
                if opening.format == envelope.FORMAT:
                    birth = self._pool.birth(volume, tags, PLAIN)
                    return self._receive(work, name, birth, opening, source)
                blank = self._births.blank(volume, head.size, tags, PLAIN)
                return self._write(work, name, blank, StreamReader(source, opening))

        made = self._births.hidden(volume, tags, "receive", fill)
        return VolumeSnapshot(volume, head.label, made.size)

    def _receive(
        self, work: Work, name: str, birth: list[str], opening: Opening, source: Source
    ) -> int:
        head = opening.header
        frozen = f"{name}@{head.label}"
        self._pool.folder(work, self._pool.layout.works)
        pieces = envelope.unwrap(source, opening.raw)
        args = ["receive", "-u", *birth, *options({RECEIVED: head.label}), frozen]
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

    def _write(self, work: Work, name: str, blank: list[str], stream: StreamReader) -> int:
        head = stream.header
        size = rounded(head.size)
        self._pool.make(work, *blank, name)
        device.write(self._pool, links.wait_for(name, size), stream.extents(), head.data)
        frozen = f"{name}@{head.label}"
        self._pool.run.zfs("snapshot", *options({HOME: self._pool.home}), frozen, work=work)
        return size
