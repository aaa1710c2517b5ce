"""The stream that carries a volume from one storage to another, of the same driver or not.

::

    header   one line of JSON: {"format": "lab-volume", "version": 1, "label": ..., "size":
             bytes as a guest sees it, "data": bytes of all extents}, then the SHA-256 of that
             line, 32 bytes
    extents  "D", offset and length in bytes (two 64-bit big-endian integers), the bytes;
             ascending, at most 1 MiB each; what no extent covers is zeros
    trailer  "E", then the SHA-256 of all bytes before the "E", 32 bytes; nothing may follow

Compression and encryption are for whoever carries it.
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
from lab.storage import sparse
from lab.storage.rules import check_label, check_size

CHUNK = 1 << 20
"""Bytes of one extent, at most."""

_FORMAT, _VERSION = "lab-volume", 1
_LINE_LIMIT = 4096
_EXTENT = struct.Struct(">QQ")
_DIGEST = 32


@dataclass(frozen=True)
class StreamHeader:
    """``size`` of the volume and ``data`` to come, in bytes; ``label`` of the snapshot."""

    label: str
    size: int
    data: int


def write_stream(to: BinaryIO, header: StreamHeader, extents: Iterable[tuple[int, bytes]]) -> None:
    """Write the whole stream; ``extents`` are ascending (offset, bytes) of at most ``CHUNK``."""
    fields = {"format": _FORMAT, "version": _VERSION}
    line = json.dumps({**fields, **vars(header)}).encode() + b"\n"
    digest = hashlib.sha256()
    for piece in _pieces(line, extents):
        digest.update(piece)
        to.write(piece)
    to.write(b"E" + digest.digest())


class StreamReader:
    """Reads a stream and raises InvalidSpec for whatever is not exactly one."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._digest = hashlib.sha256()
        self.header = self._read_header()

    def extents(self) -> Iterator[tuple[int, bytes]]:
        """Each extent; only when this ends without an error are they known to be good."""
        last, data = 0, 0
        while (kind := self._read(1, hashed=False)) == b"D":
            self._digest.update(kind)
            offset, length = _EXTENT.unpack(self._read(_EXTENT.size))
            if not 0 < length <= CHUNK or offset < last or offset + length > self.header.size:
                raise _damaged("an extent is out of place")
            last, data = offset + length, data + length
            yield offset, self._read(length)
        if kind != b"E" or data != self.header.data:
            raise _damaged("its structure is broken")
        if self._read(_DIGEST, hashed=False) != self._digest.digest():
            raise _damaged("its checksum does not match")
        if self._source.read(1):
            raise _damaged("there is more after its end")

    def write_to(self, path: Path) -> None:
        """Make the new sparse file ``path`` of all extents; see ``extents``."""
        with path.open("xb") as file:
            os.ftruncate(file.fileno(), self.header.size)
            for offset, data in self.extents():
                sparse.fill(file.fileno(), data, offset)

    def _read_header(self) -> StreamHeader:
        line = self._source.readline(_LINE_LIMIT)
        self._digest.update(line)
        if not line.startswith(b"{") or not line.endswith(b"\n"):
            raise InvalidSpec("this is not the stream of a volume")
        if self._read(_DIGEST) != hashlib.sha256(line).digest():
            raise _damaged("its header does not match its checksum")
        try:
            fields = json.loads(line)
            if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
                raise InvalidSpec(
                    f"this stream is {fields['format']} version {fields['version']}, this program"
                    f" reads {_FORMAT} version {_VERSION}"
                )
            size, label = check_size(int(fields["size"])), check_label(str(fields["label"]))
            return StreamHeader(label=label, size=size, data=int(fields["data"]))
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged("its header makes no sense") from error

    def _read(self, length: int, *, hashed: bool = True) -> bytes:
        parts = []
        left = length
        while left:
            part = self._source.read(left)
            if not part:
                raise _damaged("it ends too early")
            parts.append(part)
            left -= len(part)
        data = b"".join(parts)
        if hashed:
            self._digest.update(data)
        return data


def _pieces(line: bytes, extents: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    yield line
    yield hashlib.sha256(line).digest()
    for offset, data in extents:
        yield b"D" + _EXTENT.pack(offset, len(data))
        yield data


def _damaged(why: str) -> InvalidSpec:
    return InvalidSpec(f"the stream of the volume is damaged: {why}", hint="export it again")
