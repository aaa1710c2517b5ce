"""The contract of importing a disk file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import Conflict, InvalidSpec
from lab.storage import Storage
from tests.contract.storage_place import MIB, SIZE, TAGS, Place, names, vol


class Imports:
    def test_import_keeps_content_and_holes(
        self, place: Place, storage: Storage, tmp_path: Path
    ) -> None:
        volume = storage.import_raw(vol("a"), _raw(tmp_path, SIZE * 8), TAGS)
        assert (volume.size, dict(volume.tags)) == (SIZE * 8, TAGS)
        assert place.get(volume, 0, 8) == b"\x5a" * 8
        assert place.get(volume, SIZE * 4, 4096) == bytes(4096)
        assert place.get(volume, SIZE * 8 - 4, 4) == b"last"
        assert storage.used(vol("a")) < 2 * MIB

    def test_import_can_be_written_snapshotted_and_cloned(
        self, place: Place, storage: Storage, tmp_path: Path
    ) -> None:
        volume = storage.import_raw(vol("a"), _raw(tmp_path, SIZE), TAGS)
        (first,) = storage.snapshot([vol("a")], "first")
        place.put(volume, 0, b"later")
        assert place.get(storage.clone(first, vol("b"), {}), 0, 5) == b"\x5a" * 5
        assert place.get(storage.get(vol("a")), 0, 5) == b"later"

    def test_import_refuses_what_exists_and_keeps_the_source(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        storage.create(vol("a"), SIZE, {})
        source = _raw(tmp_path, SIZE)
        with pytest.raises(Conflict):
            storage.import_raw(vol("a"), source, {})
        assert source.exists()

    def test_import_refuses_what_is_no_file(self, storage: Storage, tmp_path: Path) -> None:
        for source in (tmp_path, tmp_path / "absent"):
            with pytest.raises(InvalidSpec):
                storage.import_raw(vol("a"), source, {})
        assert names(storage) == []


def _raw(folder: Path, size: int) -> Path:
    """A sparse file: data at the start, a hole, ``last`` at the end."""
    path = folder / "source.raw"
    with path.open("wb") as file:
        file.write(b"\x5a" * MIB)
        file.truncate(size)
        file.seek(size - 4)
        file.write(b"last")
    return path
