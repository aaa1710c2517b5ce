"""One pool for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.storage.zfs.driver import ZfsStorage
from lab.units import GIB
from tests.contract import zfs_site
from tests.contract.storage_contract import Place
from tests.platform import daemons


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


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[None]:
    """libvirt, started for these tests if nobody else did."""
    with daemons.libvirt():
        yield


@pytest.fixture(scope="module")
def big_pool(tmp_path_factory: pytest.TempPathFactory, libvirtd: None) -> Iterator[str]:
    """A pool with room for an image."""
    del libvirtd  # its guests end before the pool does
    why = zfs_site.why_not()
    if why:
        pytest.skip(why)
    with zfs_site.pool(tmp_path_factory.mktemp("pool"), 7 * GIB) as name:
        yield name
