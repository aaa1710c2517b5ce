"""The host: what it has, and whether that is enough, before anything is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lab.errors import HostUnfit
from lab.spec import LabSpec, format_size


@dataclass(frozen=True)
class Memory:
    """Bytes of the host's memory: ``available`` without swapping, as the kernel reckons."""

    available: int
    total: int


def memory(meminfo: Path = Path("/proc/meminfo")) -> Memory:
    """What the kernel says of memory; raises HostUnfit if it does not.

    ``meminfo``: proc(5), MemTotal and MemAvailable in KiB. FreeBSD has sysctls.
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
    return Memory(values["MemAvailable"], values["MemTotal"])


def check_memory(
    nodes: int,
    size: int,
    have: Memory,
    floor: int,
    *,
    hint: str = "ask for fewer nodes or less --memory, or remove a lab (`lab ls`)",
) -> None:
    """Raise HostUnfit unless ``nodes`` of ``size`` bytes fit, with ``floor`` bytes left over."""
    needed = nodes * size
    if needed + floor > have.available:
        what = f"{nodes} nodes of {format_size(size)} need" if nodes > 1 else "a node needs"
        raise HostUnfit(
            f"{what} {format_size(needed)}"
            f" of memory; {format_size(have.available)} of {format_size(have.total)} is available"
            f" and {format_size(floor)} is kept free",
            hint=hint,
        )


def check_cpus(spec: LabSpec) -> None:
    """Raise HostUnfit if a node is to have more processors than the host."""
    have = os.cpu_count() or 1
    if spec.size.cpus > have:
        raise HostUnfit(
            f"a node was to have {spec.size.cpus} CPUs, this host has {have}",
            hint=f"ask for --cpus {have} at most",
        )


def check_space(
    free: int, floor: int, where: Path, *, needed: int = 0, what: str = "a lab"
) -> None:
    """Raise HostUnfit unless ``needed`` bytes fit into ``free`` with ``floor`` left over."""
    if needed + floor > free:
        needs = f"{what} needs {format_size(needed)} of disk: " if needed else ""
        raise HostUnfit(
            f"{needs}{format_size(free)} of disk is free at {where},"
            f" and {format_size(floor)} is kept free",
            hint="free some space (`lab gc`, `lab down`), or set space_floor lower",
        )
