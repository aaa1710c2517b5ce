"""What is known of ZFS on a host: plain facts, without a judgement.

``read`` gathers them, the checks turn them into findings. What could not be read is
``Unknown`` with the reason, and None is what the host itself does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lab.config.profile import Profile
from lab.host.finding import Level

System = Literal["linux", "freebsd"]
Role = Literal["data", "special", "dedup", "logs", "cache", "spare"]


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read. ``absent``: this version or system has no such thing."""

    why: str
    absent: bool = False

    def __str__(self) -> str:
        return self.why if self.absent else f"unknown: {self.why}"


@dataclass(frozen=True)
class Tunable:
    """A parameter of the kernel module, by the name that it has on this host."""

    name: str
    value: int | Unknown


@dataclass(frozen=True)
class Versions:
    """Of OpenZFS, such as ``2.3.9-0+deb13u1``; empty if unknown."""

    userland: str
    kernel: str


@dataclass(frozen=True)
class Disk:
    """A device of a pool. ``group``: the mirror or raidz that it is part of, empty if of none.

    ``sector``: bytes, as the device reports them (physical). ``volatile``: it may lose what it
    was sent until it is flushed.
    """

    path: str
    role: Role
    group: str = ""
    sector: int | None = None
    rotates: bool | None = None
    discards: bool | None = None
    volatile: bool | None = None


@dataclass(frozen=True)
class Scan:
    """A scrub or resilver. ``at``: when it began or ended, UTC seconds, None if unknown."""

    kind: Literal["scrub", "resilver"]
    state: Literal["finished", "canceled", "paused", "running"]
    at: float | None
    errors: int = 0


@dataclass(frozen=True)
class Status:
    """What ``zpool status`` says. ``problem`` and ``action`` are empty if there is none."""

    state: str
    problem: str = ""
    action: str = ""
    scans: tuple[Scan, ...] = ()
    errors: str = ""


@dataclass(frozen=True)
class Pool:
    """A pool. ``properties``: its own; ``root``: those of its root dataset.

    ``ashifts``: exponent of the smallest write, by device or group.
    """

    name: str
    properties: Mapping[str, str] | Unknown
    root: Mapping[str, str] | Unknown
    disks: tuple[Disk, ...] | Unknown
    ashifts: Mapping[str, int] | Unknown
    status: Status | Unknown

    def of(self, *roles: Role) -> tuple[Disk, ...]:
        """The disks with one of these roles; none if they are unknown."""
        known = () if isinstance(self.disks, Unknown) else self.disks
        return tuple(disk for disk in known if disk.role in roles)


@dataclass(frozen=True)
class Lvm:
    """How LVM finds its disks: the file that lists them is in use, or its filters."""

    devices_file: bool
    filters: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Neighbours:
    """Other users of block devices. All but ``swaps`` are Linux's.

    ``lvm``: None if it is not installed. ``multipath``: regular expressions of device names
    that multipathd is configured to take. ``holders``: ZVol device -> what is stacked on it, such
    as ``LVM-...``. ``link_rule``: udev's rule for ZVols, empty if there is none.
    """

    swaps: tuple[str, ...] | Unknown
    lvm: Lvm | Unknown | None = None
    multipath: tuple[str, ...] = ()
    holders: Mapping[str, str] | Unknown | None = None
    udev: bool = False
    link_rule: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it. ``arc``: the counters of ``arcstats``; ``now``: UTC seconds.

    ``module``: the kernel has ZFS loaded. ``tunables``: by our name for them, see ``tunables``.
    ``dataset``: properties of the one that labs are below, None if none is configured.
    """

    system: System
    now: float
    module: bool
    versions: Versions | Unknown
    tunables: Mapping[str, Tunable]
    arc: Mapping[str, int] | Unknown
    pools: tuple[Pool, ...] | Unknown
    dataset: Mapping[str, str] | Unknown | None
    neighbours: Neighbours


@dataclass(frozen=True)
class Needs:
    """What labs want of the host; bytes.

    ``dataset``: where they are, such as ``tank/lab``, empty if not on ZFS. ``guests``: memory
    of the running ones, None if not known. The floors stay free. ``profile``: the default one.
    """

    dataset: str
    guests: int | None
    memory_floor: int
    space_floor: int
    profile: Profile

    def level(self, level: Level) -> Level:
        """``level`` where labs are on ZFS; where they are not, nothing is worse than a note."""
        return level if self.dataset else "note"
