"""The stream format of a volume, where a storage has none of its own.

::

    header   one line of JSON: {"format": "lab-volume", "version": 1, "label": ..., "size":
             bytes as a guest sees it, "data": bytes of all extents}, then the SHA-256 of that
             line, 32 bytes
    extents  "D", offset and length in bytes (two 64-bit big-endian integers), the bytes;
             ascending, at most 1 MiB each; what no extent covers is zeros
    trailer  "E", then the SHA-256 of all bytes before the "E", 32 bytes; nothing may follow

Compression and encryption are left to the transport. Other formats (``zfs/streams.py``)
have the same header, with another name.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator

from lab.errors import InvalidSpec
from lab.storage import EXTENT, Content, Extent, Source
from lab.storage.rules import check_label, check_size
from lab.values import dataclass

FORMAT = "lab-volume"

_VERSION = 1
_LINE_LIMIT = 4096
_EXTENT = struct.Struct(">QQ")
_DIGEST = 32


@dataclass(frozen=True)
class StreamHeader:
    """What a stream says of its volume."""

    label: str
    """The label of the snapshot."""
    size: int
    """The size of the volume, in bytes."""
    data: int
    """The size of its data, in bytes."""


@dataclass(frozen=True)
class Opening:
    """The start of a stream: its header, and the bytes of that."""

    header: StreamHeader
    raw: bytes


def sent(label: str, content: Content) -> Iterator[bytes]:
    """The whole stream; ``content.data`` are the bytes of all extents."""
    digest = hashlib.sha256()
    header = StreamHeader(label, content.size, content.data)
    for piece in _pieces(header_bytes(header, FORMAT), content.extents):
        digest.update(piece)
        yield piece
    yield b"E" + digest.digest()


def received(source: Source) -> tuple[str, Content]:
    """Label and content of a stream, which is read as the extents are.

    Raises InvalidSpec if it does not conform to the format; the extents are verified only once the
    iteration ends without an error.
    """
    opening = read_header(source, FORMAT)
    head = opening.header
    return head.label, Content(head.size, head.data, _extents(source, opening))


def header_bytes(header: StreamHeader, stream_format: str) -> bytes:
    """The header line of a stream, and its checksum."""
    fields = {"format": stream_format, "version": _VERSION}
    line = json.dumps({**fields, **vars(header)}).encode() + b"\n"
    return line + hashlib.sha256(line).digest()


def read_header(source: Source, stream_format: str) -> Opening:
    """The start of a stream of that format; raises InvalidSpec if it is none."""
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
        if fields["format"] != stream_format:
            raise InvalidSpec(
                f"this stream is in the format {fields['format']}, which this storage does not"
                " read",
                hint="export it again without --native",
            )
        size, label = check_size(int(fields["size"])), check_label(str(fields["label"]))
        header = StreamHeader(label=label, size=size, data=int(fields["data"]))
        return Opening(header, line + checksum)
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


def _extents(source: Source, opening: Opening) -> Iterator[Extent]:
    digest = hashlib.sha256(opening.raw)
    data = 0
    while (kind := read_exactly(source, 1)) == b"D":
        head = read_exactly(source, _EXTENT.size)
        offset, length = _EXTENT.unpack(head)
        if not 0 < length <= EXTENT:
            raise damaged("an extent is out of place")
        piece = read_exactly(source, length)
        for hashed in (kind, head, piece):
            digest.update(hashed)
        data += length
        yield offset, piece
    if kind != b"E" or data != opening.header.data:
        raise damaged("its structure is invalid")
    if read_exactly(source, _DIGEST) != digest.digest():
        raise damaged("checksum mismatch")
    if source.read(1):
        raise damaged("data after its end")


def _pieces(start: bytes, extents: Iterable[Extent]) -> Iterator[bytes]:
    yield start
    for offset, data in extents:
        yield b"D" + _EXTENT.pack(offset, len(data))
        yield data


def damaged(why: str) -> InvalidSpec:
    """The error for a damaged stream."""
    return InvalidSpec(f"the stream of the volume is damaged: {why}", hint="export it again")
