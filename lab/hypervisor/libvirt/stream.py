"""Reads the RAM in QEMU's migration stream, and writes a stream with other RAM.

A stream is a head (magic, version, machine), the sections of RAM, those of devices, and an end. RAM
consists of records: the list of blocks, then their pages. With the capability
``x-ignore-shared`` a template's stream has no page of the guest's RAM itself, only those of the
firmware's blocks. A guest that was restored from it maps the template's RAM file privately, and
QEMU loads pages of a stream over that. So the RAM of such a guest can be saved as its changes:
the template's head, the pages that differ from the template's file, and the devices' sections.
QEMU loads this stream like any other.

From machine type pc-i440fx-10.0 on a command stands between RAM's parts and its end (the property
``send-switchover-start``). It is for devices that load while the source runs on, of which guests
have none, so it is left out of the streams that are written: every QEMU loads them without it.

A stream may come from elsewhere, in an archive: whatever it has, reading it takes time and memory
in proportion to its length, and ends or raises UnknownStream.

Source: migration/savevm.c, migration/ram.c (RAM_SAVE_FLAG_*) and migration/qemu-file-types.h of
QEMU 7.2 to 10.0; numbers are big-endian.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from lab.errors import LabError
from lab.values import dataclass

PAGE = 4096
"""Bytes of a page of RAM in a stream: the target's page size (x86)."""

_MAGIC = struct.pack(">II", 0x5145564D, 3)
_START, _PART, _END, _FULL, _COMMAND, _FOOTER = 0x01, 0x02, 0x03, 0x04, 0x08, 0x7E
_SWITCHOVER_START = 11
"""A command (MIG_CMD_SWITCHOVER_START): what follows is sent while the guest is paused."""
_RAM = re.compile(rb"\x01(.{4})\x03ram\x00\x00\x00\x00\x00\x00\x00\x04", re.DOTALL)
_HEAD_LIMIT = 1 << 16
_ZERO, _BLOCKS, _PAGE, _EOS, _CONTINUE, _FLUSH = 0x02, 0x04, 0x08, 0x10, 0x20, 0x200
_FLAGS = PAGE - 1
_BLOCKS_LIMIT = 256
"""A guest of ours has six to eight blocks of RAM."""
_FIRMWARE_LIMIT = 64 << 20
"""The most bytes of RAM besides the guest's own: display memory takes 16 MiB."""
_NO_MORE = b"\x00\x06" + struct.pack(">I", 2) + b"{}"
"""The end of a stream, and an empty description of its devices, which QEMU requires."""
_ZEROS = bytes(PAGE)
_BATCH = 512
"""Pages for one writev(2), whose limit is 1,024 parts (IOV_MAX)."""


class UnknownStream(LabError):
    """A stream has an unknown format, such as that of a later QEMU."""


@dataclass(frozen=True)
class Block:
    """A block of RAM: ``size`` in bytes, ``address`` in the guest."""

    name: str
    size: int
    address: int


@dataclass(frozen=True)
class Page:
    """A page of a block, ``offset`` bytes from its start; ``data`` None if it is all zeros."""

    block: str
    offset: int
    data: bytes | memoryview | None


@dataclass(frozen=True)
class Opening:
    """The beginning of a stream: its head, the number of RAM's section, the blocks of RAM."""

    head: bytes
    section: bytes
    blocks: tuple[Block, ...]


