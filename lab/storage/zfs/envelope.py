"""The envelope of a ``zfs send`` stream in archives.

::

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
from itertools import chain

from lab.storage import Source
from lab.storage.stream import StreamHeader, damaged, header_bytes, read_exactly

FORMAT = "lab-volume-zfs"

_LENGTH = struct.Struct(">I")
_LIMIT = 1 << 20
_SUM = 32


def wrap(header: StreamHeader, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The whole; ``pieces`` have at most 1 MiB each."""
    line = header_bytes(header, FORMAT)
    yield line
    digest = hashlib.sha256(line)
    for piece in chain(pieces, (b"",)):
        length = _LENGTH.pack(len(piece))
        digest.update(length + piece)
        yield length + piece + digest.digest()


def unwrap(source: Source, line: bytes) -> Iterator[bytes]:
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
