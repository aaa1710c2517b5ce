"""The host: what it has, and whether that is enough, before anything is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lab.errors import ROOM_RETRY, HostUnfit
from lab.host import cgroup
from lab.units import format_size
from lab.values import dataclass


@dataclass(frozen=True)
class Memory:
    """Bytes of the host's memory: ``available`` without swapping, as the kernel estimates.

    ``limited``: the limit of a cgroup is lower than the host's memory, as in a container.
    """

    available: int
    total: int
    limited: bool = False


def memory(meminfo: Path = Path("/proc/meminfo"), cgroups: Path = cgroup.ROOT) -> Memory:
    """What the kernel says of memory; raises HostUnfit if it does not.

    ``meminfo``: proc(5), MemTotal and MemAvailable in KiB; ``cgroups``: where they are mounted.
    FreeBSD has sysctls.
    """
    from lab.host.system import system

    if system() == "freebsd":
        from lab.host import freebsd
        from lab.host.zfs.source import Source

        return Memory(*freebsd.memory(Source()))
    values = {}
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) << 10
    limit = cgroup.memory(cgroups)
    if limit is None or limit.total >= values["MemTotal"]:
        return Memory(values["MemAvailable"], values["MemTotal"])
    return Memory(min(values["MemAvailable"], limit.available), limit.total, limited=True)


def processors(cgroups: Path = cgroup.ROOT) -> int:
    """How many processors we may use: by CPU affinity, or fewer by a cgroup's quota."""
    bound = getattr(os, "sched_getaffinity", None)
    have = len(bound(0)) if bound else os.cpu_count() or 1
    return max(1, min(have, cgroup.processors(cgroups) or have))


def check_memory(
    sizes: Sequence[int],
    have: Memory,
    floor: int,
    *,
    hint: str = "use fewer nodes or less --memory, or remove a lab (`lab ls`)",
) -> None:
    """Raise HostUnfit unless nodes of ``sizes`` bytes fit, with ``floor`` bytes left over."""
    needed = sum(sizes)
    if needed + floor > have.available:
        each = f" of {format_size(sizes[0])}" if len(set(sizes)) == 1 else ""
        what = f"{len(sizes)} nodes{each} need" if len(sizes) > 1 else "a node needs"
        raise HostUnfit(
            f"{what} {format_size(needed)}"
            f" of memory; {format_size(have.available)} of {format_size(have.total)} is available"
            f" and {format_size(floor)} is kept free",
            hint=hint,
            retry_after=ROOM_RETRY if needed + floor <= have.total else None,
        )


def check_cpus(cpus: int) -> None:
    """Raise HostUnfit if a node is to have more processors (``cpus``) than the host."""
    have = processors()
    if cpus > have:
        raise HostUnfit(
            f"a node cannot have {cpus} CPUs: this host has {have}",
            hint=f"set --cpus to {have} or less",
        )


AIO_OF_GUEST = 1024
"""Requests that each QEMU reserves for native AIO (MAX_EVENTS in its block/linux-aio.c)."""


def aio_left(proc: Path = Path("/proc/sys/fs")) -> int | None:
    """How many requests of native AIO can still be reserved; None where nothing limits that.

    Source: aio-nr and aio-max-nr in the kernel's documentation of /proc/sys/fs.
    """
    try:
        most, used = (int((proc / name).read_text()) for name in ("aio-max-nr", "aio-nr"))
    except (OSError, ValueError):
        return None
    return max(0, most - used)


def check_aio(nodes: int, left: int | None) -> None:
    """Raise HostUnfit unless ``nodes`` more guests can reserve native AIO.

    QEMU before version 8 does not start without it; later versions are slower.
    """
    if left is not None and nodes * AIO_OF_GUEST > left:
        what = f"{nodes} nodes need" if nodes > 1 else "a node needs"
        raise HostUnfit(
            f"{what} {nodes * AIO_OF_GUEST} requests of native AIO, and {left} are left"
            " (fs.aio-max-nr)",
            hint=AIO_REMEDY,
            retry_after=ROOM_RETRY,
        )


AIO_REMEDY = (
    "sysctl -w fs.aio-max-nr=1048576, and the same in a file in /etc/sysctl.d; or remove a lab"
)


def check_space(
    free: int, floor: int, where: Path, *, needed: int = 0, what: str = "a lab"
) -> None:
    """Raise HostUnfit unless ``needed`` bytes fit into ``free`` with ``floor`` left over."""
    if needed + floor > free:
        have = f"{format_size(free)} of disk is free"
        if needed:
            have = f"{what} needs {format_size(needed)} of disk; {format_size(free)} is free"
        raise HostUnfit(
            f"{have} at {where}, and {format_size(floor)} is kept free",
            hint="free some space (`lab gc`, `lab down`), or set space_floor lower",
            retry_after=ROOM_RETRY,
        )
