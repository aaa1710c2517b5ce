"""The output of ZFS and its tools, as plain values.

Only complete lines count: a truncated last line may hold half a number. Lines in an unknown format
are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lab.host.zfs.facts import Unknown, Versions


def lines(text: str) -> list[str]:
    """The complete lines of ``text``."""
    return [line.removesuffix("\n") for line in text.splitlines(keepends=True) if line[-1] == "\n"]


def versions(text: str) -> Versions:
    """Of ``zfs --version``: ``zfs-2.3.9-1`` and, if the module is loaded, ``zfs-kmod-2.3.9-1``."""
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
    """The numbers among ``texts`` whose names begin with ``prefix``, by the rest of the name."""
    return {
        name.removeprefix(prefix): int(value)
        for name, value in texts.items()
        if name.startswith(prefix) and value.lstrip("-").isdigit()
    }


def properties(text: str) -> dict[str, str]:
    """Of ``zfs get`` and ``zpool get`` with ``-Hp -o property,value``."""
    pairs = (line.split("\t") for line in lines(text))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def swaps(text: str) -> tuple[str, ...]:
    """The devices in /proc/swaps, or in the output of FreeBSD's ``swapctl -l``."""
    return tuple(line.split()[0] for line in lines(text)[1:] if line.strip())


def status(text: str) -> dict[str, str] | Unknown:
    """The parts of ``zpool status -x POOL``, such as ``state`` and ``action``; {} if healthy.

    A part is its name and a colon after at most seven spaces; its further lines begin with a tab
    (cmd/zpool/zpool_main.c, OpenZFS 2.1 to 2.4).
    """
    if re.fullmatch(r"pool '.*' is healthy\n", text):
        return {}
    whole = "".join(f"{line}\n" for line in lines(text))
    parts = re.findall(r"^ {0,7}([a-z]+): (.*\n(?:\t.*\n)*)", whole, re.M)
    found = {name: " ".join(value.split()) for name, value in reversed(parts)}
    return found if found.get("state") else Unknown("the output of `zpool status` is not known")
