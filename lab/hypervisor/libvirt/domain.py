"""The libvirt domain of a guest, as XML.

``<qemu:commandline>`` has what libvirt's XML cannot express: RAM in a file of our choice
(a second ``-machine`` merges with libvirt's own), user-mode networking with forwarded
ports, the private segment, and incoming device state.

Guests have no balloon, virtio-mem or free page reporting, and are never migrated by postcopy: each
of these discards RAM, for which QEMU before 8.1 punches holes into the file behind it, also through
a private mapping (ram_block_discard_range in softmmu/physmem.c). A clone would destroy the
template's RAM, and that of all its siblings.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from lab.guest.network import segment_group
from lab.hypervisor import DirectBoot, Disk, Forward, GuestSpec
from lab.hypervisor.agent import GUEST_AGENT, PERSONALISE
from lab.names import GuestName
from lab.values import dataclass

QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
LAB_NAMESPACE = "urn:lab:guest:1"

USER_NETWORK = "labouter"
"""QEMU's name of the network through which ports of the host lead to a guest."""

_OUTER_SLOT = "0x1d"
_INNER_SLOT = "0x1e"


@dataclass(frozen=True)
class Machine:
    """The properties of this host's QEMU that domains depend on."""

    emulator: str
    machine: str
    accelerator: str
    cpu_mode: str
    cpu_without: tuple[str, ...]
    run_as: tuple[int, int] | None
    """The uid and gid of QEMU; None with a user's libvirt, where everything runs as that user."""
    apparmor: bool = False
    """Whether libvirt confines guests with AppArmor."""
    firmware: str = ""
    tsc_khz: int = 0
    """The rate of the time stamp counter of emulated guests; 0 if they measure it themselves."""
    why_emulated: str = ""
    """Why KVM is not used; else empty."""
    remedy: str = ""
    """How to have KVM used."""
    sockets: Path | None = None
    """The directory for the sockets of guests' ports; None for libvirt's default. With libvirt 8
    and 9, an ordinary user's default exceeds the limit of a socket's path (107 bytes) if the
    login name has 13 characters or more."""
    reads_ram: bool = False
    """Whether QEMU can map a read-only file as RAM that a guest writes to (``rom=off``, since
    QEMU 8.2)."""
    boots_on_one: bool = False
    """Whether a guest is to boot on one of its processors, and to start the others after that.
    Linux changes its own code while it boots, and a processor that QEMU before 8.1 emulates may go
    on with what another one has changed: of 120 boots on two processors, one ended in "Oops: int3"
    (QEMU, deba78709ae8, "accel/tcg: Always lock pages before translation")."""


STARTS_OTHERS = "lab.processors"
"""In the command line of an image (images/guest/guest.toml): its guests start the processors that
the kernel left alone. Those of older images would have one."""
_SLOW_QUERY = "cpu-unavailable-features"
"""The capability of QEMU that makes libvirt query each property of a guest's processor at its
start, one after the other: 400 queries with libvirt 9.0 and QEMU 7.2, two thirds of the time that
the start of a guest takes. Without it, libvirt takes the older way, which needs a few (see
qemuProcessFetchGuestCPU in src/qemu/qemu_process.c). Nothing of what we request depends on the
result; it would if a domain required features that are in model specific registers."""

_HALT = {"error_policy": "stop", "rerror_policy": "report"}
"""A guest whose disk cannot be written is paused, and resumes once there is space."""


