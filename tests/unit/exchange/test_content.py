"""Protects what is sent: all of it, no more of it than must be, and always in the same chunks."""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Timer

import pytest

from lab.exchange.content import GRAIN, Chunk, of_changes, of_file, of_stream, of_volume
from lab.exchange.frames import LIMIT
from lab.imagebuild.manifest import digest, digest_extents
from lab.storage import EXTENT, Content, Extent
from lab.units import MIB


def _random(size: int, seed: int, *, share: float = 0.3) -> bytes:
    """Runs of data and zeros whose ends are at no round places."""
    chance, content, at = random.Random(seed), bytearray(size), 0
    while at < size:
        length = min(chance.randrange(1, 200_000), size - at)
        if chance.random() < share:
            content[at : at + length] = chance.randbytes(length)
        at += length
    return bytes(content)


def _read(content: bytes, *, pieces: int = EXTENT) -> nullcontext[Content]:
    """As a storage reads it: all that is not zeros, in extents of its own choice."""
    extents = [
        (at, content[at : at + pieces])
        for at in range(0, len(content), pieces)
        if any(content[at : at + pieces])
    ]
    return nullcontext(Content(len(content), len(content), iter(extents)))


def _applied(base: bytes, chunks: list[Chunk], size: int) -> bytes:
    file = bytearray(base[:size].ljust(size, b"\0"))
    for offset, data in chunks:
        assert 0 < len(data) <= LIMIT
        assert offset % GRAIN == 0
        assert len(data) % GRAIN == 0 or offset + len(data) == size
        file[offset : offset + len(data)] = data
    return bytes(file)


@pytest.mark.parametrize("size", [0, 5, GRAIN, 3 * MIB, 3 * MIB + 700])
def test_a_file_and_a_volume_of_one_content_are_the_same_chunks(tmp_path: Path, size: int) -> None:
    """Protects resuming: where a file system keeps its holes makes no difference."""
    content = _random(size, size)
    dense, sparse = tmp_path / "dense", tmp_path / "sparse"
    dense.write_bytes(content)
    with sparse.open("wb") as file:
        file.truncate(size)
        for at in range(0, size, 4096):
            if any(content[at : at + 4096]):
                file.seek(at)
                file.write(content[at : at + 4096])
    chunks = list(of_file(dense))
    assert _applied(b"", chunks, size) == content
    assert list(of_file(sparse)) == chunks
    if size % 512 == 0 and size:
        for pieces in (512 * 7, EXTENT):
            assert list(of_volume(partial(_read, content, pieces=pieces))) == chunks


def test_zeros_are_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "ram"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(40 * MIB)
        file.write(b"x" + bytes(4 * MIB) + b"y")
    assert sum(len(data) for _, data in of_file(path)) == 2 * GRAIN


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB])
def test_changes_are_all_that_differs(size: int) -> None:
    """Protects templates: base and changes make the disk, also where it has zeros."""
    base = _random(2 * MIB, 1, share=0.6)
    top = bytearray(base.ljust(size, b"\0"))
    top[100_000:300_000] = bytes(200_000)
    top[700_000:700_003] = b"abc"
    top[size - 512 :] = os.urandom(512)
    chunks = list(of_changes(partial(_read, base), partial(_read, bytes(top))))
    assert _applied(base, chunks, size) == top
    assert sum(len(data) for _, data in chunks) < 200_000 + 4 * GRAIN


def test_no_changes() -> None:
    base = _random(3 * MIB, 2)
    assert list(of_changes(partial(_read, base), partial(_read, base))) == []


@pytest.mark.parametrize("length", [1000, MIB, 5 * MIB])
def test_a_stream_goes_as_it_is(length: int) -> None:
    """Protects resuming: the chunks are the same in whatever pieces the storage sends it."""
    content = os.urandom(3 * MIB + 5)
    pieces = (content[at : at + length] for at in range(0, len(content), length))
    chunks = list(of_stream(lambda: nullcontext(pieces)))
    assert b"".join(data for _, data in chunks) == content
    assert [offset for offset, _ in chunks] == [0, MIB, 2 * MIB, 3 * MIB]


def test_a_stream_ends_when_nobody_reads_on_and_with_its_cause() -> None:
    """Protects from a `zfs send` that stays, and the cause: not that a stream ended, but why."""
    closed = []

    @contextmanager
    def send(*, broken: bool) -> Iterator[Iterator[bytes]]:
        def endless() -> Iterator[bytes]:
            yield b""
            while True:
                yield bytes(MIB)
                if broken:
                    raise OSError("the disk is broken")

        try:
            yield endless()
        finally:
            closed.append(broken)

    chunks = of_stream(partial(send, broken=False))
    assert next(chunks) == (0, bytes(MIB))
    chunks.close()
    with pytest.raises(OSError, match="the disk is broken"):
        list(of_stream(partial(send, broken=True)))
    assert closed == [False, True]


def test_a_stream_is_closed_once_its_next_piece_is_made() -> None:
    """Protects what an interrupted export reports: a generator that runs cannot be closed."""
    asked, goes_on, closed = Event(), Event(), []

    def pieces() -> Generator[bytes, None, None]:
        try:
            yield bytes(MIB)
            asked.set()
            assert goes_on.wait(20)
            yield bytes(MIB)
        finally:
            closed.append(True)

    chunks = of_stream(lambda: closing(pieces()))
    next(chunks)
    assert asked.wait(20)
    Timer(0.2, goes_on.set).start()
    chunks.close()
    assert closed == [True]


def test_what_is_read_is_closed_when_nobody_reads_on() -> None:
    """Protects from leftovers: a storage may have made a clone to read from."""
    closed = []

    @contextmanager
    def read(name: str) -> Iterator[Content]:
        def endless() -> Iterator[Extent]:
            for at in range(0, 1 << 40, MIB):
                yield at, name[:1].encode() * MIB

        try:
            yield Content(1 << 40, 1 << 40, endless())
        finally:
            closed.append(name)

    a, b, c = (partial(read, name) for name in "abc")
    for chunks in (of_volume(a), of_changes(b, c)):
        next(chunks)
        chunks.close()
    assert closed == ["a", "c", "b"]


@pytest.mark.parametrize("size", [0, 512, 4 * MIB, 9 * MIB + 512])
def test_a_digest_of_extents_is_that_of_the_file(tmp_path: Path, size: int) -> None:
    """Protects images that arrive as a stream of the storage: their content is compared, too."""
    content = _random(size, 3)
    path = tmp_path / "disk"
    path.write_bytes(content)
    blocks = (content[at : at + 4 * MIB] for at in range(0, size, 4 * MIB))
    whole = sha256(b"".join(sha256(block).digest() for block in blocks)).hexdigest()
    assert digest_extents(size, of_file(path)) == digest(path) == whole
