"""Reads the RAM in QEMU's migration stream, and writes a stream with other RAM.

A stream is a head (magic, version, machine), the sections of RAM, those of devices, and an end. RAM
consists of records: the list of blocks, then their pages. With the capability
``x-ignore-shared`` a template's stream has no page of the guest's RAM itself, only those of the
firmware's blocks. A guest that was restored from it maps the template's RAM file privately, and
QEMU loads pages of a stream over that. So the RAM of such a guest can be saved as its changes:
the template's head, the pages that differ from the template's file, and the devices' sections.
QEMU loads this stream like any other.

Source: migration/savevm.c, migration/ram.c (RAM_SAVE_FLAG_*) and migration/qemu-file-types.h of
QEMU 7.2 to 10.0; numbers are big-endian.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lab.errors import LabError

PAGE = 4096
"""Bytes of a page of RAM in a stream: the target's page size (x86)."""

_MAGIC = struct.pack(">II", 0x5145564D, 3)
_START, _PART, _END, _FOOTER = 0x01, 0x02, 0x03, 0x7E
_RAM = re.compile(rb"\x01(.{4})\x03ram\x00\x00\x00\x00\x00\x00\x00\x04", re.DOTALL)
_HEAD_LIMIT = 1 << 16
_ZERO, _BLOCKS, _PAGE, _EOS, _CONTINUE, _FLUSH = 0x02, 0x04, 0x08, 0x10, 0x20, 0x200
_FLAGS = PAGE - 1
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
        self._footers = True
        head = bytes(data[: found.start()])
        blocks = self._read_blocks()
        self.opening = Opening(head, found[1], blocks)
        self._sizes = {block.name: block.size for block in blocks}

    def pages(self) -> Iterator[Page]:
        """All pages of RAM; afterwards ``rest`` has the data that follows."""
        try:
            yield from self._pages(_START)
            while True:
                kind, *section = self._take(5)
                if kind not in (_PART, _END) or bytes(section) != self.opening.section:
                    raise UnknownStream("the sections of the stream are not those of RAM alone")
                yield from self._pages(kind)
                if kind == _END:
                    return
        except (IndexError, struct.error):
            raise UnknownStream("the stream ends within RAM") from None

    @property
    def rest(self) -> bytes:
        """The data after RAM, once all ``pages`` were read: devices, and the end of the stream."""
        return self._data[self._at :]

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
            raise UnknownStream("the name of a block of RAM is not ASCII") from None

    def _read_blocks(self) -> tuple[Block, ...]:
        try:
            word, blocks = self._number(), []
            if word & _FLAGS != _BLOCKS:
                raise UnknownStream("the stream does not begin with the blocks of RAM")
            left = word & ~_FLAGS
            while left > 0:
                block = Block(self._name(), self._number(), self._number())
                left -= block.size
                blocks.append(block)
        except IndexError:
            raise UnknownStream("the stream ends within the blocks of RAM") from None
        if left:
            raise UnknownStream("the sizes of the blocks of RAM are inconsistent")
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
                raise UnknownStream(f"RAM has an unknown record: {flags:#x}")
            if not flags & _CONTINUE:  # it may continue the last of another section
                self._block = self._name()
            name = self._block
            if not 0 <= offset < self._sizes.get(name, 0):
                raise UnknownStream(f"a page at {offset:#x} is in no block of RAM")
            if flags & _PAGE:
                yield Page(name, offset, self._take(PAGE))
            else:
                filled = self._take(1)[0]
                yield Page(name, offset, bytes([filled]) * PAGE if filled else None)
        if self._take(5) != bytes([_FOOTER]) + self.opening.section:
            raise UnknownStream("a section of RAM has no footer")


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
        kept = [page for page in reader.pages() if page.block != own]
        return reader.opening, kept


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


def _word(offset: int, flags: int) -> bytes:
    return struct.pack(">Q", offset | flags)


def _named(name: str) -> bytes:
    encoded = name.encode("ascii")
    return bytes([len(encoded)]) + encoded
