"""One part of an archive as it arrives: a file, and next to it what of the file is good.

The index has a record for each chunk that is in the file: offset (64 bits), length (32 bits)
and digest. It is written after the chunk, and what it says is checked against the file when
a transfer resumes: so nothing needs to be synced, whatever ends the process or the machine.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from lab.errors import InvalidSpec
from lab.exchange.content import GRAIN, Chunk
from lab.exchange.frames import LIMIT, data_digest
from lab.exchange.header import Part
from lab.paths import writing
from lab.storage import sparse
from lab.values import dataclass

_RECORD = struct.Struct(">QI32s")


@dataclass(frozen=True)
class Record:
    """A chunk: where it is, how long, and its digest."""

    offset: int
    length: int
    digest: bytes

    @property
    def end(self) -> int:
        """Where the next one may begin."""
        return self.offset + self.length

    def packed(self) -> bytes:
        """As it is in an index."""
        return _RECORD.pack(self.offset, self.length, self.digest)


class Tally:
    """The digest and the end of a part, chunk by chunk; both sides keep one and compare them."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.end = 0

    def add(self, record: Record) -> None:
        """The next chunk."""
        self._digest.update(record.packed())
        self.end = record.end

    def digest(self) -> bytes:
        """Of all chunks so far."""
        return self._digest.digest()


class Arrival:
    """The file ``path`` of ``part``, with its index; opened, it has what of it is good."""

    def __init__(self, path: Path, part: Part) -> None:
        self.path = path
        self._part = part
        self._records: list[Record] = []
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._index = os.open(_index(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take_good()

    def __enter__(self) -> Arrival:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        os.close(self._file)
        os.close(self._index)

    @property
    def chunks(self) -> int:
        """How many chunks are here and good."""
        return len(self._records)

    def put(self, number: int, offset: int, data: bytes, digest: bytes) -> None:
        """Chunk ``number``, from 0, which is here or the next; raises InvalidSpec, HostUnfit."""
        record = Record(offset, len(data), digest)
        if number < len(self._records):
            if self._records[number] == record:
                return
            self._cut(number)  # another content than the one that arrived earlier
        if number != len(self._records) or not self._fits(record):
            raise InvalidSpec(f"a chunk of {self._part.name} is out of place")
        with writing(self.path):
            sparse.fill(self._file, data, offset)
            sparse.fill(self._index, record.packed(), number * _RECORD.size)
        self._records.append(record)

    def finish(self, chunks: int, size: int, digest: bytes) -> None:
        """The part is complete if it is ``chunks`` long and its tally is this; else InvalidSpec."""
        self._cut(chunks)
        tally = Tally()
        for record in self._records:
            tally.add(record)
        wanted = self._part.size or tally.end
        if (len(self._records), size, digest) != (chunks, wanted, tally.digest()):
            self._cut(0)
            raise InvalidSpec(
                f"{self._part.name} differs from the data of an earlier transfer",
                hint="run the same command again: the part is sent again",
            )
        os.ftruncate(self._file, size)

    def _take_good(self) -> None:
        """Take the records whose chunks are in the file, up to the first one that is not."""
        raw = os.pread(self._index, os.fstat(self._index).st_size, 0)
        for at in range(0, len(raw) - _RECORD.size + 1, _RECORD.size):
            record = Record(*_RECORD.unpack_from(raw, at))
            if not self._fits(record) or record.end > os.fstat(self._file).st_size:
                break
            data = os.pread(self._file, record.length, record.offset)
            if data_digest(record.offset, data) != record.digest:
                break
            self._records.append(record)
        self._cut(len(self._records))

    def _cut(self, count: int) -> None:
        """Keep ``count`` chunks: what is behind them becomes a hole again."""
        del self._records[count:]
        end = self._records[-1].end if self._records else 0
        os.ftruncate(self._index, len(self._records) * _RECORD.size)
        os.ftruncate(self._file, end)
        os.ftruncate(self._file, max(end, self._part.size))

    def _fits(self, record: Record) -> bool:
        """Whether it can be the next; smaller ones would take more memory than they bring."""
        end, size = self._records[-1].end if self._records else 0, self._part.size
        if not 0 < record.length <= LIMIT:
            return False
        if self._part.form == "stream":
            return record.offset == end and end % LIMIT == 0
        if record.offset % GRAIN or (record.length % GRAIN and record.end != size):
            return False
        return end <= record.offset and record.end <= size


def chunks(path: Path) -> Iterator[Chunk]:
    """The chunks of a part that is complete, as they came."""
    raw = _index(path).read_bytes()
    with path.open("rb", buffering=0) as file:
        for offset, length, _ in _RECORD.iter_unpack(raw):
            yield offset, os.pread(file.fileno(), length, offset)


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")