def domain_xml(guest: GuestSpec, machine: Machine, *, incoming: bool = False) -> str:
    """The XML of a transient domain that runs ``guest``.

    ``incoming``: QEMU waits for device state, and maps RAM copy-on-write; otherwise it writes to
    the ``memory_file``.
    """
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    ET.register_namespace("lab", LAB_NAMESPACE)
    domain = ET.Element("domain", type="kvm" if machine.accelerator == "kvm" else "qemu")
    _text(domain, "name", guest.name)
    _text(domain, "uuid", str(domain_uuid(guest)))
    metadata = ET.SubElement(domain, "metadata")
    ET.SubElement(metadata, f"{{{LAB_NAMESPACE}}}guest", dict(sorted(guest.tags.items())))
    _text(domain, "memory", str(guest.memory), unit="b")
    _text(domain, "vcpu", str(guest.cpus))
    _os(domain, guest, machine)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    if machine.accelerator == "kvm":
        # Guests do not use its counters, and hosts that are guests themselves reject its registers.
        ET.SubElement(features, "pmu", state="off")
    cpu = ET.SubElement(domain, "cpu", mode=machine.cpu_mode)
    for name in machine.cpu_without:
        ET.SubElement(cpu, "feature", policy="disable", name=name)
    ET.SubElement(domain, "clock", offset="utc")
    _text(domain, "on_reboot", "restart")
    _text(domain, "on_crash", "destroy")
    _devices(domain, guest, machine)
    _security(domain, machine)
    commandline = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}commandline")
    for argument in _arguments(guest, machine, incoming):
        ET.SubElement(commandline, f"{{{QEMU_NAMESPACE}}}arg", value=argument)
    capabilities = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}capabilities")
    ET.SubElement(capabilities, f"{{{QEMU_NAMESPACE}}}del", capability=_SLOW_QUERY)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def domain_uuid(guest: GuestSpec) -> uuid.UUID:
    """The UUID of a guest, which is derived from its home and name."""
    return _uuid(guest.tags.get("home", ""), guest.name)


def _uuid(home: str, name: GuestName) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:lab:{home}:{name}")


def port_sockets(sockets: Path, home: str, name: GuestName) -> dict[str, Path]:
    """The sockets of a guest's ports below ``sockets``, by the name of the port."""
    short = _uuid(home, name).hex[:8]
    return {GUEST_AGENT: sockets / f"{short}.agent", PERSONALISE: sockets / f"{short}.lab"}


def read_tags(xml: str) -> dict[str, str]:
    """Our tags from a domain's XML, empty if it is not ours."""
    element = ET.fromstring(xml).find(f"metadata/{{{LAB_NAMESPACE}}}guest")  # noqa: S314  libvirt's own XML
    return {} if element is None else dict(element.attrib)


def memory_path(xml: str) -> Path | None:
    """The file in which a domain of ours keeps its RAM, from its XML; None if there is none."""
    arguments = ET.fromstring(xml).iterfind(  # noqa: S314  libvirt's own XML
        f"{{{QEMU_NAMESPACE}}}commandline/{{{QEMU_NAMESPACE}}}arg"
    )
    for argument in arguments:
        value = argument.get("value", "")
        if value.startswith("memory-backend-file,id=labram,"):
            return Path(value.partition(",mem-path=")[2].replace(",,", ","))
    return None


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _os(domain: ET.Element, guest: GuestSpec, machine: Machine) -> None:
    os = ET.SubElement(domain, "os")
    _text(os, "type", "hvm", arch="x86_64", machine=machine.machine)
    if isinstance(guest.boot, DirectBoot):
        _text(os, "kernel", str(guest.boot.kernel))
        _text(os, "initrd", str(guest.boot.initrd))
        # Nor is it compared with an emulated timer: where the host is busy that is late, and Linux
        # would leave the counter for that timer, each look at which ends the translated code.
        # Of several processors it would leave it in any case, without this.
        trust = "reliable" if guest.cpus > 1 else "nowatchdog"
        known = f" tsc_early_khz={machine.tsc_khz} tsc={trust}" if machine.tsc_khz else ""
        may = guest.cpus > 1 and STARTS_OTHERS in guest.boot.cmdline.split()
        one = " maxcpus=1" if machine.boots_on_one and may else ""
        _text(os, "cmdline", f"{guest.boot.cmdline}{known}{one}")
    else:
        _text(os, "loader", machine.firmware, readonly="yes", type="rom")


