"""The facts that Linux keeps in files, and who else there looks at block devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from lab.host.zfs import parse
from lab.host.zfs.facts import Disk, Lvm, Neighbours, Tunable, Unknown
from lab.host.zfs.source import Source, formed
from lab.host.zfs.tunables import TUNABLES, names_on

T = TypeVar("T")

_MODULE = "/sys/module/zfs"
_BLOCK = "/sys/class/block"
_RULE = "60-zvol.rules"
_RULES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")
_LIST = re.compile(r'"((?:[^"\\]|\\.)*)"')
_EXCEPTIONS = re.compile(r"^\s*blacklist_exceptions\s*\{(.*?)\}", re.M | re.S)
_DEVNODE = re.compile(r'^\s*devnode\s+"?([^"\n]+?)"?\s*$', re.M)


def has_module(source: Source) -> bool:
    """True if the kernel has ZFS."""
    return source.exists(_MODULE)


def tunables(source: Source) -> dict[str, Tunable]:
    """Those of ``names`` that there are on Linux."""
    return {
        key: Tunable(name, source.number(f"{_MODULE}/parameters/{name}"))
        for key in TUNABLES
        for name in names_on("linux", key)
    }


def arc(source: Source) -> Mapping[str, int] | Unknown:
    """The ARC's counters."""
    text = source.text("/proc/spl/kstat/zfs/arcstats")
    if isinstance(text, Unknown):
        return Unknown("the module is not loaded") if text.absent else text
    return parse.kstat(text)


def disk(source: Source, what: Disk) -> Disk:
    """``what`` with what the block layer says of it (Documentation/block/queue-sysfs).

    ``write_cache`` is "write back" for a device that may lose what was not flushed. A
    partition has the queue of its disk.
    """
    here = f"{_BLOCK}/{source.path(what.path).resolve().name}"  # links such as by-id
    if not what.path.startswith("/dev/") or not source.exists(here):
        return what
    if source.exists(f"{here}/partition"):
        here = f"{_BLOCK}/{source.path(here).resolve().parent.name}"
    sector = source.number(f"{here}/queue/physical_block_size")
    rotates = source.number(f"{here}/queue/rotational")
    discards = source.number(f"{here}/queue/discard_max_bytes")
    cache = source.text(f"{here}/queue/write_cache")
    return replace(
        what,
        sector=_or_none(sector),
        rotates=_or_none(formed(rotates, bool)),
        discards=_or_none(formed(discards, bool)),
        volatile=_or_none(formed(cache, lambda text: text.strip() == "write back")),
    )


def _or_none(fact: T | Unknown) -> T | None:
    return None if isinstance(fact, Unknown) else fact


def neighbours(source: Source) -> Neighbours:
    """Who else looks at block devices."""
    return Neighbours(
        formed(source.text("/proc/swaps"), parse.swaps),
        _lvm(source),
        _multipath(source),
        _holders(source),
        source.exists("/run/udev/control"),
        _link_rule(source),
    )


def _lvm(source: Source) -> Lvm | Unknown | None:
    said = source.said("lvmconfig", "--type", "full", "devices/global_filter", "devices/filter")
    if isinstance(said, Unknown):
        return None if said.absent else said
    filters = [
        tuple(_LIST.findall(line.partition("=")[2]))
        for line in said.splitlines()
        if line.split("=")[0].endswith("filter")
    ]
    # LVM before 2.03.12 has no such file, and says that there is no such setting.
    listed = source.said("lvmconfig", "--type", "full", "devices/use_devicesfile")
    uses = not isinstance(listed, Unknown) and listed.strip() == "use_devicesfile=1"
    return Lvm(uses and source.exists("/etc/lvm/devices/system.devices"), tuple(filters))


def _multipath(source: Source) -> tuple[str, ...]:
    """Names that multipath's configuration excepts from its blacklist."""
    files = [source.path("/etc/multipath.conf")]
    files += sorted(source.path("/etc/multipath/conf.d").glob("*.conf"))
    found: list[str] = []
    for path in files:
        text = source.text(str(path.relative_to(source.root)))
        if isinstance(text, str):
            for section in _EXCEPTIONS.findall(re.sub(r"[#!].*", "", text)):
                found += _DEVNODE.findall(section)
    return tuple(found)


def _holders(source: Source) -> Mapping[str, str] | Unknown:
    """ZVol device or partition -> the kind of what the kernel has stacked on it."""
    found = {}
    try:
        for holder in sorted(source.path(_BLOCK).glob("zd*/holders/*")):
            kind = source.text(f"{_BLOCK}/{holder.name}/dm/uuid")
            device = holder.parent.parent.name
            found[device] = holder.name if isinstance(kind, Unknown) else kind.strip()
    except OSError as error:
        return Unknown(f"{_BLOCK}: {error.strerror}")
    return found


def _link_rule(source: Source) -> str:
    """The rule that holds: an empty one in an earlier directory switches it off."""
    for place in _RULES:
        path = f"{place}/{_RULE}"
        if source.path(path).is_symlink() or source.exists(path):
            text = source.text(path)
            return path if isinstance(text, str) and "zvol_id" in text else ""
    return ""
