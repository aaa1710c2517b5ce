"""Gathers the facts. It changes nothing, and never raises for what it cannot read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lab.host.zfs import freebsd, linux, parse
from lab.host.zfs.facts import Disk, Facts, Neighbours, Pool, Role, System, Unknown, Versions
from lab.host.zfs.source import Source
from lab.host.zfs.status import status

_OF_A_DATASET = ("available", "used", "creation", "volmode", "dedup")
_SMALLEST_WRITE: tuple[Role, ...] = ("data", "special", "dedup", "logs")


def read(system: System, source: Source, dataset: str) -> Facts | None:
    """What there is; None where there is no ZFS: neither programs nor module.

    ``dataset``: where labs are; its pool is the only one looked at. Empty: all pools are.
    """
    place = linux if system == "linux" else freebsd
    module = place.has_module(source)
    # Not `zfs version`: that would load the module on FreeBSD.
    said = source.said("zfs", "--version")
    versions = said if isinstance(said, Unknown) else parse.versions(said)
    if not module:
        absent = isinstance(said, Unknown) and said.absent
        return None if absent else _unloaded(system, versions)
    return Facts(
        system,
        time.time(),
        module,
        versions,
        place.tunables(source),
        place.arc(source),
        _pools(source, dataset.partition("/")[0], place.disk),
        _properties(source, "zfs", ",".join(_OF_A_DATASET), dataset) if dataset else None,
        place.neighbours(source),
    )


def _unloaded(system: System, versions: Versions | Unknown) -> Facts:
    """Programs without a module: nothing more is asked, for that may load it."""
    why = Unknown("the module is not loaded")
    return Facts(system, time.time(), False, versions, {}, why, why, None, Neighbours(why))


def _pools(
    source: Source, only: str, look: Callable[[Source, Disk], Disk]
) -> tuple[Pool, ...] | Unknown:
    said = source.said("zpool", "list", "-Hp", "-o", "name")
    if isinstance(said, Unknown):
        return said
    names = [name for name in parse.lines(said) if name and only in ("", name)]
    return tuple(_pool(source, name, look) for name in names)


def _pool(source: Source, name: str, look: Callable[[Source, Disk], Disk]) -> Pool:
    listed = source.said("zpool", "list", "-HvpP", name)
    disks = listed if isinstance(listed, Unknown) else parse.disks(listed)
    said = source.said("zpool", "status", "-p", name)
    return Pool(
        name,
        _properties(source, "zpool", "all", name),
        _properties(source, "zfs", ",".join(_OF_A_DATASET), name),
        disks if isinstance(disks, Unknown) else tuple(look(source, d) for d in disks),
        _ashifts(source, name),
        said if isinstance(said, Unknown) else status(said),
    )


def _properties(
    source: Source, program: str, wanted: str, name: str
) -> Mapping[str, str] | Unknown:
    said = source.said(program, "get", "-Hp", "-o", "property,value", wanted, name)
    return said if isinstance(said, Unknown) else parse.properties(said)


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
