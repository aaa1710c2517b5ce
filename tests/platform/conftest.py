"""One pool for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.storage.zfs.driver import ZfsStorage
from tests.contract import zfs_site
from tests.contract.storage_contract import Place


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pool; skips where there is no ZFS."""
    why = zfs_site.why_not()
    if why:
        pytest.skip(why)
    with zfs_site.pool(tmp_path_factory.mktemp("pool")) as name:
        yield name


@pytest.fixture
def parent(pool: str) -> Iterator[str]:
    """A fresh parent dataset."""
    with zfs_site.parent(pool) as name:
        yield name


@pytest.fixture
def place(parent: str, tmp_path: Path) -> Place:
    """The parent dataset as a place for volumes."""
    return zfs_site.place(parent, tmp_path)


@pytest.fixture
def storage(parent: str, tmp_path: Path) -> ZfsStorage:
    """Our volumes in the parent dataset."""
    return zfs_site.open_zfs(parent, tmp_path, "home")
