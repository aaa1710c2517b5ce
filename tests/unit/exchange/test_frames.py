"""Protects imports: any damage of an archive on its way is found, and its place reported."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from pathlib import Path

import pytest

from lab.errors import InvalidSpec
from lab.exchange.frames import LIMIT, FrameReader, FrameWriter
from tests.support.exchange_archives import CONTENT, archive, expected, received


class Trickle(io.BytesIO):
    """Gives three bytes at a time, as a socket may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3 if size is None or size < 0 else min(size, 3))


def _frames(count: int = 3) -> bytes:
    to = io.BytesIO()
    writer = FrameWriter(to)
    for number in range(count):
        writer.put(b"H", b"payload %d" % number)
    assert writer.written == len(to.getvalue())
    return to.getvalue()


def _read(stream: bytes, count: int = 3) -> None:
    reader = FrameReader(io.BytesIO(stream))
    for _ in range(count):
        reader.get()
    reader.close()


def test_round_trip() -> None:
    reader = FrameReader(Trickle(_frames()))
    assert [reader.get()[:2] for _ in range(3)] == [(b"H", b"payload %d" % n) for n in range(3)]
    reader.close()


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    stream = _frames()
    for at in range(len(stream)):
        for bit in range(8):
            damaged = bytearray(stream)
            damaged[at] ^= 1 << bit
            with pytest.raises(InvalidSpec):
                _read(bytes(damaged))
        with pytest.raises(InvalidSpec, match=f"ends too early, after byte {at},"):
            _read(stream[:at])
    with pytest.raises(InvalidSpec, match="after its end"):
        _read(stream + b"\0")


def test_frames_out_of_order_are_noticed() -> None:
    """Protects against whole frames that are lost, doubled or swapped: each is good by itself."""
    stream, magic = _frames(), len(b"lab-archive 1\n")
    length = (len(stream) - magic) // 3
    first, second, third = (stream[magic + n * length :][:length] for n in range(3))
    for order in ([second, third], [first, third], [first, first, third], [second, first, third]):
        with pytest.raises(InvalidSpec, match="checksum"):
            _read(stream[:magic] + b"".join(order), len(order))


@pytest.mark.parametrize("head", [struct.pack(">cI", b"D", 1 << 31), b"x\0\0\0\1"])
def test_a_hostile_frame_is_not_even_read(head: bytes) -> None:
    """Protects memory: a length that lies makes nobody read gigabytes."""
    reader = FrameReader(io.BytesIO(_frames(0) + head + bytes(100)))
    with pytest.raises(InvalidSpec, match="it is not a frame"):
        reader.get()


def test_what_is_no_archive_is_said() -> None:
    with pytest.raises(InvalidSpec, match="not an archive of lab"):
        FrameReader(io.BytesIO(b"QFI\xfb" + bytes(100)))
    with pytest.raises(InvalidSpec, match="another version"):
        FrameReader(io.BytesIO(b"lab-archive 3\n" + bytes(100)))


def test_a_good_frame_of_the_wrong_kind(tmp_path: Path) -> None:
    """Protects the structure: frames with right checksums in an invalid order."""
    to = io.BytesIO()
    writer = FrameWriter(to)
    writer.put(b"Z", b"")
    with pytest.raises(InvalidSpec, match="frame Z, expected H"):
        received(to.getvalue(), tmp_path)


def test_every_cut_of_an_archive_is_reported_with_its_part(tmp_path: Path) -> None:
    """Protects all or nothing: truncation at each place, and nothing is left behind."""
    stream = archive()
    parts = set()
    for at in [*range(0, len(stream) - 1, 997), *range(len(stream) - 200, len(stream))]:
        with pytest.raises(InvalidSpec) as caught:
            received(stream[:at], tmp_path)
        assert f"after byte {at}," in caught.value.what
        found = re.search(r", in (.*)$", caught.value.what)
        assert found
        parts.add(found[1])
        assert list(tmp_path.iterdir()) == []
    assert parts >= {"its header", "image/os (part 1 of 3)", "image/kernel (part 2 of 3)"}
    assert received(stream, tmp_path) == expected()
    assert list(tmp_path.iterdir()) == []


def test_every_flip_in_an_archive_is_reported(tmp_path: Path) -> None:
    stream = archive()
    for at in [*range(0, len(stream), 1499), *range(len(stream) - 150, len(stream), 7)]:
        damaged = bytearray(stream)
        damaged[at] ^= 0x10
        with pytest.raises(InvalidSpec, match=r"damaged|invalid|not an archive|version|cut"):
            received(bytes(damaged), tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_data_has_the_digest_of_its_place_too() -> None:
    """Protects a kept chunk from being taken for the same one elsewhere."""
    to = io.BytesIO()
    writer = FrameWriter(to)
    digest = hashlib.sha256(struct.pack(">Q", 5) + b"data").digest()
    writer.put_data(5, b"data", digest)
    reader = FrameReader(io.BytesIO(to.getvalue()))
    kind, payload, found = reader.get()
    assert (kind, found) == (b"D", digest)
    assert reader.split(payload) == (5, b"data")


def test_the_limit_leaves_room_for_the_largest_chunk() -> None:
    assert max(len(d) for chunks in CONTENT.values() for _, d in chunks) < LIMIT
    to = io.BytesIO()
    writer = FrameWriter(to)
    data = bytes(LIMIT)
    writer.put_data(0, data, hashlib.sha256(bytes(8) + data).digest())
    assert FrameReader(io.BytesIO(to.getvalue())).get()[0] == b"D"
