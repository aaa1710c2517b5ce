"""The fake keeps the contract, and fails when and how a test configures it to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.fake.storage import FakeStorage
from lab.storage import Storage, Volume
from tests.contract.storage_contract import SMALL_ROOM, Place, StorageContract
from tests.contract.storage_place import SIZE, labels, vol
from tests.support.storage_faults import FailAt


def open_fake(root: Path, capacity: int, home: str) -> Storage:
    return FakeStorage(root, home, capacity=capacity)


def put(volume: Volume, offset: int, data: bytes) -> None:
    with volume.path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def get(volume: Volume, offset: int, length: int) -> bytes:
    with volume.path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


class TestFake(StorageContract):
    shares_blocks = False

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(partial(open_fake, tmp_path / "volumes", 1 << 40), put, get)

    @pytest.fixture
    def small_place(self, tmp_path: Path) -> Place:
        return Place(partial(open_fake, tmp_path / "small", SMALL_ROOM), put, get)

    @pytest.mark.parametrize(("step", "call"), [("write", 1), ("write", 2), ("commit", 1)])
    def test_injected_failure_leaves_nothing(self, place: Place, step: str, call: int) -> None:
        volumes = [vol("a", "n1"), vol("a", "n2")]
        storage = place.open("home")
        for volume in volumes:
            storage.create(volume, SIZE, {})
        full = FailAt(step, call, HostUnfit("no space: 8M needed, 0B free"))
        failing = FakeStorage(storage.get(volumes[0]).path.parents[1], "home", before=full)
        with pytest.raises(HostUnfit):
            failing.snapshot(volumes, "x")
        assert [labels(storage, volume) for volume in volumes] == [[], []]
        assert storage.sweep() == []
        failing.snapshot(volumes, "x")
