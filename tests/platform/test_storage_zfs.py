"""The zfs driver keeps the contract, on real ZFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import zfs_site
from tests.contract.storage_contract import (
    SMALL_ROOM,
    ContentContract,
    CrashContract,
    HistoryContract,
    Place,
    StreamsContract,
    VolumesContract,
)


class _OnZfs:
    @pytest.fixture
    def place(self, parent: str, tmp_path: Path) -> Place:
        return zfs_site.place(parent, tmp_path)

    @pytest.fixture
    def small_place(self, pool: str, tmp_path: Path) -> Iterator[Place]:
        del pool  # says whether there is ZFS
        # ZFS keeps the half of a pool that is so small for itself
        with zfs_site.pool(tmp_path, 4 * SMALL_ROOM, files_only=True) as small:
            zfs_site.zfs("create", f"{small}/lab")
            yield zfs_site.place(f"{small}/lab", tmp_path / "small")


class TestZfs(_OnZfs, VolumesContract):
    pass


@pytest.mark.rare
class TestZfsHistory(_OnZfs, HistoryContract):
    """Minutes: each step is several programs of ZFS."""


@pytest.mark.rare
class TestZfsContent(_OnZfs, ContentContract):
    """Minutes: each test writes or reads whole volumes, in a guest that is emulated."""


@pytest.mark.rare
class TestZfsStreams(_OnZfs, StreamsContract):
    """A minute and a half: each stream that is refused is a try of `zfs receive`."""


@pytest.mark.rare
class TestZfsCrashes(_OnZfs, CrashContract):
    """Minutes: each of its many processes starts `zfs` several times."""
