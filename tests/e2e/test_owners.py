"""Who can do what with the files of real labs, once libvirt and QEMU had them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.e2e.e2e_site import PXC, Site
from tests.support.other_user import EVERYBODY, NOBODY, tried

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="guests of ordinary users run as themselves"),
]

DISK = re.compile(r"storage/(labs/[^/]+/n\d|templates/[^/]+/n\d|images/[^/]+/base)/os/disk\.qcow2")
"""What guests write to, or could: nothing is made of the last two once they are captured."""
RAM = re.compile(r"templates/[^/]+/n\d\.ram")
FROZEN = (
    "templates/*/n?.ram",
    "templates/*/n?.state",
    "labs/*/captures/*/n?.*",
    "storage/**/base.raw",
    "storage/**/snapshots/*.qcow2",
)


def frozen(site: Site) -> dict[str, tuple[int, int, int, int]]:
    """Owner, group, mode and change time of all frozen files."""
    found = {}
    for pattern in FROZEN:
        for path in site.root.glob(pattern):
            status = path.stat()
            facts = (status.st_uid, status.st_gid, status.st_mode & 0o777, status.st_ctime_ns)
            found[path.relative_to(site.root).as_posix()] = facts
    return found


def qemu_s(site: Site) -> tuple[int, int, bool]:
    """QEMU's user and group, and whether it can do with RAM that it may only read."""
    from lab.hypervisor.libvirt.driver import LibvirtHypervisor

    hypervisor = LibvirtHypervisor(home=site.home.id, sockets=site.home.sockets)
    try:
        assert hypervisor.run_as
        return (*hypervisor.run_as, hypervisor.capabilities().reads_ram)
    finally:
        hypervisor.close()


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.rare)])
def test_frozen_files_stay_root_s_and_nobody_else_gets_in(site: Site, *, cold: bool) -> None:
    """Protects templates from libvirt, which would give files away, and labs from other users."""
    uid, gid, reads_ram = qemu_s(site)
    before = frozen(site)
    theirs = {name for name, facts in before.items() if facts[0] != 0}
    assert theirs == (set() if reads_ram else {name for name in before if RAM.fullmatch(name)})
    assert any(facts[2] == 0o440 for facts in before.values())
    with site.up(*PXC, "--name", site.name("own")) as view:
        name = view["name"]
        assert view["started"] == "warm"
        site.lab("snapshot", "take", name, "--label", "mine")
        stranger, qemu = tried(site.root, NOBODY, NOBODY), tried(site.root, uid, gid)
        assert {n for n in stranger["read"] if not EVERYBODY.fullmatch(n)} == set()
        for what in ("write", "chmod", "rename", "fill", "list", "connect"):
            assert stranger.get(what, set()) == set(), what
        for what in ("rename", "fill", "list"):
            assert qemu.get(what, set()) == set(), what
        for what in ("write", "chmod"):
            allowed = {n for n in qemu[what] if DISK.fullmatch(n)}
            assert qemu[what] - allowed == theirs, what
        assert any(DISK.fullmatch(n) for n in qemu["write"])
        sockets = Path("/var/lib/libvirt/qemu")
        assert tried(sockets, NOBODY, NOBODY).get("connect", set()) == set()
        if cold:
            site.lab("stop", name)
            site.lab("start", name)
            site.lab("rollback", name, "--to", "mine")
        site.lab("rollback", name)
    after = frozen(site)
    assert {n: f for n, f in after.items() if n in before} == before, "libvirt changed them"
