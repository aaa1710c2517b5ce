"""The configuration of a guest, as vm-bhyve reads it.

Format: vm(8), and config::load in lib/vm-config of vm-bhyve: lines ``key="value"``, from which
all double quotes, text after a ``#`` and trailing blanks are removed. So no value here may have
these; nor a comma, which separates the options of a device for bhyve(8). Options of devices:
bhyve_config(5).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

from lab.errors import HostUnfit
from lab.hypervisor import Disk, FirmwareBoot, GuestSpec
from lab.hypervisor.agent import GUEST_AGENT, PERSONALISE

PORTS = (GUEST_AGENT, PERSONALISE)
"""The virtio ports of a guest."""

SERIAL_LIMIT = 19
"""The maximum length of a disk's serial number: bhyve has 20 bytes with the final zero."""

_PLAIN = re.compile(r"[A-Za-z0-9/._:@+-]+")
_DISK = re.compile(r"disk\d+_(?:name|opts)")
_MIB = 1 << 20


def render(guest: GuestSpec, switch: str) -> str:
    """The text of the guest's ``.conf``; raises HostUnfit for what bhyve cannot do."""
    _check(guest)
    lines = [f'{key}="{value}"' for key, value in _settings(guest, switch)]
    return "\n".join(["# Written by lab; changes are lost when the guest is started.", *lines, ""])


def disks_in(text: str) -> dict[str, bool]:
    """The disks that a guest's ``.conf`` gives by path, ours or not, and whether it writes."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("#")[0].rstrip(" ").replace('"', "").partition("=")
        if equals and _DISK.fullmatch(key):
            values.setdefault(key, value)
    return {
        value: "ro" not in values.get(key.replace("name", "opts"), "").split(",")
        for key, value in values.items()
        if key.endswith("_name") and value.startswith("/")
    }


def guest_uuid(guest: GuestSpec) -> uuid.UUID:
    """The UUID of a guest, which is derived from its home and name."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:lab:{guest.tags.get('home', '')}:{guest.name}")


def _settings(guest: GuestSpec, switch: str) -> Iterator[tuple[str, str]]:
    yield "tags", "lab"  # shown to users, from vm-bhyve 1.8 on: `vm list -t lab`
    yield "loader", "uefi"
    yield "uuid", str(guest_uuid(guest))
    yield "cpu", str(guest.cpus)
    yield "memory", f"{guest.memory // _MIB}M"
    # bhyve's own messages go to bhyve.log next to this file: they show why a start failed.
    yield "debug", "yes"
    yield "utctime", "yes"
    # A guest that powers off or crashes has ended; a reboot continues it.
    yield "on_fault", "shutdown"
    yield "comports", "com1"
    yield "virt_random", "yes"
    for number, name in enumerate(PORTS):
        yield f"virt_console{number}", name
    macs = (guest.network.outer_mac, guest.network.inner_mac)
    for number, mac in enumerate(mac for mac in macs if mac):
        yield f"network{number}_type", "virtio-net"
        yield f"network{number}_switch", switch
        yield f"network{number}_mac", mac
    for number, disk in enumerate(guest.disks):
        yield f"disk{number}_type", "virtio-blk"
        yield f"disk{number}_dev", "custom"
        yield f"disk{number}_name", str(disk.path)
        yield f"disk{number}_opts", _options(disk)


def _options(disk: Disk) -> str:
    # nocache (O_DIRECT): nothing is kept twice in memory. Not direct, which is O_SYNC: every
    # write would wait for the disk, while guests ask for that themselves where it matters, and
    # bhyve hands their flushes on. libvirt's cache='none' is the same.
    how = "ro" if disk.readonly else "nocache"
    return f"{how},ser={disk.serial}"


def _check(guest: GuestSpec) -> None:
    if not isinstance(guest.boot, FirmwareBoot):
        raise _cannot(guest, "bhyve boots guests by firmware only, not from a kernel's file")
    if guest.memory_file is not None:
        raise _cannot(guest, f"bhyve cannot keep a guest's RAM in {guest.memory_file}")
    if not all(forward.to for forward in guest.network.forwards):
        raise _cannot(guest, "bhyve forwards no ports: its guests have addresses of their own")
    if guest.memory % _MIB:
        raise _cannot(guest, f"{guest.memory} bytes of memory are not a multiple of 1 MiB")
    for disk in guest.disks:
        if disk.format == "qcow2":
            raise _cannot(guest, f"bhyve cannot read {disk.path}: it does not support qcow2")
        if not _PLAIN.fullmatch(str(disk.path)):
            raise _cannot(guest, f"vm-bhyve does not support the path {disk.path}")
        if len(disk.serial) > SERIAL_LIMIT or not _PLAIN.fullmatch(disk.serial):
            raise _cannot(guest, f"bhyve cannot give a disk the serial number {disk.serial!r}")


def _cannot(guest: GuestSpec, why: str) -> HostUnfit:
    return HostUnfit(f"{guest.name} cannot run here", details=[why])
