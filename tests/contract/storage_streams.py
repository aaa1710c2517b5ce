"""The contract of sending and receiving, damaged streams and full disks included."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.storage import Content, Extent, Storage, VolumeSnapshot
from tests.contract.storage_place import (
    MIB,
    SIZE,
    TAGS,
    Place,
    check_layers,
    interrupted,
    labels,
    layered,
    names,
    vol,
)

SMALL_ROOM = 16 * MIB
"""About what fits into the place that the fixture ``small_place`` gives."""


class Streams:
    def test_received_is_what_was_sent(self, place: Place, storage: Storage) -> None:
        stream = _sent(place, storage)
        storage.destroy(vol("branch"))
        made = storage.receive(vol("a"), io.BytesIO(stream), TAGS)
        assert made == VolumeSnapshot(vol("a"), "s.1", 2 * SIZE)
        assert storage.snapshots(vol("a")) == [made]
        check_layers(place, storage, made)

    def test_holes_are_not_sent(self, place: Place, storage: Storage) -> None:
        assert len(_sent(place, storage)) < 4 * MIB

    def test_send_nothing(self, place: Place, storage: Storage) -> None:
        _sent(place, storage)
        for name, label in ((vol("absent"), "s.1"), (vol("branch"), "absent")):
            with pytest.raises(NotFound), storage.send(VolumeSnapshot(name, label, SIZE)):
                pytest.fail("there is no such snapshot")

    def test_a_receiver_may_stop_at_any_place(self, place: Place, storage: Storage) -> None:
        frozen = layered(place, storage)
        with storage.send(frozen) as pieces:
            next(pieces)
        with pytest.raises(KeyboardInterrupt), storage.send(frozen) as pieces:
            interrupted(pieces)
        assert storage.sweep() == []
        storage.destroy(vol("branch"))
        assert storage.sweep() == []

    def test_receive_refuses_what_exists(self, place: Place, storage: Storage) -> None:
        stream = _sent(place, storage)
        with pytest.raises(Conflict):
            storage.receive(vol("branch"), io.BytesIO(stream), {})
        assert labels(storage, vol("branch")) == ["s.1"]

    def test_cut_streams_are_refused(self, place: Place, storage: Storage) -> None:
        stream = _sent(place, storage)
        cuts = [0, 1, 40, 150, len(stream) // 3, len(stream) // 2, len(stream) - 1]
        _all_refused(storage, [stream[:cut] for cut in cuts])

    def test_flipped_streams_are_refused(self, place: Place, storage: Storage) -> None:
        stream = _sent(place, storage)
        places = {
            *range(0, 240, 240 // place.times(48)),
            len(stream) // 3,
            len(stream) // 2,
            len(stream) - 1,
        }
        _all_refused(storage, [_flip(stream, at) for at in places])

    def test_longer_and_other_streams_are_refused(self, place: Place, storage: Storage) -> None:
        stream = _sent(place, storage)
        _all_refused(storage, [stream + b"x", stream + stream, b"\n", b"{}\n", os.urandom(5000)])


class FullDisks:
    def test_import_into_a_full_place(self, small_place: Place, tmp_path: Path) -> None:
        storage = small_place.open("home")
        before = storage.space().free
        source = tmp_path / "large.raw"
        source.write_bytes(os.urandom(2 * SMALL_ROOM))
        with pytest.raises(HostUnfit, match=r"32M needed, [\d.]+M free"):
            storage.import_raw(vol("a"), source, {})
        assert source.exists()
        _nothing_left(storage, before)

    def test_receive_into_a_full_place(
        self, small_place: Place, place: Place, storage: Storage
    ) -> None:
        volume = storage.create(vol("large"), 3 * SMALL_ROOM, {})
        place.put(volume, 0, os.urandom(2 * SMALL_ROOM))
        with storage.send(storage.snapshot([vol("large")], "x")[0]) as pieces:
            stream = io.BytesIO(b"".join(pieces))
        small = small_place.open("home")
        before = small.space().free
        with pytest.raises(HostUnfit, match=r"needed, [\d.]+M free"):
            small.receive(vol("a"), stream, {})
        _nothing_left(small, before)

    @pytest.mark.parametrize("known", [True, False])
    def test_write_into_a_full_place(self, small_place: Place, *, known: bool) -> None:
        """Protects other labs' guests: what is known not to fit is refused before it is read."""
        storage = small_place.open("home")
        before = storage.space().free
        size = 4 * SMALL_ROOM
        read = []

        def extents() -> Iterator[Extent]:
            for offset in range(0, size, MIB):
                read.append(offset)
                yield offset, os.urandom(MIB)

        content = Content(size, size if known else 0, extents())
        with pytest.raises(HostUnfit, match=r"no space on .*needed, [\d.]+[MKB]* free"):
            storage.write(vol("a"), "x", content, {})
        assert bool(read) is not known
        _nothing_left(storage, before)

    def test_snapshot_in_a_full_place_is_all_or_none(self, small_place: Place) -> None:
        storage = small_place.open("home")
        volumes = [vol("a", "n1"), vol("a", "n2")]
        for volume in volumes:
            # two volumes and one copy fit, two copies do not
            content = os.urandom(19 * SMALL_ROOM // 64)
            small_place.put(storage.create(volume, SMALL_ROOM, {}), 0, content)
        before = storage.space().free
        try:
            storage.snapshot(volumes, "x")
        except HostUnfit:
            assert [labels(storage, volume) for volume in volumes] == [[], []]
            assert storage.space().free > before - MIB
        else:
            assert [labels(storage, volume) for volume in volumes] == [["x"], ["x"]]
        assert storage.sweep() == []


def _sent(place: Place, storage: Storage) -> bytes:
    with storage.send(layered(place, storage)) as pieces:
        return b"".join(pieces)


def _flip(stream: bytes, at: int) -> bytes:
    return stream[:at] + bytes([stream[at] ^ 0x10]) + stream[at + 1 :]


def _all_refused(storage: Storage, streams: list[bytes]) -> None:
    before = names(storage)
    for stream in streams:
        with pytest.raises(InvalidSpec):
            storage.receive(vol("bad"), io.BytesIO(stream), {})
    assert names(storage) == before
    assert storage.sweep() == []


def _nothing_left(storage: Storage, free_before: int) -> None:
    assert storage.volumes() == []
    assert storage.sweep() == []
    assert storage.space().free > free_before - 2 * MIB  # a pool's own records grow
