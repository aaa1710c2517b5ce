"""The configuration that vm-bhyve is given, and what is refused before it could fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.hypervisor import Disk, FirmwareBoot, Forward, GuestSpec, Network
from lab.hypervisor.bhyve.config import disks_in, render
from lab.names import GuestName

Golden = Callable[[str, str], None]

ZVOLS = Path("/dev/zvol/zroot/lab/labs/pxc/n1")
GUEST = GuestSpec(
    name=GuestName("lab-pxc-n1"),
    tags={"home": "h1", "owner": "lab:pxc", "node": "n1"},
    memory=768 << 20,
    cpus=2,
    disks=(
        Disk(ZVOLS / "os", "block", "lab-os"),
        Disk(ZVOLS / "data", "block", "lab-data"),
        Disk(Path("/var/db/lab/labs/pxc/n1.seed"), "raw", "lab-seed", readonly=True),
    ),
    network=Network("52:54:00:4c:00:01", "52:54:00:4c:01:01", (), 23306),
    boot=FirmwareBoot(),
    console_log=Path("/var/db/lab/logs/lab-pxc-n1.log"),
)


def test_a_node_of_three_disks(golden: Golden) -> None:
    golden("bhyve-guest.conf", render(GUEST, "lab23306"))


def test_a_guest_that_reaches_the_outside() -> None:
    """Protects a builder from a second card, which nobody would give an address."""
    outside = replace(GUEST, network=Network("52:54:00:4c:00:01", "", (), 0, uplink=True))
    text = render(outside, "public")
    assert 'network0_switch="public"\nnetwork0_mac="52:54:00:4c:00:01"\n' in text
    assert "network1" not in text


def test_its_disks_are_found_again() -> None:
    """Protects a disk from a second guest: bhyve locks nothing."""
    writes = {str(ZVOLS / "os"): True, str(ZVOLS / "data"): True}
    assert disks_in(render(GUEST, "x")) == {**writes, "/var/db/lab/labs/pxc/n1.seed": False}


def test_disks_as_people_write_them() -> None:
    text = 'disk0_name=/dev/da0 # mine\n#disk1_name="/dev/da1"\ndisk2_name="disk2.img"\n'
    text += 'disk3_opts="nocache,ro"\ndisk3_name="/dev/da3"   \n disk4_name="/dev/da4"\n'
    assert disks_in(text) == {"/dev/da0": True, "/dev/da3": False}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda g: replace(g, memory=(768 << 20) + 1), "MiB"),
        (lambda g: replace(g, memory_file=Path("/ram")), "/ram"),
        (lambda g: replace(g, disks=(Disk(Path("/x.qcow2"), "qcow2", "lab-os"),)), "qcow2"),
        (lambda g: replace(g, disks=(Disk(Path("/a,ro"), "raw", "lab-os"),)), "/a,ro"),
        (lambda g: replace(g, disks=(Disk(Path("/a#b"), "raw", "lab-os"),)), "/a#b"),
        (lambda g: replace(g, disks=(Disk(Path("/a"), "raw", "s" * 20),)), "serial"),
        (
            lambda g: replace(g, network=replace(g.network, forwards=(Forward(23306, 3306),))),
            "forwards",
        ),
    ],
)
def test_what_bhyve_or_vm_bhyve_would_get_wrong(
    spoil: Callable[[GuestSpec], GuestSpec], why: str
) -> None:
    """Protects from what fails late and silently: values are cut at a hash, options at a comma."""
    with pytest.raises(HostUnfit) as failure:
        render(spoil(GUEST), "lab23306")
    assert any(why in line for line in failure.value.details)
