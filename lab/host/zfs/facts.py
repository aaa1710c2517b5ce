"""Facts about ZFS on a host, without a judgement: ``read`` gathers them, ``checks`` judges them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from lab.config.profile import Profile
from lab.host.finding import Level
from lab.values import dataclass

System = Literal["linux", "freebsd"]


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read. ``absent``: this version or system does not have it."""

    why: str
    absent: bool = False

    def __str__(self) -> str:
        return self.why if self.absent else f"unknown: {self.why}"


@dataclass(frozen=True)
class Tunable:
    """A parameter of the kernel module, by its name on this system."""

    name: str
    value: int | Unknown


@dataclass(frozen=True)
class Versions:
    """Of OpenZFS, such as ``2.3.9-0+deb13u1``; empty if unknown."""

    userland: str
    kernel: str


@dataclass(frozen=True)
class Pool:
    """A pool: its properties, those of its root dataset, and the parts of ``zpool status -x``.

    ``status`` is empty for a healthy pool.
    """

    name: str
    properties: Mapping[str, str] | Unknown
    root: Mapping[str, str] | Unknown
    status: Mapping[str, str] | Unknown


@dataclass(frozen=True)
class Lvm:
    """How LVM selects disks: its devices file is in use, or its filters."""

    devices_file: bool
    filters: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Facts:
    """All facts about ZFS on a host."""

    system: System
    module: bool
    """Whether the kernel has ZFS loaded."""
    versions: Versions | Unknown
    tunables: Mapping[str, Tunable]
    """By the keys of ``TUNABLES``."""
    arc: Mapping[str, int] | Unknown
    """The counters of ``arcstats``."""
    pools: tuple[Pool, ...] | Unknown
    dataset: Mapping[str, str] | Unknown | None
    """Properties of the labs' parent dataset; None if none is configured."""
    swaps: tuple[str, ...] | Unknown
    lvm: Lvm | Unknown | None = None
    """None if it is not installed."""
    holders: Mapping[str, str] | Unknown | None = None
    """The device on top of each ZVol device, such as ``LVM-...``."""
    link_rule: str | None = None
    """udev's rule for ZVols; empty if it is missing, None without udev."""


@dataclass(frozen=True)
class Needs:
    """The requirements of labs; bytes."""

    dataset: str
    """Their parent dataset, such as ``tank/lab``; empty if they are not on ZFS."""
    guests: int | None
    """Memory of the guests that run; None if it is not known."""
    memory_floor: int
    """Memory that stays free."""
    space_floor: int
    """Space that stays free."""
    profile: Profile
    """The default profile."""

    def level(self, level: Level) -> Level:
        """``level`` if labs are on ZFS; if not, at most a note."""
        return level if self.dataset else "note"
