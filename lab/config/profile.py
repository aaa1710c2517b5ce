"""Profiles: what survives what, and how storage and engine are driven for that.

A profile is one word for settings that only make sense together: how the volumes of a node
are kept (where the storage can: ZFS) and the options of the engine on them. docs/zfs.md says
what each of them risks; ``risks`` says it of any profile, those of users included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Layout = Literal["single", "split"]
"""Which volumes a node has: one for everything, or one each for system, data and logs."""

VOLUMES: Mapping[Layout, tuple[str, ...]] = {"single": ("os",), "split": ("os", "data", "log")}
"""The names of a node's volumes, the one it boots from first."""

KIB = 1 << 10


@dataclass(frozen=True)
class VolumeProfile:
    """How a storage that can (ZFS) keeps a volume; others keep it their own way.

    ``block_size`` in bytes, fixed when an image is imported; the others as the ZFS
    properties of these names (zfsprops(7)), set on each clone.
    """

    block_size: int = 16 * KIB
    compression: str = "lz4"
    sync: Literal["standard", "always", "disabled"] = "standard"
    logbias: Literal["latency", "throughput"] = "latency"
    primarycache: Literal["all", "metadata", "none"] = "all"


@dataclass(frozen=True)
class EngineProfile:
    """Options of the engine.

    ``flush_log``: innodb_flush_log_at_trx_commit. ``io_capacity`` in pages a second.
    ``buffer_pool``: percent of the node's memory.
    """

    doublewrite: bool = True
    flush_method: Literal["O_DIRECT", "O_DIRECT_NO_FSYNC", "fsync"] = "O_DIRECT"
    flush_log: Literal[0, 1, 2] = 1
    io_capacity: int = 200
    buffer_pool: int = 25


@dataclass(frozen=True)
class Profile:
    """See the module. ``os``, ``data``, ``log``: how the volumes of these names are kept."""

    name: str
    os: VolumeProfile = VolumeProfile()
    data: VolumeProfile = VolumeProfile(primarycache="metadata")
    log: VolumeProfile = VolumeProfile(block_size=128 * KIB)
    engine: EngineProfile = EngineProfile()

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
