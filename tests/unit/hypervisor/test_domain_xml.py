"""The XML that libvirt gets, word for word, and that libvirt accepts it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lab.errors import HostUnfit
from lab.hypervisor import DirectBoot, Disk, FirmwareBoot, Forward, GuestSpec, Network
from lab.hypervisor.libvirt.domain import (
    Machine,
    domain_uuid,
    domain_xml,
    memory_path,
    read_tags,
)
from lab.hypervisor.libvirt.probe import depended_on
from lab.names import GuestName
from lab.paths import Home

MIB = 1 << 20
HOME = Path("/var/lib/lab")

TCG = Machine(
    emulator="/usr/bin/qemu-system-x86_64",
    machine="pc-i440fx-7.2",
    accelerator="tcg",
    cpu_mode="maximum",
    cpu_without=("cx16",),
    run_as=(64055, 64055),
    firmware="/usr/share/ovmf/OVMF.fd",
    tsc_khz=2_600_000,
)
KVM = replace(
    TCG, accelerator="kvm", cpu_mode="host-passthrough", cpu_without=("vmx", "svm"), tsc_khz=0
)

GUEST = GuestSpec(
    name=GuestName("lab-pxc-n1"),
    tags={"home": "0badcafe", "owner": "lab:pxc", "node": "n1"},
    memory=768 * MIB,
    cpus=2,
    disks=(
        Disk(HOME / "storage/labs/pxc/n1/os/disk.qcow2", "qcow2", "lab-os"),
        Disk(HOME / "labs/pxc/n1.seed", "raw", "lab-seed", readonly=True),
    ),
    network=Network(
        "52:54:00:4c:00:01",
        "52:54:00:4c:01:01",
        (Forward(23306, 3306), Forward(23307, 22)),
        23308,
    ),
    boot=DirectBoot(HOME / "images/abc/kernel", HOME / "images/abc/initrd", "console=ttyS0 quiet"),
    console_log=HOME / "logs/console/lab-pxc-n1.log",
)
FORMER = replace(GUEST, memory_file=HOME / "templates/key/n1.ram")
LATE = replace(
    GUEST,
    boot=DirectBoot(
        HOME / "images/abc/kernel", HOME / "images/abc/initrd", "console=ttyS0 quiet lab.processors"
    ),
)
ON_ZVOL = replace(
    GUEST, disks=(Disk(Path("/dev/zvol/tank/lab/labs/pxc/n1/os"), "block", "lab-os"),)
)
BUILDER = replace(
    GUEST, boot=FirmwareBoot(), network=Network("52:54:00:4c:00:01", "", (), 0, uplink=True)
)

DOMAINS = {
    "cold-direct": domain_xml(GUEST, TCG),
    "cold-firmware": domain_xml(replace(GUEST, boot=FirmwareBoot()), TCG),
    "cold-one": domain_xml(LATE, replace(TCG, boots_on_one=True)),
    "forming": domain_xml(FORMER, TCG),
    "clone": domain_xml(FORMER, TCG, incoming=True),
    "clone-reads": domain_xml(FORMER, replace(TCG, reads_ram=True), incoming=True),
    "kvm": domain_xml(GUEST, KVM),
    "session": domain_xml(GUEST, replace(TCG, run_as=None, sockets=HOME / "run")),
    "apparmor": domain_xml(FORMER, replace(TCG, apparmor=True)),
    "block": domain_xml(ON_ZVOL, TCG),
    "uplink": domain_xml(BUILDER, TCG),
}

Golden = Callable[[str, str], None]


@pytest.mark.parametrize("name", DOMAINS)
def test_domain(golden: Golden, name: str) -> None:
    """Protects every word that QEMU gets: a change must be meant."""
    golden(f"domain/{name}.xml", DOMAINS[name])


def test_a_guest_boots_on_one_processor_if_it_starts_the_others() -> None:
    """Protects labs of images that were built before: they keep all of their processors."""
    old = replace(TCG, boots_on_one=True)
    assert "maxcpus=1" in domain_xml(LATE, old)
    for guest, machine in ((GUEST, old), (replace(LATE, cpus=1), old), (LATE, TCG)):
        assert "maxcpus" not in domain_xml(guest, machine)


def test_sockets_of_a_long_login_name_are_short_enough() -> None:
    """Protects users with names such as first.last@company, with libvirt before version 10.

    Without a path of ours it puts them below ~/.config/libvirt/qemu/channel/target, in a directory
    named after the guest: too long from 13 characters on.
    """
    home = Home(Path("/home") / ("x" * 32) / ".local/share/lab")
    longest = replace(GUEST, name=GuestName("lab-t." + "0" * 14 + ".n1"))
    xml = ET.fromstring(  # noqa: S314  our own XML
        domain_xml(longest, replace(TCG, run_as=None, sockets=home.sockets))
    )
    paths = [source.get("path", "") for source in xml.iterfind("devices/channel/source")]
    assert len(set(paths)) == 2
    assert all(len(path.encode()) <= 107 for path in paths)


def test_templates_do_not_depend_on_where_sockets_are() -> None:
    """Protects RAM from being thrown away because a home was moved."""
    assert depended_on(replace(TCG, sockets=HOME)) == depended_on(TCG)


def test_a_published_port_is_at_its_address() -> None:
    """Protects SSH from being reached where only SQL is to be."""
    at = (Forward(23306, 3306, "10.0.0.5"), Forward(23307, 22))
    xml = domain_xml(replace(GUEST, network=replace(GUEST.network, forwards=at)), TCG)
    assert "hostfwd=tcp:10.0.0.5:23306-:3306,hostfwd=tcp:127.0.0.1:23307-:22" in xml


@pytest.fixture(scope="module")
def test_driver() -> Any:
    """libvirt's own in-memory driver, which knows the schema."""
    libvirt = pytest.importorskip("libvirt", reason="no libvirt-python")
    from lab.hypervisor.libvirt.connection import connect

    try:
        connection = connect("test:///default")
    except HostUnfit as unfit:
        pytest.skip(str(unfit))
    yield libvirt, connection
    connection.close()


