"""Gathers the facts: from files on Linux, from sysctls on FreeBSD. It changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lab.host.zfs import parse
from lab.host.zfs.facts import Facts, Lvm, Pool, System, Tunable, Unknown
from lab.host.zfs.source import Source, formed
from lab.paths import entries

TUNABLES: Mapping[str, tuple[str, str]] = {
    "arc_max": ("zfs_arc_max", "vfs.zfs.arc.max"),
    "nocacheflush": ("zfs_nocacheflush", "vfs.zfs.nocacheflush"),
    "zil_nocacheflush": ("zil_nocacheflush", "vfs.zfs.zil.nocacheflush"),
    "bio_flush_disable": ("", "vfs.zfs.vdev.bio_flush_disable"),
    "inhibit_dev": ("zvol_inhibit_dev", "vfs.zfs.vol.inhibit_dev"),
}
"""Parameters of the module: of /sys/module/zfs/parameters on Linux, sysctls on FreeBSD. Read from
OpenZFS 2.1.11, 2.2.9 (FreeBSD 14), 2.3.9 and 2.4.4 (FreeBSD 15)."""

_MODULE = "/sys/module/zfs"
_BLOCK = "/sys/class/block"
_RULES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")
_ARC = "kstat.zfs.misc.arcstats"


def read(system: System, source: Source, dataset: str) -> Facts | None:
    """All facts; None without ZFS: neither programs nor module.

    ``dataset``: the labs' parent, whose pool is the only one that is read. Empty: all pools are.
    """
    # Not `zfs version`: that would load the module on FreeBSD.
    output = source.output("zfs", "--version")
    versions = formed(output, parse.versions)
    if not _has_module(system, source):  # other commands may load it too
        why = Unknown("the module is not loaded")
        absent = isinstance(output, Unknown) and output.absent
        return None if absent else Facts(system, False, versions, {}, why, why, None, why)
    pools = _pools(source, dataset.partition("/")[0])
    labs = _properties(source, dataset) if dataset else None
    if system == "freebsd":
        names = [name for _, name in TUNABLES.values()]
        values = formed(source.output("sysctl", "-ei", *names), parse.sysctls)  # -i: skip unknown
        arc = formed(
            source.output("sysctl", "-e", _ARC),
            lambda text: parse.numbers(parse.sysctls(text), f"{_ARC}."),
        )
        swaps = formed(source.output("swapctl", "-l"), parse.swaps)
        return Facts(system, True, versions, _sysctls(values), arc, pools, labs, swaps)
    return Facts(
        system,
        True,
        versions,
        {
            key: Tunable(name, source.number(f"{_MODULE}/parameters/{name}"))
            for key, (name, _) in TUNABLES.items()
            if name
        },
        formed(source.text("/proc/spl/kstat/zfs/arcstats"), parse.kstat),
        pools,
        labs,
        formed(source.text("/proc/swaps"), parse.swaps),
        _lvm(source),
        _holders(source),
        _link_rule(source),
    )


def _has_module(system: System, source: Source) -> bool:
    if system == "linux":
        return source.exists(_MODULE)
    return not isinstance(source.output("sysctl", "-n", "vfs.zfs.version.module"), Unknown)


def _sysctls(values: Mapping[str, str] | Unknown) -> dict[str, Tunable]:
    have = {} if isinstance(values, Unknown) else parse.numbers(values)
    missing = values if isinstance(values, Unknown) else Unknown("not in this version", absent=True)
    return {key: Tunable(name, have.get(name, missing)) for key, (_, name) in TUNABLES.items()}


def _pools(source: Source, only: str) -> tuple[Pool, ...] | Unknown:
    listed = formed(source.output("zpool", "list", "-Hp", "-o", "name"), parse.lines)
    if isinstance(listed, Unknown):
        return listed
    return tuple(_pool(source, name) for name in listed if name and only in ("", name))


def _pool(source: Source, name: str) -> Pool:
    output = source.output("zpool", "get", "-Hp", "-o", "property,value", "all", name)
    status = source.output("zpool", "status", "-x", name)
    return Pool(
        name,
        formed(output, parse.properties),
        _properties(source, name),
        status if isinstance(status, Unknown) else parse.status(status),
    )


def _properties(source: Source, dataset: str) -> Mapping[str, str] | Unknown:
    properties = "available,volmode,dedup"
    output = source.output("zfs", "get", "-Hp", "-o", "property,value", properties, dataset)
    return formed(output, parse.properties)


def _lvm(source: Source) -> Lvm | Unknown | None:
    output = source.output("lvmconfig", "--type", "full", "devices/global_filter", "devices/filter")
    if isinstance(output, Unknown):
        return None if output.absent else output
    filters = [
        tuple(re.findall(r'"((?:[^"\\]|\\.)*)"', line.partition("=")[2]))
        for line in output.splitlines()
        if line.split("=")[0].endswith("filter")
    ]
    # LVM before 2.03.12 has no such file, and reports an unknown setting.
    listed = source.output("lvmconfig", "--type", "full", "devices/use_devicesfile")
    uses = not isinstance(listed, Unknown) and listed.strip() == "use_devicesfile=1"
    return Lvm(uses and source.exists("/etc/lvm/devices/system.devices"), tuple(filters))


def _holders(source: Source) -> Mapping[str, str] | Unknown:
    found = {}
    try:
        for device in entries(source.path(_BLOCK)):
            holders = entries(device / "holders") if device.name.startswith("zd") else ()
            for holder in holders:
                kind = source.text(f"{_BLOCK}/{holder.name}/dm/uuid")
                found[device.name] = holder.name if isinstance(kind, Unknown) else kind.strip()
    except OSError as error:
        return Unknown(f"{_BLOCK}: {error.strerror}")
    return found


def _link_rule(source: Source) -> str | None:
    """The rule in effect: an empty file or a link to nothing in an earlier directory masks it."""
    if not source.exists("/run/udev/control"):
        return None
    for place in _RULES:
        path = f"{place}/60-zvol.rules"
        if source.path(path).is_symlink() or source.exists(path):
            text = source.text(path)
            return path if isinstance(text, str) and "zvol_id" in text else ""
    return ""