class Reader:
    """A stream in memory (``data``): its opening, its pages, and the offset of the devices.

    Raises UnknownStream if it has another format, is truncated, or has no RAM.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        found = _RAM.search(data, 0, _HEAD_LIMIT)
        if data[:8] != _MAGIC or found is None:
            raise UnknownStream("no migration stream of a known version")
        self._data = data
        self._block = ""
        self._at = found.end()
        head = bytes(data[: found.start()])
        blocks = self._read_blocks()
        self.opening = Opening(head, found[1], blocks)
        self._sizes = {block.name: block.size for block in blocks}

    def pages(self) -> Iterator[Page]:
        """All pages of RAM; afterwards ``rest`` has the data that follows."""
        try:
            yield from self._pages(_START)
            while True:
                kind = self._next()
                yield from self._pages(kind)
                if kind == _END:
                    return
        except (IndexError, struct.error):
            raise UnknownStream("the stream ends within RAM") from None

    @property
    def rest(self) -> bytes:
        """The data after RAM, once all ``pages`` were read: devices, and the end of the stream."""
        return self._data[self._at :]

    def _next(self) -> int:
        """The kind of RAM's next section, behind whose header the stream is then."""
        while True:
            at = self._at
            kind = self._take(1)[0]
            if kind == _COMMAND:
                command, length = struct.unpack(">HH", self._take(4))
                if command != _SWITCHOVER_START or length:
                    what = f"the command {command} with {length} bytes"
                    raise UnknownStream(f"the stream has {what} at offset {at}, within RAM")
                continue
            if kind not in (_START, _PART, _END, _FULL):
                what = f"a part of the unknown kind {kind:#04x}"
                raise UnknownStream(f"the stream has {what} at offset {at}, within RAM")
            section = self._take(4)
            if kind in (_PART, _END) and section == self.opening.section:
                return kind
            what = f"section {int.from_bytes(section, 'big')}"
            if kind in (_START, _FULL):
                what += f", {self._name()!r},"
            raise UnknownStream(f"the stream has {what} at offset {at}, within RAM")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise IndexError
        self._at += count
        return taken

    def _number(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def _name(self) -> str:
        try:
            return self._take(self._take(1)[0]).decode("ascii")
        except UnicodeDecodeError:
            raise UnknownStream(f"a name before offset {self._at} is not ASCII") from None

    def _read_blocks(self) -> tuple[Block, ...]:
        try:
            word, blocks = self._number(), list[Block]()
            if word & _FLAGS != _BLOCKS:
                raise UnknownStream("the stream does not begin with the blocks of RAM")
            left = word & ~_FLAGS
            while left > 0 and len(blocks) < _BLOCKS_LIMIT:
                block = Block(self._name(), self._number(), self._number())
                left -= block.size
                blocks.append(block)
        except IndexError:
            raise UnknownStream("the stream ends within the blocks of RAM") from None
        names = {block.name for block in blocks}
        whole = all(block.size and not block.size & _FLAGS for block in blocks)
        if left or not blocks or not whole or len(names) < len(blocks):
            raise UnknownStream("the blocks of RAM are inconsistent")
        return tuple(blocks)

    def _pages(self, kind: int) -> Iterator[Page]:
        """The pages of one section, whose header was read; its footer is read as well."""
        while True:
            word = self._number()
            flags, offset = word & _FLAGS, word & ~_FLAGS
            if flags == _EOS:
                break
            if flags == _FLUSH:
                continue
            if flags & ~_CONTINUE not in (_ZERO, _PAGE) or kind == _START:
                at = self._at - 8
                raise UnknownStream(f"RAM has the unknown record {flags:#x} at offset {at}")
            if not flags & _CONTINUE:  # it may continue the last of another section
                self._block = self._name()
            name = self._block
            if not 0 <= offset < self._sizes.get(name, 0):
                raise UnknownStream(f"a page at {offset:#x} is in no block of RAM")
            if flags & _PAGE:
                yield Page(name, offset, self._take(PAGE))
            else:
                filled = self._take(1)[0]
                yield Page(name, offset, _filled(filled) if filled else None)
        if self._take(5) != bytes([_FOOTER]) + self.opening.section:
            at = self._at - 5
            raise UnknownStream(f"the section of RAM that ends at offset {at} has no footer")


class Writer:
    """Writes a stream to ``file``, which is unbuffered: opening, pages, devices, in that order."""

    def __init__(self, file: BinaryIO, opening: Opening) -> None:
        self._file = file
        self._footer = bytes([_FOOTER]) + opening.section
        self._block = ""
        total = sum(block.size for block in opening.blocks)
        parts = [opening.head, bytes([_START]), opening.section]
        parts.append(b"\x03ram" + struct.pack(">II", 0, 4) + _word(total, _BLOCKS))
        for block in opening.blocks:
            parts += [_named(block.name), struct.pack(">QQ", block.size, block.address)]
        parts += [_word(0, _EOS), self._footer, bytes([_END]), opening.section]
        self._write(parts)

    def pages(self, pages: Iterable[Page]) -> None:
        """Write pages; a page of zeros takes a few bytes."""
        parts: list[bytes | memoryview] = []
        for page in pages:
            same = _CONTINUE if page.block == self._block else 0
            name = b"" if same else _named(page.block)
            self._block = page.block
            if page.data is None or page.data == _ZEROS:
                parts.append(_word(page.offset, _ZERO | same) + name + b"\0")
            else:
                parts += [_word(page.offset, _PAGE | same) + name, page.data]
            if len(parts) >= 2 * _BATCH:
                self._write(parts)
                parts = []
        self._write(parts)

    def rest(self, *parts: bytes | memoryview) -> None:
        """End RAM, and write the data after it: see ``Reader.rest`` and ``devices``."""
        self._write([_word(0, _EOS), self._footer, *parts])

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        left = list(parts)
        while left:
            written = os.writev(self._file.fileno(), left[: 2 * _BATCH])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = memoryview(left[0])[written:]


def read_opening(stream: Path) -> tuple[Opening, list[Page]]:
    """The opening of the stream in a file, and its pages except those of the guest's RAM.

    The guest's RAM is the largest block. Raises UnknownStream, and OSError.
    """
    with stream.open("rb") as file, mapped(file) as data:
        reader = Reader(data)
        own = own_block(reader.opening).name
        if (
            sum(block.size for block in reader.opening.blocks if block.name != own)
            > _FIRMWARE_LIMIT
        ):
            raise UnknownStream(f"firmware has more than {_FIRMWARE_LIMIT} bytes of RAM")
        # The last of a page counts: that is how QEMU loads it.
        kept = {(page.block, page.offset): page for page in reader.pages() if page.block != own}
        return reader.opening, list(kept.values())


def mapped(file: BinaryIO) -> mmap.mmap:
    """The content of an open file, in memory; raises UnknownStream if there is none."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise UnknownStream("the stream is empty") from None


def own_block(opening: Opening) -> Block:
    """The block of the guest's RAM; the others are firmware's."""
    return max(opening.blocks, key=lambda block: block.size)


def devices(saved: bytes) -> tuple[memoryview, bytes]:
    """The data after RAM in the output of ``xen-save-devices-state``; raises UnknownStream."""
    if saved[:8] != _MAGIC or saved[-1:] != b"\0":
        raise UnknownStream("no device state of a known version")
    return memoryview(saved)[8:-1], _NO_MORE


@cache
def _filled(byte: int) -> bytes:
    """A page of one byte: few bytes of a stream, so that all such pages share it."""
    return bytes([byte]) * PAGE


def _word(offset: int, flags: int) -> bytes:
    return struct.pack(">Q", offset | flags)


def _named(name: str) -> bytes:
    encoded = name.encode("ascii")
    return bytes([len(encoded)]) + encoded
