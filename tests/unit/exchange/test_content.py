"""Protects what is sent: all of it, no more of it than must be, and always in the same chunks."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from lab.errors import InvalidSpec
from lab.exchange.content import GRAIN, Chunk, of_changes, of_file, of_stream, of_volume
from lab.exchange.frames import LIMIT
from lab.exchange.pipes import reading
from lab.imagebuild.manifest import digest, digest_extents
from lab.storage.stream import CHUNK, StreamHeader, write_stream
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


def _send(content: bytes, to: BinaryIO, *, pieces: int = CHUNK) -> None:
    """As a storage sends it: all that is not zeros, in extents of its own choice."""
    extents = [
        (at, content[at : at + pieces])
        for at in range(0, len(content), pieces)
        if any(content[at : at + pieces])
    ]
    data = sum(len(piece) for _, piece in extents)
    write_stream(to, StreamHeader("formed", len(content), data), extents)


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
        for pieces in (512 * 7, CHUNK):
            assert list(of_volume(partial(_send, content, pieces=pieces))) == chunks


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
    chunks = list(of_changes(partial(_send, base), partial(_send, bytes(top))))
    assert _applied(base, chunks, size) == top
    assert sum(len(data) for _, data in chunks) < 200_000 + 4 * GRAIN


def test_no_changes() -> None:
    base = _random(3 * MIB, 2)
    assert list(of_changes(partial(_send, base), partial(_send, base))) == []


def test_a_stream_goes_as_it_is() -> None:
    content = os.urandom(3 * MIB + 5)
    chunks = list(of_stream(lambda to: to.write(content)))
    assert b"".join(data for _, data in chunks) == content
    assert [offset for offset, _ in chunks] == [0, MIB, 2 * MIB, 3 * MIB]


def test_the_senders_error_is_the_one_that_is_reported() -> None:
    """Protects the cause: not that the stream ended, but why."""

    def broken(to: BinaryIO) -> None:
        to.write(b"{")
        raise OSError("the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        list(of_volume(broken))


def test_a_sender_ends_when_nobody_reads_on() -> None:
    def endless(to: BinaryIO) -> None:
        while True:
            to.write(bytes(MIB))

    with reading(endless) as source:
        assert source.read(3) == bytes(3)
    chunks = of_stream(endless)
    next(chunks)
    chunks.close()


@pytest.mark.parametrize("size", [0, 512, 4 * MIB, 9 * MIB + 512])
def test_a_digest_of_extents_is_that_of_the_file(tmp_path: Path, size: int) -> None:
    """Protects images that arrive as a stream of the storage: their content is compared, too."""
    content = _random(size, 3)
    path = tmp_path / "disk"
    path.write_bytes(content)
    assert digest_extents(size, list(of_file(path))) == digest(path)
    if size:
        with pytest.raises(InvalidSpec):
            list(of_volume(lambda to: to.write(b"something else\n")))
