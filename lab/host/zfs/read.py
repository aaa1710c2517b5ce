"""Gathers the facts. It changes nothing, and never raises for what it cannot read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lab.host.zfs import freebsd, linux, parse
from lab.host.zfs.facts import Disk, Facts, Neighbours, Pool, Role, System, Unknown
from lab.host.zfs.source import Source, formed

_OF_A_DATASET = ("available", "used", "creation", "volmode", "dedup")
_SMALLEST_WRITE: tuple[Role, ...] = ("data", "special", "dedup", "logs")


def read(system: System, source: Source, dataset: str) -> Facts | None:
    """What there is; None where there is no ZFS: neither programs nor module.

    ``dataset``: where labs are; its pool is the only one looked at. Empty: all pools are.
    """
    place = linux if system == "linux" else freebsd
    # Not `zfs version`: that would load the module on FreeBSD.
    said = source.said("zfs", "--version")
    versions = formed(said, parse.versions)
    if not place.has_module(source):  # nothing more is asked, for that may load it
        why = Unknown("the module is not loaded")
        absent = isinstance(said, Unknown) and said.absent
        unloaded = Facts(system, time.time(), False, versions, {}, why, why, None, Neighbours(why))
        return None if absent else unloaded
    return Facts(
        system,
        time.time(),
        True,
        versions,
        place.tunables(source),
        place.arc(source),
        _pools(source, dataset.partition("/")[0], place.disk),
        _properties(source, dataset) if dataset else None,
        place.neighbours(source),
    )


def _pools(
    source: Source, only: str, look: Callable[[Source, Disk], Disk]
) -> tuple[Pool, ...] | Unknown:
    listed = formed(source.said("zpool", "list", "-Hp", "-o", "name"), parse.lines)
    if isinstance(listed, Unknown):
        return listed
    return tuple(_pool(source, name, look) for name in listed if name and only in ("", name))


def _pool(source: Source, name: str, look: Callable[[Source, Disk], Disk]) -> Pool:
    disks = formed(source.said("zpool", "list", "-HvpP", name), parse.disks)
    status = source.said("zpool", "status", "-p", name)
    own = source.said("zpool", "get", "-Hp", "-o", "property,value", "all", name)
    return Pool(
        name,
        formed(own, parse.properties),
        _properties(source, name),
        disks if isinstance(disks, Unknown) else tuple(look(source, disk) for disk in disks),
        _ashifts(source, name),
        status if isinstance(status, Unknown) else parse.status(status),
    )


def _properties(source: Source, dataset: str) -> Mapping[str, str] | Unknown:
    wanted = ",".join(_OF_A_DATASET)
    said = source.said("zfs", "get", "-Hp", "-o", "property,value", wanted, dataset)
    return formed(said, parse.properties)


def _ashifts(source: Source, name: str) -> Mapping[str, int] | Unknown:
    """Of what data and logs lie on; caches and spares are asked for none.

    The pool's own property is but the default for devices that are added.
    """
    listed = source.said("zpool", "list", "-Hvp", name)
    devices = [] if isinstance(listed, Unknown) else parse.tops(listed, _SMALLEST_WRITE)
    said = source.said("zpool", "get", "-Hp", "-o", "name,value", "ashift", name, *devices)
    found = {} if isinstance(said, Unknown) or not devices else parse.ashifts(said)
    if not found:
        cached = source.said("zdb", "-C")
        found = {} if isinstance(cached, Unknown) else parse.cached_ashifts(cached, name)
    return found or Unknown("neither `zpool get ashift` nor `zdb -C` tells")
