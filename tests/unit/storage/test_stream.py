"""Protects the stream format: every damage is noticed, readers may be slow."""

from __future__ import annotations

import io

import pytest

from lab.errors import InvalidSpec
from lab.storage import EXTENT, Content, Extent
from lab.storage.stream import StreamHeader, header_bytes, received, sent

SIZE = 1 << 20


class Trickle(io.BytesIO):
    """Gives three bytes at a time, as a socket may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3 if size is None or size < 0 else min(size, 3))


def _stream(extents: list[Extent], *, label: str = "formed") -> bytes:
    data = sum(len(piece) for _, piece in extents)
    return b"".join(sent(label, Content(SIZE, data, iter(extents))))


def _read(stream: bytes) -> list[Extent]:
    return list(received(io.BytesIO(stream))[1].extents)


@pytest.mark.parametrize("extents", [[], [(0, b"a" * 512)], [(512, b"b" * 700), (4096, b"c")]])
def test_round_trip(extents: list[Extent]) -> None:
    label, content = received(Trickle(_stream(extents)))
    assert (label, content.size) == ("formed", SIZE)
    assert content.data == sum(len(piece) for _, piece in extents)
    assert list(content.extents) == extents


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


@pytest.mark.parametrize("piece", [b"", bytes(EXTENT + 1)])
def test_an_extent_is_bounded(piece: bytes) -> None:
    """Protects memory from a stream that says that gigabytes follow."""
    with pytest.raises(InvalidSpec, match="out of place"):
        _read(_stream([(0, piece)]))


def test_label_cannot_escape() -> None:
    with pytest.raises(InvalidSpec, match="cannot name"):
        _read(_stream([], label="../../x"))


def test_a_stream_of_another_storage_is_refused() -> None:
    """Protects who imports an archive of `--native`: what to do is said."""
    stream = header_bytes(StreamHeader("formed", SIZE, 0), "lab-volume-zfs")
    with pytest.raises(InvalidSpec, match="in the format lab-volume-zfs") as refused:
        received(io.BytesIO(stream))
    assert refused.value.hint == "export it again without --native"
