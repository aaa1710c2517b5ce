"""The contract of writing into a volume from outside: as if a guest had written it."""

from __future__ import annotations

import os

import pytest

from lab.errors import InvalidSpec
from lab.names import VolumeName
from lab.storage import Storage
from lab.storage.overwrite import GRAIN, overwrite
from tests.contract.storage_place import MIB, SIZE, Place, vol


class Overwrites:
    def test_what_was_written_is_read_zeros_too(self, place: Place, storage: Storage) -> None:
        """Protects imported templates: their disks are the image's but for what is written."""
        below = os.urandom(2 * MIB)
        place.put(storage.create(vol("ground"), SIZE, {}), 0, below)
        (base,) = storage.snapshot([vol("ground")], "x")
        volume = storage.clone(base, vol("a"), {}, size=2 * SIZE)
        news = os.urandom(3 * GRAIN)
        overwrite(volume, [(GRAIN, bytes(GRAIN)), (MIB, news), (2 * SIZE - GRAIN, news[:GRAIN])])
        (frozen,) = storage.snapshot([vol("a")], "formed")
        for copy in (storage.get(vol("a")), storage.clone(frozen, vol("b"), {})):
            assert place.get(copy, 0, GRAIN) == below[:GRAIN]
            assert place.get(copy, GRAIN, GRAIN) == bytes(GRAIN)
            assert place.get(copy, 2 * GRAIN, 512) == below[2 * GRAIN : 2 * GRAIN + 512]
            assert place.get(copy, MIB, len(news)) == news
            assert place.get(copy, 2 * SIZE - GRAIN, GRAIN) == news[:GRAIN]
            assert place.get(copy, SIZE, 4096) == bytes(4096)
        place.put(volume, MIB, b"guest")
        assert place.get(volume, MIB, 6) == b"guest" + news[5:6]
        assert place.get(storage.clone(base, vol("c"), {}), MIB, 512) == below[MIB : MIB + 512]

    def test_a_clone_can_be_overwritten_with_nothing(self, place: Place, storage: Storage) -> None:
        place.put(storage.create(vol("ground"), SIZE, {}), 0, b"below")
        (base,) = storage.snapshot([vol("ground")], "x")
        volume = storage.clone(base, vol("a"), {})
        overwrite(volume, [])
        assert place.get(volume, 0, 5) == b"below"

    @pytest.mark.parametrize("offset", [SIZE, SIZE - GRAIN + 512])
    def test_nothing_is_written_behind_the_end(
        self, place: Place, storage: Storage, offset: int
    ) -> None:
        name: VolumeName = vol("a")
        (base,) = storage.snapshot([storage.create(vol("ground"), SIZE, {}).name], "x")
        volume = storage.clone(base, name, {})
        with pytest.raises(InvalidSpec, match="beyond the end of the disk"):
            overwrite(volume, [(offset, bytes(GRAIN))])
        assert storage.get(name).size == SIZE
        del place
