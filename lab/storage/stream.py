"""The stream format of a volume, to copy it between storages of any drivers.

::

    header   one line of JSON: {"format": "lab-volume", "version": 1, "label": ..., "size":
             bytes as a guest sees it, "data": bytes of all extents}, then the SHA-256 of that
             line, 32 bytes
    extents  "D", offset and length in bytes (two 64-bit big-endian integers), the bytes;
             ascending, at most 1 MiB each; what no extent covers is zeros
    trailer  "E", then the SHA-256 of all bytes before the "E", 32 bytes; nothing may follow

Compression and encryption are left to the transport. Other formats (``zfs/envelope.py``)
have the same header, with another name.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lab.errors import InvalidSpec
from lab.storage import Source, sparse
from lab.storage.rules import check_label, check_size

CHUNK = 1 << 20
"""The maximum length of an extent in bytes."""

PLAIN = "lab-volume"
"""The name of the format of this module, which every driver reads."""

_VERSION = 1
_LINE_LIMIT = 4096
_EXTENT = struct.Struct(">QQ")
_DIGEST = 32


@dataclass(frozen=True)
class StreamHeader:
    """``size`` of the volume and of its ``data`` in bytes; ``label`` of the snapshot."""

    label: str
    size: int
    data: int


@dataclass(frozen=True)
class Opening:
    """The start of a stream: its format, its header, and the bytes of both."""

    format: str
    header: StreamHeader
    raw: bytes


def write_stream(to: BinaryIO, header: StreamHeader, extents: Iterable[tuple[int, bytes]]) -> None:
    """Write the whole stream; ``extents`` are ascending (offset, bytes) of at most ``CHUNK``."""
    digest = hashlib.sha256()
    for piece in _pieces(header_bytes(header, PLAIN), extents):
        digest.update(piece)
        to.write(piece)
    to.write(b"E" + digest.digest())


def header_bytes(header: StreamHeader, stream_format: str) -> bytes:
    """The header line of a stream, and its checksum."""
    fields = {"format": stream_format, "version": _VERSION}
    line = json.dumps({**fields, **vars(header)}).encode() + b"\n"
    return line + hashlib.sha256(line).digest()


def read_header(source: Source) -> Opening:
    """The start of a stream of any format; raises InvalidSpec if it is none."""
    line = source.readline(_LINE_LIMIT)
    if not line.startswith(b"{") or not line.endswith(b"\n"):
        raise InvalidSpec("this is not the stream of a volume")
    checksum = read_exactly(source, _DIGEST)
    if checksum != hashlib.sha256(line).digest():
        raise damaged("its header does not match its checksum")
    try:
        fields = json.loads(line)
        if fields["version"] != _VERSION:
            raise InvalidSpec(
                f"this stream is {fields['format']} version {fields['version']}, this program"
                f" reads version {_VERSION}"
            )
        size, label = check_size(int(fields["size"])), check_label(str(fields["label"]))
        header = StreamHeader(label=label, size=size, data=int(fields["data"]))
        return Opening(str(fields["format"]), header, line + checksum)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise damaged("its header is invalid") from error


def read_exactly(source: Source, length: int) -> bytes:
    """Read exactly ``length`` bytes; raises InvalidSpec if the stream ends early."""
    parts = []
    left = length
    while left:
        part = source.read(left)
        if not part:
            raise damaged("it ends too early")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Copied:
    """``source``, whose bytes are also written to ``to``."""

    source: Source
    to: BinaryIO

    def read(self, size: int, /) -> bytes:
        """See Source."""
        return self._copied(self.source.read(size))

    def readline(self, size: int, /) -> bytes:
        """See Source."""
        return self._copied(self.source.readline(size))

    def _copied(self, data: bytes) -> bytes:
        self.to.write(data)
        return data


class StreamReader:
    """Reads a stream; raises InvalidSpec if it does not conform to the format.

    ``verified``: its bytes are checked against its checksum, unless another reader of the same
    bytes does that.
    """

    def __init__(
        self, source: Source, opening: Opening | None = None, *, verified: bool = True
    ) -> None:
        opening = opening or read_header(source)
        if opening.format != PLAIN:
            raise InvalidSpec(
                f"this stream is in the format {opening.format}, which this storage does not read",
                hint="export it again without --native",
            )
        self._source = source
        self._verified = verified
        self._digest = hashlib.sha256(opening.raw)
        self.header = opening.header

    def extents(self) -> Iterator[tuple[int, bytes]]:
        """Each extent; they are verified only once the iteration ends without an error."""
        last, data = 0, 0
        while (kind := self._read(1, hashed=False)) == b"D":
            self._hash(kind)
            offset, length = _EXTENT.unpack(self._read(_EXTENT.size))
            if not 0 < length <= CHUNK or offset < last or offset + length > self.header.size:
                raise damaged("an extent is out of place")
            last, data = offset + length, data + length
            yield offset, self._read(length)
        if kind != b"E" or data != self.header.data:
            raise damaged("its structure is invalid")
        if self._read(_DIGEST, hashed=False) != self._digest.digest() and self._verified:
            raise damaged("checksum mismatch")
        if self._source.read(1):
            raise damaged("data after its end")

    def write_to(self, path: Path) -> None:
        """Make the new sparse file ``path`` of all extents; see ``extents``."""
        with path.open("xb") as file:
            os.ftruncate(file.fileno(), self.header.size)
            for offset, data in self.extents():
                sparse.fill(file.fileno(), data, offset)

    def _read(self, length: int, *, hashed: bool = True) -> bytes:
        data = read_exactly(self._source, length)
        if hashed:
            self._hash(data)
        return data

    def _hash(self, data: bytes) -> None:
        if self._verified:
            self._digest.update(data)


def _pieces(start: bytes, extents: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    yield start
    for offset, data in extents:
        yield b"D" + _EXTENT.pack(offset, len(data))
        yield data


def damaged(why: str) -> InvalidSpec:
    """The error for a damaged stream."""
    return InvalidSpec(f"the stream of the volume is damaged: {why}", hint="export it again")
