"""Profiles: what survives what, and how storage and engine are driven for that.

A profile is one word for settings that only make sense together: how the volumes of a node
are kept (where the storage can: ZFS) and the options of the engine on them. docs/zfs.md says
what each of them risks; ``risks`` says it of any profile, those of users included. Users write
theirs in a config file, as a base and what differs from it::

    [profiles.fast]
    base = "disposable"
    engine = { flush_log = 2, buffer_pool = 50 }
    data = { compression = "off" }
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from lab.errors import InvalidSpec
from lab.keys import (
    Given,
    Key,
    WrongType,
    keys,
    matching,
    overlay,
    parse,
    text,
    within,
)
from lab.suggest import did_you_mean
from lab.units import SIZE
from lab.values import dataclass

Layout = Literal["single", "split"]
"""Which volumes a node has: one for everything, or one each for system, data and logs."""

VOLUMES: Mapping[Layout, tuple[str, ...]] = {"single": ("os",), "split": ("os", "data", "log")}
"""The names of a node's volumes, the one it boots from first."""

KIB = 1 << 10


def _power_of_two(value: object) -> int:
    size = int(SIZE.parse(value))
    if not 4 * KIB <= size <= 128 * KIB or size & (size - 1):
        raise WrongType
    return size


_COMPRESSION = r"on|off|lz4|lzjb|zle|gzip(-[1-9])?|zstd(-fast)?(-\d{1,4})?"


@dataclass(frozen=True)
class VolumeProfile:
    """How a storage that can (ZFS) keeps a volume; others keep it their own way.

    Each is the ZFS property of that name (zfsprops(7)), set on each clone.
    """

    block_size: Annotated[int, Key("a power of two from 4K to 128K", _power_of_two)] = 16 * KIB
    """``volblocksize`` in bytes, fixed when an image is imported."""
    compression: Annotated[
        str, matching("on, off or an algorithm of ZFS such as lz4, zstd, gzip-1", _COMPRESSION)
    ] = "lz4"
    """Compression of blocks."""
    sync: Literal["standard", "always", "disabled"] = "standard"
    """What becomes of synchronous writes."""
    logbias: Literal["latency", "throughput"] = "latency"
    """Whether synchronous writes use a separate log device."""
    primarycache: Literal["all", "metadata", "none"] = "all"
    """What the ARC caches."""


@dataclass(frozen=True)
class EngineProfile:
    """Options of the engine."""

    doublewrite: bool = True
    """``innodb_doublewrite``."""
    flush_method: Literal["O_DIRECT", "O_DIRECT_NO_FSYNC", "fsync"] = "O_DIRECT"
    """``innodb_flush_method``."""
    flush_log: Annotated[Literal[0, 1, 2], within(0, 2)] = 1
    """``innodb_flush_log_at_trx_commit``."""
    io_capacity: Annotated[int, within(100, 1_000_000)] = 200
    """``innodb_io_capacity``, in pages a second."""
    buffer_pool: Annotated[int, within(5, 75)] = 25
    """The buffer pool, in percent of the node's memory."""


@dataclass(frozen=True)
class Profile:
    """See the module. The fields but ``name`` are the tables of a profile in a config file."""

    name: Given[str]
    """Its name."""
    os: VolumeProfile = VolumeProfile()
    """The volume of the system."""
    data: VolumeProfile = VolumeProfile(primarycache="metadata")
    """The volume of the data directory."""
    log: VolumeProfile = VolumeProfile(block_size=128 * KIB)
    """The volume of redo logs."""
    engine: EngineProfile = EngineProfile()
    """The options of the engine."""

    def volume(self, name: str) -> VolumeProfile:
        """How the volume ``name`` of a node is kept."""
        return {"os": self.os, "data": self.data, "log": self.log}[name]

    def content(self) -> dict[str, Any]:
        """All but the name: what decides whether something made with it fits another one."""
        values = asdict(self)
        del values["name"]
        return values


_BALANCED = Profile("balanced")
_DURABLE = replace(
    _BALANCED,
    name="durable",
    data=replace(_BALANCED.data, sync="always"),
    log=replace(_BALANCED.log, sync="always"),
)
_DISPOSABLE = Profile(
    "disposable",
    os=VolumeProfile(sync="disabled"),
    data=VolumeProfile(sync="disabled", logbias="throughput", primarycache="metadata"),
    log=VolumeProfile(block_size=128 * KIB, sync="disabled", logbias="throughput"),
    engine=EngineProfile(doublewrite=False, flush_log=0, io_capacity=2000, buffer_pool=40),
)

PROFILES: Mapping[str, Profile] = {p.name: p for p in (_DURABLE, _BALANCED, _DISPOSABLE)}
"""The profiles that are always there; ``balanced`` is the default."""

DEFAULT = _BALANCED


def risks(profile: Profile) -> list[str]:
    """What can be lost under ``profile``, one line each; empty if no commit can."""
    found = []
    if profile.engine.flush_log == 0:
        found.append("a node whose server dies loses up to a second of its commits")
    if profile.engine.flush_log == 2:
        found.append("a guest that dies loses up to a second of its commits")
    if not profile.engine.doublewrite:
        found.append("a crash in the middle of a write can leave a torn page: a damaged node")
    if profile.engine.flush_method == "O_DIRECT_NO_FSYNC":
        found.append("a power loss can damage data files that had just grown")
    volumes = {n: profile.volume(n) for n in VOLUMES["split"]}
    ignored = [name for name, volume in volumes.items() if volume.sync == "disabled"]
    if ignored:
        found.append(
            "on ZFS, a power loss of the host takes the last seconds of writes to"
            f" {', '.join(ignored)}"
        )
    return found


_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


def _base(value: object) -> Profile:
    if text(value) not in PROFILES:
        raise InvalidSpec(
            f"there is no profile {value!r}", hint=did_you_mean(text(value), PROFILES)
        )
    return PROFILES[text(value)]


def parse_profiles(value: object) -> Mapping[str, Profile]:
    """The profiles in the table ``[profiles]``; raises WrongType or InvalidSpec."""
    if not isinstance(value, Mapping):
        raise WrongType
    return {name: _profile(name, table) for name, table in value.items()}


def _profile(name: str, table: object) -> Profile:
    place = f"[profiles.{name}]"
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a name for a profile", hint="small letters, digits and hyphens"
        )
    if name in PROFILES:
        raise InvalidSpec(f"{name} is a built-in profile", hint="choose another name")
    if not isinstance(table, Mapping):
        raise InvalidSpec(f"{place} is not a table")
    known = {"base": Key("one of " + ", ".join(PROFILES), _base), **keys(Profile)}
    base: Profile = parse(known, "base", table.get("base", DEFAULT.name), place)
    changes = {key: part for key, part in table.items() if key != "base"}
    return replace(overlay(base, changes, known, place), name=name)
