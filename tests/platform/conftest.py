"""One pool for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import zfs_site


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