@pytest.mark.parametrize("name", DOMAINS)
def test_libvirt_s_schema_knows_it(test_driver: Any, name: str) -> None:
    """Protects from words that libvirt would silently ignore."""
    libvirt, connection = test_driver
    domain = connection.defineXMLFlags(DOMAINS[name], libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    domain.undefine()


def test_the_schema_refuses_what_it_does_not_know(test_driver: Any) -> None:
    """Protects the test above from accepting everything."""
    libvirt, connection = test_driver
    wrong = DOMAINS["cold-direct"].replace("<devices>", "<devices><teapot />")
    with pytest.raises(libvirt.libvirtError, match="schema"):
        connection.defineXMLFlags(wrong, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(DOMAINS.keys() - {"apparmor"}))
def test_qemu_s_command_line(name: str) -> None:
    """Protects the parts that libvirt must turn into arguments; needs QEMU, starts nothing."""
    pytest.importorskip("libvirt", reason="no libvirt-python")
    from lab.hypervisor.libvirt.connection import connect, default_uri

    try:
        connection = connect(default_uri())
    except HostUnfit as unfit:
        pytest.skip(str(unfit))
    if name == "kvm" and "<domain type='kvm'/>" not in connection.getCapabilities():
        pytest.skip("libvirt lists no KVM")
    xml = DOMAINS[name].replace(TCG.machine, "pc")
    argv = connection.domainXMLToNative("qemu-argv", xml, 0)
    connection.close()
    for wanted in ("virtio-blk-pci", "virtserialport", "virtio-rng-pci", "id=labouter"):
        assert wanted in argv
    assert ("memory-backend-file" in argv) == (name in ("forming", "clone", "clone-reads"))
    assert ("-incoming defer" in argv) == name.startswith("clone")
    if name == "kvm":
        assert "-accel kvm" in argv
        assert re.search(r"-cpu host,\S*vmx=off,svm=off,pmu=off", argv)


def test_tags_and_memory_file_are_read_back() -> None:
    """Protects whose a guest is, and what `save_memory` believes its RAM to be."""
    odd = replace(
        FORMER,
        tags={"home": 'a "b" <c> & d', "empty": ""},
        memory_file=Path("/a,b/c d&e=f.ram"),
    )
    xml = domain_xml(odd, TCG, incoming=True)
    assert read_tags(xml) == dict(odd.tags)
    assert memory_path(xml) == odd.memory_file
    assert memory_path(domain_xml(GUEST, TCG)) is None
    assert read_tags("<domain type='qemu'><name>other</name></domain>") == {}


def test_two_homes_have_two_guests_of_one_name() -> None:
    """Protects from one home's guest being taken for another's by its UUID."""
    other = replace(GUEST, tags={**GUEST.tags, "home": "deadbeef"})
    assert domain_uuid(GUEST) == domain_uuid(replace(GUEST, memory=MIB))
    assert domain_uuid(GUEST) != domain_uuid(other)


def test_a_clone_differs_from_its_template_in_nothing_that_its_ram_knows() -> None:
    """Protects restores: every device of the clone stands where the template's stood."""
    forming, clone = DOMAINS["forming"].splitlines(), DOMAINS["clone"].splitlines()
    different = [line.strip() for line in clone if line not in forming]
    assert all(
        any(word in line for word in ("<clock", "share=off", '"-incoming"', '"defer"'))
        for line in different
    ), different
