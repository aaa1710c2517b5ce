"""QEMU's user and nobody else is let to a device, and udev does not take it back."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.hypervisor.libvirt.access import let_open
from lab.run import run
from lab.storage.zfs import links
from tests.contract import zfs_site

USER, OTHER = 64055, 64056
SIZE = 16 << 20


@pytest.fixture
def device(parent: str) -> Path:
    """A ZVol's."""
    zfs_site.zfs("create", "-s", "-V", str(SIZE), f"{parent}/disk")
    return links.wait_for(f"{parent}/disk", SIZE)


def _opens(device: Path, user: int) -> bool:
    """True if a process of ``user`` can write to the device."""
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    argv = ["setpriv", *ids, "dd", "if=/dev/zero", f"of={device}", "bs=4096", "count=1"]
    done = subprocess.run([*argv, "conv=notrunc"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def test_one_user_is_let_in_for_good(device: Path) -> None:
    """Protects guests on ZVols, and the host's other disks from them."""
    before = device.stat()
    assert not _opens(device, USER)
    let_open(device, USER)
    assert _opens(device, USER)
    assert not _opens(device, OTHER)
    # udev has just seen that it was written to; once more, to be sure.
    run(["udevadm", "trigger", "--action=change", "--settle", device], timeout=60)
    assert _opens(device, USER)
    let_open(device, OTHER)
    assert _opens(device, USER)
    assert _opens(device, OTHER)
    after = device.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == stat.S_IMODE(before.st_mode)


def test_files_and_devices_that_are_theirs_stay_as_they_are(device: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (file, device):
        if path == device:
            os.chown(path, USER, -1)
        let_open(path, USER)
        assert os.listxattr(path) == []


def test_a_missing_permission_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HostUnfit, match="cannot be given access to"):
        let_open(tmp_path / "none", USER)
