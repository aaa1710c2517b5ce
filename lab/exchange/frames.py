r"""The bytes of an archive: frames, each with a digest over itself and all before it.

::

    magic   "lab-archive 1\n", or 2 for a snapshot of a lab, which versions that know only 1 refuse
    frame   kind (1 byte), length of the payload (32-bit big-endian), the payload, then 32
            bytes: SHA-256(digest before, kind, length, SHA-256(payload)); the digest before
            the first frame is SHA-256(magic)

A frame is believed only once its digest is right, so that a cut, a flipped bit and a frame that
is missing, doubled or out of place are found where they are.
"""

from __future__ import annotations

import hashlib
import struct
from typing import BinaryIO, Literal, Protocol, cast

from lab.errors import InvalidSpec

Kind = Literal[b"H", b"W", b"D", b"E", b"Z"]
"""Header; what of it follows; data of a part; end of a part; end of the archive."""

LIMIT = 1 << 20
"""Bytes of a frame's payload, at most, but for the offset of data."""

Version = Literal[1, 2]
"""Of the format: what an archive of a later one has, readers of an earlier one would misread."""

_MAGIC = b"lab-archive "
_VERSIONS: dict[bytes, Version] = {b"1\n": 1, b"2\n": 2}
_HEAD = struct.Struct(">cI")
_OFFSET = struct.Struct(">Q")
_DIGEST = 32


class Sink(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""

    def flush(self) -> None:
        """Hold nothing back."""


def data_digest(offset: int, data: bytes) -> bytes:
    """The digest of a frame of data: of the bytes and where they belong."""
    found = hashlib.sha256(_OFFSET.pack(offset))
    found.update(data)
    return found.digest()


class FrameWriter:
    """Writes an archive's frames to a stream, of which the errors are."""

    def __init__(self, to: Sink, version: Version = 1) -> None:
        self._to = to
        start = _MAGIC + f"{version}\n".encode()
        self._chain = hashlib.sha256(start).digest()
        self.written = 0
        self._write(start)

    def put(self, kind: Kind, payload: bytes) -> None:
        """Write a frame other than one of data."""
        self._put(kind, hashlib.sha256(payload).digest(), payload)

    def put_data(self, offset: int, data: bytes, digest: bytes) -> None:
        """Write a frame of data; ``digest`` is what ``data_digest`` says of it."""
        self._put(b"D", digest, _OFFSET.pack(offset), data)

    def flush(self) -> None:
        """Let the other side have all that was written."""
        self._to.flush()

    def _put(self, kind: Kind, digest: bytes, *payload: bytes) -> None:
        head = _HEAD.pack(kind, sum(map(len, payload)))
        self._chain = _chained(self._chain, head, digest)
        for piece in (head, *payload, self._chain):
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        self._to.write(piece)
        self.written += len(piece)


class FrameReader:
    """Reads an archive's frames and raises InvalidSpec for whatever is not exactly that.

    ``where``: what is being read, for messages.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._at = 0
        self.where = "its header"
        start = self._read(len(_MAGIC))
        if start != _MAGIC:
            raise InvalidSpec(
                "this is not an archive of lab",
                hint="`lab image export`, `lab template export` and `lab snapshot export` write"
                " archives",
            )
        version = self._read(2)
        if version not in _VERSIONS:
            raise InvalidSpec(
                "the archive is in another version of the format, or damaged in its first line",
                hint="import it with the version of lab that wrote it",
            )
        self.version = _VERSIONS[version]
        self._chain = hashlib.sha256(start + version).digest()

    def get(self) -> tuple[Kind, bytes, bytes]:
        """The next frame: kind, payload and the payload's digest."""
        began = self._at
        head = self._read(_HEAD.size)
        kind, length = _HEAD.unpack(head)
        if kind not in (b"H", b"W", b"D", b"E", b"Z") or length > LIMIT + _OFFSET.size:
            raise self.damaged("it is not a frame", began)
        payload = self._read(length)
        digest = hashlib.sha256(payload).digest()
        self._chain = _chained(self._chain, head, digest)
        if self._read(_DIGEST) != self._chain:
            raise self.damaged("checksum mismatch", began)
        return cast("Kind", kind), payload, digest

    def expect(self, kind: Kind) -> bytes:
        """The payload of the next frame, which is of that kind."""
        began = self._at
        found, payload, _ = self.get()
        if found != kind:
            raise self.damaged(f"frame {found.decode()}, expected {kind.decode()}", began)
        return payload

    def split(self, payload: bytes) -> tuple[int, bytes]:
        """Offset and bytes of a frame of data."""
        if len(payload) <= _OFFSET.size:
            raise self.damaged("a data frame is empty")
        return int(_OFFSET.unpack_from(payload)[0]), payload[_OFFSET.size :]

    def close(self) -> None:
        """Nothing may follow."""
        if self._source.read(1):
            raise self.damaged("data after its end")

    def damaged(self, why: str, at: int | None = None) -> InvalidSpec:
        """The error for what is found at byte ``at`` of the archive, or where we are."""
        place = self._at if at is None else at
        return InvalidSpec(
            f"the archive is damaged: {why} (at byte {place}, in {self.where})",
            hint="export or copy it again",
        )

    def _read(self, length: int) -> bytes:
        parts = []
        left = length
        while left:
            part = self._source.read(left)
            if not part:
                raise InvalidSpec(
                    f"the archive ends too early, after byte {self._at}, in {self.where}",
                    hint="it was cut off: run the command again;"
                    " --resume and --to continue where it ended",
                )
            parts.append(part)
            left -= len(part)
            self._at += len(part)
        return b"".join(parts)


def _chained(before: bytes, head: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(before + head + digest).digest()
