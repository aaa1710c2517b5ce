"""What is in a file, by its first bytes: names say little, and standard input has none.

Compressed files are unpacked; UTF-16, as PowerShell writes it, becomes UTF-8; a byte order mark is
left out. What is no SQL for certain is refused, before a guest boots.
"""

from __future__ import annotations

import codecs
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NoReturn

from lab.datasets.dump import Packing, unpacked
from lab.errors import InvalidSpec
from lab.units import MIB

HEAD = 4096
"""Bytes by which a kind is known."""
READ = "SQL in UTF-8 or UTF-16, plain or compressed by gzip, xz, bzip2, zstd, or alone in a zip"

_PACKINGS: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bz2"),
    (b"PK\x03\x04", "zip"),
)
_OTHERS = (
    (b"PGDMP", "a dump of PostgreSQL's pg_dump -Fc"),
    (b"SQLite format 3\0", "a database of SQLite"),
    (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip"),
    (b"Rar!", "an archive of RAR"),
    (b"\x04\x22\x4d\x18", "compressed by lz4"),
    (b"LZIP", "compressed by lzip"),
    (b"PK\x05\x06", "an empty zip"),
)
_POSTGRES = b"-- PostgreSQL database "
_TAR = (257, b"ustar")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def packing_of(first: bytes) -> Packing:
    """How what begins with ``first`` is compressed; empty: it is not."""
    return next((packing for magic, packing in _PACKINGS if first.startswith(magic)), "")


def plain(data: Iterable[bytes], name: str) -> Iterator[bytes]:
    """``data`` as it is, or decompressed; raises as ``unpacked``."""
    first, data = _peeked(data, 8)
    packing = packing_of(first)
    return _unzip(data, name) if packing == "zip" else unpacked(data, packing, name)


def sql(data: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The SQL in ``data``, in UTF-8; raises InvalidSpec if it is something else."""
    first, data = _peeked(plain(data, name), HEAD)
    if packing_of(first):
        _refuse(name, "compressed twice")
    for magic, what in _OTHERS:
        if first.startswith(magic):
            _refuse(name, what)
    if first[_TAR[0] :].startswith(_TAR[1]):
        _refuse(name, "an archive of tar")
    if first.startswith(_UTF16):
        return _utf16(data, name)
    if b"\0" in first:
        where = first.index(b"\0")
        if where < 2 and first[1 - where :: 2].count(0) == 0 and len(first) > 1:
            _refuse(name, "UTF-16 without a byte order mark", "iconv -f UTF-16LE -t UTF-8")
        _refuse(name, "no text: it has bytes that are zero")
    if _POSTGRES in first:
        _refuse(name, "a dump of PostgreSQL")
    return _unmarked(data)


def _refuse(name: str, what: str, remedy: str = "") -> NoReturn:
    hint = f"`{remedy}` converts it" if remedy else f"accepted: {READ}"
    raise InvalidSpec(f"{name} is not a dump of MySQL or MariaDB: it is {what}", hint=hint)


def _peeked(data: Iterable[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes of ``data``, and all of it."""
    chunks, first = iter(data), b""
    for chunk in chunks:
        first += chunk
        if len(first) >= size:
            break
    held = first

    def again() -> Iterator[bytes]:
        if held:
            yield held
        yield from chunks

    return first[:size], again()


def _unmarked(data: Iterator[bytes]) -> Iterator[bytes]:
    first, data = _peeked(data, len(codecs.BOM_UTF8))
    if not first.startswith(codecs.BOM_UTF8):
        yield from data
        return
    yield next(data)[len(codecs.BOM_UTF8) :]
    yield from data


def _utf16(data: Iterator[bytes], name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")()
    try:
        for chunk in data:
            yield decoder.decode(chunk).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError:
        raise InvalidSpec(
            f"{name} is damaged: its UTF-16 has characters that are not complete",
            hint="copy the file again, or convert it: iconv -f UTF-16 -t UTF-8",
        ) from None


_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_STORED, _DEFLATED = 0, 8
_LATER = 1 << 3
"""Flag of a member: its checksum follows it."""


def _unzip(data: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The only member of a zip, which is read from its start."""
    reader = _Bytes(data, name)
    head = reader.exactly(_LOCAL.size)
    _, _, flags, method, _, _, crc, size, _, named, extra = _LOCAL.unpack(head)
    reader.exactly(named + extra)
    if flags & 1:
        _refuse(name, "an encrypted zip")
    if method not in (_STORED, _DEFLATED) or (method == _STORED and size >= 0xFFFFFFFF):
        _refuse(name, "a zip of a kind that is not read", "unzip -p FILE >FILE.sql")
    if method == _STORED and flags & _LATER:
        _refuse(name, "a zip whose sizes are not known", "unzip -p FILE >FILE.sql")
    found, total = 0, 0
    for chunk in _inflated(reader, name) if method == _DEFLATED else reader.next(size):
        found, total = zlib.crc32(chunk, found), total + len(chunk)
        yield chunk
    rest = reader.upto(MIB)
    if flags & _LATER:
        rest = rest.removeprefix(b"PK\x07\x08")
        crc = int.from_bytes(rest[:4], "little")
        # Two sizes of 4 or 8 bytes each follow, then the next member or the directory.
        rest = next((rest[at:] for at in (12, 20) if rest[at : at + 2] == b"PK"), b"")
    if rest.startswith(b"PK\x03\x04"):
        _refuse(name, "a zip with several members", "unzip -p FILE shop.sql >shop.sql")
    if found != crc or not rest.startswith(b"PK\x01\x02"):
        raise InvalidSpec(
            f"{name} is damaged or truncated: its zip has another checksum, or no end",
            hint="copy the file again; `unzip -t` checks it",
        )


def _inflated(reader: _Bytes, name: str) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=-15)
    try:
        while not member.eof:
            rest = reader.some()
            while rest and not member.eof:
                yield member.decompress(rest, MIB)
                rest = member.unconsumed_tail
    except zlib.error as error:
        raise InvalidSpec(
            f"{name} is damaged: its zip cannot be decompressed",
            hint="copy the file again; `unzip -t` checks it",
            details=[str(error)],
        ) from error
    reader.back(member.unused_data)


class _Bytes:
    """Bytes of a stream, in the sizes that are asked for."""

    def __init__(self, data: Iterator[bytes], name: str) -> None:
        self._data = data
        self._name = name
        self._held = b""

    def some(self) -> bytes:
        """What comes next; raises InvalidSpec at the end."""
        found, self._held = self._held or next(self._data, b""), b""
        if not found:
            raise InvalidSpec(
                f"{self._name} is truncated: its zip has no end", hint="copy the file again"
            )
        return found

    def back(self, rest: bytes) -> None:
        """``rest`` comes next."""
        self._held = rest + self._held

    def next(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes, in pieces."""
        while size:
            found = self.some()
            self.back(found[size:])
            yield found[:size]
            size -= len(found[:size])

    def exactly(self, size: int) -> bytes:
        """The next ``size`` bytes as a whole; for few bytes."""
        return b"".join(self.next(size))

    def upto(self, size: int) -> bytes:
        """The rest, of which ``size`` bytes are enough."""
        found = self._held
        while len(found) < size and (more := next(self._data, b"")):
            found += more
        return found
