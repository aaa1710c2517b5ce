"""The zfs driver keeps the contract, on real ZFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zfs_site
from storage_contract import SMALL_ROOM, Place, StorageContract


class TestZfs(StorageContract):
    @pytest.fixture
    def place(self, parent: str, tmp_path: Path) -> Place:
        return zfs_site.place(parent, tmp_path)

    @pytest.fixture
    def small_place(self, pool: str, tmp_path: Path) -> Iterator[Place]:
        with zfs_site.parent(pool, "-o", f"quota={SMALL_ROOM}") as name:
            yield zfs_site.place(name, tmp_path / "small")
