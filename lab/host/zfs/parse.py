"""The texts that ZFS and its tools print, as plain values.

Only whole lines count: the last line of a text that was cut off may hold half a number.
Lines that are not of the form are left out, so what is missing stays missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from lab.host.zfs.facts import Disk, Role, Versions

_SECTIONS: dict[str, Role] = {
    "logs": "logs",
    "cache": "cache",
    "special": "special",
    "dedup": "dedup",
    "spare": "spare",
}
_GROUP = re.compile(r"(?:mirror|raidz[123]?|draid\S*|spare|replacing|root|indirect)-[0-9]+")
_CACHED = re.compile(r"( *)(type|id|path|ashift): (?:'(.*)'|([0-9]+))")
_CACHED_POOL = re.compile(r"(\S.*):")
_CACHED_CHILD = re.compile(r"( *)children\[[0-9]+\]:")


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


def disks(text: str) -> tuple[Disk, ...]:
    """The devices of one pool in what ``zpool list -HvpP`` prints."""
    found = []
    group = ""
    for role, name, top in _rows(text):
        is_group = bool(_GROUP.fullmatch(name))
        if top:
            group = name if is_group else ""
        if not is_group:
            found.append(Disk(name, role, group))
    return tuple(found)


def tops(text: str, roles: Collection[Role]) -> list[str]:
    """Its devices and groups that stand by themselves, as ``zpool list -Hvp`` names them."""
    return [name for role, name, top in _rows(text) if top and role in roles]


def _rows(text: str) -> Iterator[tuple[Role, str, bool]]:
    """Role and name of each device and group, and whether it is part of no group.

    The pool's own line comes first, then a line with a tab before it for each device and each
    group; the members of a group have no figure of allocated bytes of their own. Lines with a
    section's name, padded with spaces, stand before its devices.
    """
    role: Role = "data"
    for line in lines(text)[1:]:
        fields = line.split("\t")
        section = line.partition(" ")[0]
        if section in _SECTIONS:
            role = _SECTIONS[section]
        elif fields[0] == "" and len(fields) > 9:
            yield role, fields[1], fields[3] != "-" or role == "spare"


def ashifts(text: str) -> dict[str, int]:
    """By device or group, in what ``zpool get -Hp -o name,value ashift POOL DEVICE...`` prints.

    Devices have properties from OpenZFS 2.2 on.
    """
    return {name: value for name, value in numbers(properties(text)).items() if value}


def cached_ashifts(text: str, pool: str) -> dict[str, int]:
    """The same in what ``zdb -C`` prints of its cache file, for OpenZFS 2.1."""
    found: dict[str, int] = {}
    for child in _children(text, pool):
        name = child.get("path") or f"{child.get('type', '?')}-{child.get('id', '?')}"
        if child.get("ashift", "").isdigit():
            found[name] = int(child["ashift"])
    return found


def _children(text: str, pool: str) -> Iterator[dict[str, str]]:
    """Type, id, path and ashift of the pool's top-level devices, as texts."""
    inside, child, depth = False, dict[str, str](), 0
    for line in lines(text):
        head = _CACHED_POOL.fullmatch(line)
        start = _CACHED_CHILD.fullmatch(line)
        value = _CACHED.fullmatch(line)
        if head:
            inside, depth = head[1] == pool, 0
        elif inside and start and depth in (0, len(start[1])):
            yield child
            child, depth = {}, len(start[1])
        elif inside and value and len(value[1]) == depth + 4:
            child[value[2]] = value[3] if value[3] is not None else value[4]
    yield child


def diskinfo(text: str) -> dict[str, str]:
    """What FreeBSD's ``diskinfo -v`` says of one device: ``value # name`` a line."""
    found = {}
    for line in lines(text):
        value, sign, name = line.partition("#")
        if sign:
            found[name.strip().rstrip(".")] = value.strip()
    return found


def swaps(text: str) -> tuple[str, ...]:
    """The devices in /proc/swaps, or in what FreeBSD's ``swapctl -l`` prints."""
    return tuple(line.split()[0] for line in lines(text)[1:] if line.strip())
