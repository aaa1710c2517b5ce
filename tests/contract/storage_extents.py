"""The contract of reading a snapshot as extents, and of writing a volume from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.errors import Conflict, InvalidSpec, NotFound
from lab.storage import EXTENT, Content, Extent, Storage, VolumeSnapshot
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
    origin,
    vol,
)


class Extents:
    def test_written_is_what_was_read(self, place: Place, storage: Storage) -> None:
        """Protects copies of disks: whole, in several layers, and independent of the original."""
        frozen = layered(place, storage)
        with storage.read(frozen) as content:
            made = storage.write(vol("a"), "copied", content, TAGS)
        assert content.size == 2 * SIZE
        for name in ("branch", "ground"):
            storage.destroy(vol(name))
        assert made == VolumeSnapshot(vol("a"), "copied", 2 * SIZE)
        assert storage.snapshots(vol("a")) == [made]
        check_layers(place, storage, made)
        storage.persist([made])
        assert storage.sweep() == []

    def test_extents_are_bounded_and_ascend(self, place: Place, storage: Storage) -> None:
        """Protects the memory of the process, and readers that compare two volumes in step."""
        with storage.read(layered(place, storage)) as content:
            extents = list(content.extents)
        end = 0
        for offset, data in extents:
            assert end <= offset
            assert 0 < len(data) <= EXTENT
            end = offset + len(data)
        assert end <= content.size
        assert MIB < sum(len(data) for _, data in extents) <= 4 * EXTENT, "holes are not read"
        assert MIB < content.data <= 4 * EXTENT

    def test_read_nothing(self, place: Place, storage: Storage) -> None:
        origin(place, storage)
        for name, label in ((vol("absent"), "formed"), (vol("origin"), "absent")):
            with pytest.raises(NotFound), storage.read(VolumeSnapshot(name, label, SIZE)):
                pytest.fail("there is no such snapshot")

    def test_a_reader_may_stop_at_any_place(self, place: Place, storage: Storage) -> None:
        """Protects from leftovers: an interrupted export ends in the middle of a volume."""
        frozen = layered(place, storage)
        before = names(storage)
        with storage.read(frozen):
            pass
        with storage.read(frozen) as content:
            next(content.extents)
        with pytest.raises(KeyboardInterrupt), storage.read(frozen) as content:
            interrupted(content.extents)
        assert names(storage) == before
        assert storage.sweep() == []
        storage.destroy(vol("branch"))
        assert storage.sweep() == []

    def test_write_refuses_what_exists(self, place: Place, storage: Storage) -> None:
        origin(place, storage)
        extents = iter([(0, b"x" * 512)])
        with pytest.raises(Conflict, match="labs/origin/n1/os exists"):
            storage.write(vol("origin"), "copied", Content(SIZE, 512, extents), {})
        assert next(extents), "nothing was read"
        assert labels(storage, vol("origin")) == ["formed"]

    def test_what_no_volume_can_have_is_refused(self, storage: Storage) -> None:
        content = Content(SIZE, 0, iter(()))
        with pytest.raises(InvalidSpec, match="cannot name a snapshot"):
            storage.write(vol("a"), "../x", content, {})
        with pytest.raises(InvalidSpec, match="a volume cannot have 7 bytes"):
            storage.write(vol("a"), "x", replace(content, size=7), {})
        with pytest.raises(InvalidSpec, match="the key of a tag"):
            storage.write(vol("a"), "x", content, {"A": ""})
        assert names(storage) == []
        assert storage.sweep() == []

    def test_extents_out_of_place_leave_nothing(self, storage: Storage) -> None:
        for extents in (
            [(SIZE - 1, b"ab")],  # beyond the end
            [(512, b"a"), (0, b"b")],  # not ascending
            [(0, b"ab"), (1, b"c")],  # overlapping
        ):
            with pytest.raises(InvalidSpec, match="labs/a/n1/os is damaged: an extent is out of"):
                storage.write(vol("a"), "x", Content(SIZE, 2, iter(extents)), {})
        assert names(storage) == []
        assert storage.sweep() == []

    def test_an_error_of_the_source_leaves_nothing(self, storage: Storage) -> None:
        """Protects the cause: it is what is reported, whatever the storage does about it."""

        def broken() -> Iterator[Extent]:
            yield 0, os.urandom(MIB)
            raise RuntimeError("the source is broken")

        with pytest.raises(RuntimeError, match="the source is broken"):
            storage.write(vol("a"), "x", Content(SIZE, 2 * MIB, broken()), {})
        assert names(storage) == []
        assert storage.sweep() == []
