"""The texts that ZFS and its tools print, as plain values.

Only whole lines count: the last line of a text that was cut off may hold half a number.
Lines that are not of the form are left out, so what is missing stays missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from lab.host.zfs.facts import Disk, Role, Scan, Status, Unknown, Versions

_SECTIONS: tuple[Role, ...] = ("logs", "cache", "special", "dedup", "spare")
_GROUP = re.compile(r"(?:mirror|raidz[123]?|draid\S*|spare|replacing|root|indirect)-[0-9]+")


def lines(text: str) -> list[str]:
    """The lines of ``text`` that were not cut off."""
    return [line.removesuffix("\n") for line in text.splitlines(keepends=True) if line[-1] == "\n"]


def versions(text: str) -> Versions:
    """Of ``zfs version``: ``zfs-2.3.9-1`` and, if the module is loaded, ``zfs-kmod-2.3.9-1``."""
    kernel = re.search(r"^zfs-kmod-(\S+)$", text, re.M)
    userland = re.search(r"^zfs-(?!kmod-)(\S+)$", text, re.M)
    return Versions(userland[1] if userland else "", kernel[1] if kernel else "")


def kstat(text: str) -> dict[str, int]:
    """The counters of a file in /proc/spl/kstat: name, type, value after two lines of header."""
    fields = (line.split() for line in lines(text)[2:])
    return {f[0]: int(f[2]) for f in fields if len(f) == 3 and f[2].lstrip("-").isdigit()}


def sysctls(text: str) -> dict[str, str]:
    """The variables that ``sysctl -e`` prints as ``name=value``."""
    pairs = (line.partition("=") for line in lines(text))
    return {name: value.strip() for name, sign, value in pairs if sign and " " not in name}


def numbers(texts: Mapping[str, str], prefix: str = "") -> dict[str, int]:
    """Those whose name begins with ``prefix``, without it, and whose value is a number."""
    return {
        name.removeprefix(prefix): int(value)
        for name, value in texts.items()
        if name.startswith(prefix) and value.lstrip("-").isdigit()
    }


def properties(text: str) -> dict[str, str]:
    """Of ``zfs get`` and ``zpool get`` with ``-Hp -o property,value``; ``-`` stands for none."""
    pairs = (line.split("\t") for line in lines(text))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def diskinfo(text: str) -> dict[str, str]:
    """What FreeBSD's ``diskinfo -v`` says of one device: ``value # name`` a line."""
    rows = (line.partition("#") for line in lines(text))
    return {name.strip().rstrip("."): value.strip() for value, sign, name in rows if sign}


def swaps(text: str) -> tuple[str, ...]:
    """The devices in /proc/swaps, or in what FreeBSD's ``swapctl -l`` prints."""
    return tuple(line.split()[0] for line in lines(text)[1:] if line.strip())


def disks(text: str) -> tuple[Disk, ...]:
    """The devices of one pool in what ``zpool list -HvpP`` prints."""
    found = []
    group = ""
    for role, name, top in _devices(text):
        is_group = bool(_GROUP.fullmatch(name))
        if top:
            group = name if is_group else ""
        if not is_group:
            found.append(Disk(name, role, group))
    return tuple(found)


def tops(text: str, roles: Collection[Role]) -> list[str]:
    """Its devices and groups that stand by themselves, as ``zpool list -Hvp`` names them."""
    return [name for role, name, top in _devices(text) if top and role in roles]


def _devices(text: str) -> Iterator[tuple[Role, str, bool]]:
    """Role and name of each device and group, and whether it is part of no group.

    The pool's own line comes first, then a line with a tab before it for each device and each
    group; the members of a group have no figure of allocated bytes of their own. Lines with a
    section's name, padded with spaces, stand before its devices.
    """
    role: Role = "data"
    for line in lines(text)[1:]:
        fields = line.split("\t")
        section = line.partition(" ")[0]
        role = next((one for one in _SECTIONS if one == section), role)
        if fields[0] == "" and len(fields) > 9:
            yield role, fields[1], fields[3] != "-" or role == "spare"


def ashifts(text: str) -> dict[str, int]:
    """By device or group, in what ``zpool get -Hp -o name,value ashift POOL DEVICE...`` prints.

    Devices have properties from OpenZFS 2.2 on.
    """
    return {name: value for name, value in numbers(properties(text)).items() if value}


def cached_ashifts(text: str, pool: str) -> dict[str, int]:
    """The same in what ``zdb -C`` prints of its cache file, for OpenZFS 2.1.

    A pool's name is not indented, its devices (``children[0]:``) are by 8, their values by 12.
    """
    whole = "".join(f"{line}\n" for line in lines(text))
    config = re.search(rf"^{re.escape(pool)}:\n((?: .*\n)*)", whole, re.M)
    found = {}
    for device in re.findall(
        r"^ {8}children\[\d+\]:\n((?: {12}.*\n)*)", config[1] if config else "", re.M
    ):
        values = dict(re.findall(r"^ {12}(type|id|path|ashift): '?(.*?)'?$", device, re.M))
        if values.get("ashift", "").isdigit():
            name = values.get("path") or f"{values.get('type', '?')}-{values.get('id', '?')}"
            found[name] = int(values["ashift"])
    return found


# `zpool status` of one pool (cmd/zpool/zpool_main.c, OpenZFS 2.1 to 2.4): each part begins with its
# name and a colon after at most seven spaces; further lines of it begin with a tab. The
# machine-readable form (-j) came with 2.3 only.
_PART = re.compile(r" {0,7}([a-z]+):(?: (.*))?")
# A sequential resilver names its device: resilver (mirror-0) in progress since ...
_ENDED = re.compile(r"(scrub repaired|resilvered) .* with ([0-9]+) errors on (.*)")
_CANCELED = re.compile(r"(scrub|resilver)(?: \(.*?\))? canceled on (.*)")
_STARTED = re.compile(r"(scrub|resilver)(?: \(.*?\))? (in progress|paused) since (.*)")


def status(text: str) -> Status | Unknown:
    """The first pool's; Unknown if the text does not say how the pool is."""
    parts: list[tuple[str, str]] = []
    for line in lines(text):
        part = _PART.fullmatch(line)
        if part and part[1] == "pool" and parts:
            break
        if part:
            parts.append((part[1], part[2] or ""))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]} {line}")
    parts = [(name, " ".join(text.split())) for name, text in parts]
    first = dict(reversed(parts))
    if not first.get("state"):
        return Unknown("`zpool status` was cut off or is of an unknown form")
    scans = tuple(scan for name, text in parts if name == "scan" and (scan := _scan(text)))
    problem, action = first.get("status", ""), first.get("action", "")
    return Status(first["state"], problem, action, scans, first.get("errors", ""))


def _scan(text: str) -> Scan | None:
    """None for ``none requested`` and what newer versions may say."""
    kind: Literal["scrub", "resilver"] = "scrub" if text.startswith("scrub ") else "resilver"
    if found := _ENDED.match(text):
        return Scan(kind, "finished", _when(found[3]), int(found[2]))
    if found := _CANCELED.match(text):
        return Scan(kind, "canceled", _when(found[2]))
    if found := _STARTED.match(text):
        return Scan(kind, "paused" if found[2] == "paused" else "running", _when(found[3]))
    return None


def _when(text: str) -> float | None:
    """Of ctime(3), local time: the first five words, such as Sat Nov 21 11:23:35 2026."""
    words = " ".join(text.split()[:5])
    try:
        return time.mktime(time.strptime(words, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
