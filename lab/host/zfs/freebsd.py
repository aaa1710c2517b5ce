"""The facts that FreeBSD keeps in sysctls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.host.zfs import parse
from lab.host.zfs.facts import Disk, Neighbours, Tunable, Unknown
from lab.host.zfs.source import Source, formed
from lab.host.zfs.tunables import TUNABLES, names_on

_ARC = "kstat.zfs.misc.arcstats"


def has_module(source: Source) -> bool:
    """True if the kernel has ZFS."""
    return not isinstance(source.said("sysctl", "-n", "vfs.zfs.version.module"), Unknown)


def tunables(source: Source) -> dict[str, Tunable]:
    """Those of ``names`` that FreeBSD may have, by the name that this host knows."""
    wanted = [name for key in TUNABLES for name in names_on("freebsd", key)]
    said = source.said("sysctl", "-ei", *wanted)  # -i: unknown names are not an error
    have = {} if isinstance(said, Unknown) else parse.numbers(parse.sysctls(said))
    missing = said if isinstance(said, Unknown) else Unknown("not in this version", absent=True)
    found = {}
    for key in TUNABLES:
        names = names_on("freebsd", key)
        name = next((name for name in names if name in have), names[0] if names else "")
        if name:
            found[key] = Tunable(name, have.get(name, missing))
    return found


def arc(source: Source) -> Mapping[str, int] | Unknown:
    """The ARC's counters."""
    said = source.said("sysctl", "-e", _ARC)
    return formed(said, lambda text: parse.numbers(parse.sysctls(text), f"{_ARC}."))


def disk(source: Source, what: Disk) -> Disk:
    """``what`` with what GEOM says of it; whether its cache is volatile it does not say."""
    said = source.said("diskinfo", "-v", what.path) if what.path.startswith("/dev/") else None
    if said is None or isinstance(said, Unknown):
        return what
    facts = parse.diskinfo(said)
    speed = facts.get("Rotation rate in RPM", "")
    trim = facts.get("TRIM/UNMAP support", "")
    return replace(
        what,
        sector=_sector(parse.numbers(facts)),
        rotates=int(speed) > 0 if speed.isdigit() else None,
        discards={"Yes": True, "No": False}.get(trim),
    )


def _sector(facts: Mapping[str, int]) -> int | None:
    """The physical sector, by the rule of ZFS (module/os/freebsd/zfs/vdev_geom.c).

    That is the stripe if it is a larger power of two without an offset. A stripe above 16K is
    that of an array: zfs_vdev_max_auto_ashift is 14.
    """
    sector, stripe = facts.get("sectorsize"), facts.get("stripesize", 0)
    if sector is None or facts.get("stripeoffset", 1) != 0:
        return sector
    fits = sector < stripe <= 1 << 14 and stripe & (stripe - 1) == 0
    return stripe if fits else sector


def neighbours(source: Source) -> Neighbours:
    """Only swap: nothing else on FreeBSD opens ZVols by itself."""
    return Neighbours(formed(source.said("swapctl", "-l"), parse.swaps))