def _devices(domain: ET.Element, guest: GuestSpec, machine: Machine) -> None:
    devices = ET.SubElement(domain, "devices")
    _text(devices, "emulator", machine.emulator)
    for number, disk in enumerate(guest.disks):
        _disk(devices, disk, number)
    ET.SubElement(devices, "controller", type="usb", model="none")
    ET.SubElement(devices, "controller", type="virtio-serial", index="0")
    serial = ET.SubElement(devices, "serial", type="pty")
    ET.SubElement(serial, "log", file=str(guest.console_log), append="on")
    ET.SubElement(serial, "target", type="isa-serial", port="0")
    for name in (GUEST_AGENT, PERSONALISE):
        channel = ET.SubElement(devices, "channel", type="unix")
        if machine.sockets is not None:
            paths = port_sockets(machine.sockets, guest.tags.get("home", ""), guest.name)
            ET.SubElement(channel, "source", mode="bind", path=str(paths[name]))
        ET.SubElement(channel, "target", type="virtio", name=name)
    rng = ET.SubElement(devices, "rng", model="virtio")
    _text(rng, "backend", "/dev/urandom", model="random")
    video = ET.SubElement(devices, "video")
    ET.SubElement(video, "model", type="none")
    ET.SubElement(devices, "memballoon", model="none")


def _disk(devices: ET.Element, disk: Disk, number: int) -> None:
    block = disk.format == "block"
    element = ET.SubElement(devices, "disk", type="block" if block else "file", device="disk")
    driver = {"name": "qemu", "type": "raw" if block else disk.format}
    if disk.readonly:
        ET.SubElement(element, "driver", driver)
    else:
        ET.SubElement(
            element,
            "driver",
            driver | {"cache": "none", "io": "native", "discard": "unmap"} | _HALT,
        )
    ET.SubElement(element, "source", {"dev" if block else "file": str(disk.path)})
    ET.SubElement(element, "target", dev=f"vd{chr(ord('a') + number)}", bus="virtio")
    if disk.readonly:
        ET.SubElement(element, "readonly")
    _text(element, "serial", disk.serial)


def _security(domain: ET.Element, machine: Machine) -> None:
    if machine.run_as is not None:
        # Files belong to QEMU's user already (see Storage, and ``access`` for devices),
        # so libvirt must not change owners, in particular of images that labs share.
        label = ET.SubElement(domain, "seclabel", type="static", model="dac", relabel="no")
        _text(label, "label", "+{}:+{}".format(*machine.run_as))
    if machine.apparmor:
        # AppArmor's helper does not read <qemu:commandline>: it would deny the RAM files.
        ET.SubElement(domain, "seclabel", type="none", model="apparmor")


def _arguments(guest: GuestSpec, machine: Machine, incoming: bool) -> Iterator[str]:
    if guest.memory_file is not None:
        share = "on"
        if incoming:
            # rom=off: without it RAM from a read-only file would be read-only in the guest.
            share = "off,readonly=on,rom=off" if machine.reads_ram else "off"
        yield from (
            "-object",
            f"memory-backend-file,id=labram,share={share},size={guest.memory},mem-path="
            + _escape(guest.memory_file),
            "-machine",
            "memory-backend=labram",
        )
    yield from ("-netdev", _user_network(guest))
    yield from ("-device", _card(USER_NETWORK, guest.network.outer_mac, _OUTER_SLOT))
    if not guest.network.uplink:
        segment = f"{segment_group(guest.tags.get('home', ''))}:{guest.network.segment}"
        # localaddr: the segment is on the loopback interface only.
        yield from ("-netdev", f"socket,id=labinner,mcast={segment},localaddr=127.0.0.1")
        yield from ("-device", _card("labinner", guest.network.inner_mac, _INNER_SLOT))
    if incoming:
        yield from ("-incoming", "defer")


def _user_network(guest: GuestSpec) -> str:
    forwards = "".join(
        f",hostfwd={host_end(forward)}-:{forward.guest_port}" for forward in guest.network.forwards
    )
    restrict = "off" if guest.network.uplink else "on"
    return f"user,id={USER_NETWORK},ipv6=off,restrict={restrict}{forwards}"


def host_end(forward: Forward) -> str:
    """The host's end of a forwarded port, as QEMU writes it."""
    return f"tcp:{forward.address}:{forward.host_port}"


def _card(backend: str, mac: str, slot: str) -> str:
    # romfile: no option ROM for network boot, which is unused and slows each start.
    return f"virtio-net-pci,netdev={backend},mac={mac},addr={slot},romfile="


def _escape(path: Path) -> str:
    return str(path).replace(",", ",,")
