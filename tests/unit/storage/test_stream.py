"""Protects the stream format: every damage is noticed, readers may be slow."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lab.errors import InvalidSpec
from lab.storage.stream import StreamHeader, StreamReader, write_stream

SIZE = 1 << 20


class Trickle(io.BytesIO):
    """Gives three bytes at a time, as a socket may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3 if size is None or size < 0 else min(size, 3))


def _stream(extents: list[tuple[int, bytes]], size: int = SIZE) -> bytes:
    to = io.BytesIO()
    data = sum(len(piece) for _, piece in extents)
    write_stream(to, StreamHeader("formed", size, data), extents)
    return to.getvalue()


def _read(stream: bytes) -> list[tuple[int, bytes]]:
    return list(StreamReader(io.BytesIO(stream)).extents())


@pytest.mark.parametrize("extents", [[], [(0, b"a" * 512)], [(512, b"b" * 700), (4096, b"c")]])
def test_round_trip(extents: list[tuple[int, bytes]]) -> None:
    reader = StreamReader(Trickle(_stream(extents)))
    assert (reader.header.label, reader.header.size) == ("formed", SIZE)
    assert list(reader.extents()) == extents


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    stream = _stream([(0, b"abc"), (512, b"defg")])
    for at in range(len(stream)):
        for bit in range(8):
            damaged = bytearray(stream)
            damaged[at] ^= 1 << bit
            with pytest.raises(InvalidSpec):
                _read(bytes(damaged))
        with pytest.raises(InvalidSpec):
            _read(stream[:at])
    with pytest.raises(InvalidSpec, match="after its end"):
        _read(stream + b"\0")


@pytest.mark.parametrize(
    "extents",
    [
        pytest.param([(SIZE - 1, b"ab")], id="beyond the end"),
        pytest.param([(512, b"a"), (0, b"b")], id="not ascending"),
        pytest.param([(0, b"ab"), (1, b"c")], id="overlapping"),
        pytest.param([(0, b"")], id="empty"),
    ],
)
def test_extents_out_of_place(extents: list[tuple[int, bytes]]) -> None:
    with pytest.raises(InvalidSpec, match="out of place"):
        _read(_stream(extents))


def test_label_cannot_escape() -> None:
    to = io.BytesIO()
    write_stream(to, StreamHeader("../../x", SIZE, 0), [])
    with pytest.raises(InvalidSpec, match="cannot name"):
        _read(to.getvalue())


def test_write_to_makes_a_sparse_file(tmp_path: Path) -> None:
    size = 64 << 20
    path = tmp_path / "flat"
    StreamReader(io.BytesIO(_stream([(size - 4, b"tail")], size))).write_to(path)
    stat = path.stat()
    assert stat.st_size == size
    assert stat.st_blocks * 512 <= 65536
