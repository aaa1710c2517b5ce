"""What the tests here stand on: ZFS in the kernel, blank disks, and udev's links."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.run import run
from lab.wait import Deadline, until

ZFS = Path("/sys/module/zfs/version")
EXPECTED = os.environ.get("LAB_TEST_ZFS_VERSION", "")
"""Set by ``make test-zfs`` in its guests, as is LAB_TEST_ZFS_DISKS: paths with colons between."""
DISKS = tuple(Path(disk) for disk in os.environ.get("LAB_TEST_ZFS_DISKS", "").split(":") if disk)

pytestmark = pytest.mark.skipif(
    not ZFS.exists() or os.geteuid() != 0,
    reason="no ZFS in this kernel, or not root: make test-zfs",
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[str]:
    """A pool in a file, removed at the end."""
    disk = tmp_path / "disk"
    with disk.open("xb") as file:
        file.truncate(256 << 20)
    name = f"labtest{secrets.token_hex(4)}"
    run(["zpool", "create", "-m", "none", name, disk], timeout=60)
    yield name
    run(["zpool", "destroy", "-f", name], timeout=60)


@pytest.mark.skipif(not EXPECTED, reason="any version will do on a host of one's own")
def test_kernel_and_programs_are_of_the_release() -> None:
    """Protects the claim of two OpenZFS versions: a guest with another one proves nothing."""
    said = run(["zfs", "version"], timeout=30).stdout
    versions = re.findall(r"^zfs-(?:kmod-)?(\d+\.\d+)\.", said, re.M)
    assert versions == [EXPECTED, EXPECTED]


@pytest.mark.skipif(not DISKS, reason="no disks are set aside for tests")
@pytest.mark.parametrize("disk", DISKS, ids=str)
def test_disks_are_block_devices_of_our_own(disk: Path) -> None:
    """Protects tests that make pools of whole disks."""
    assert disk.is_block_device()
    holders = Path("/sys/class/block", disk.name, "holders")
    assert not list(holders.iterdir())


def test_udev_makes_the_link_of_a_clone(pool: str) -> None:
    """Protects all tests of volumes: without udev no link would ever come."""
    run(["zfs", "create", "-s", "-V", "16M", f"{pool}/origin"], timeout=60)
    run(["zfs", "snapshot", f"{pool}/origin@s"], timeout=60)
    run(["zfs", "clone", f"{pool}/origin@s", f"{pool}/clone"], timeout=60)
    link = Path("/dev/zvol", pool, "clone")
    assert until(link.is_block_device, Deadline.after(20.0))
