"""The limits of a container's memory and processors: those of its cgroup, version 1 or 2.

Only the top of the mounted hierarchy is read. In a container that is its own cgroup; on the
host itself it is the root, which has no limits. A limit of a cgroup further down is no limit of
guests: on a host with systemd the system's libvirt starts them in ``machine.slice``.

Source: cgroup-v2.rst and cgroup-v1/memory.rst, sched-bwc.rst in the kernel's documentation.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from lab.values import dataclass

ROOT = Path("/sys/fs/cgroup")

_NO_LIMIT = 1 << 60
"""Bytes; version 1 says "none" by a number close to 2**63."""


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes: the limit of the cgroup, and what is available of it without swapping."""

    available: int
    total: int


def memory(root: Path = ROOT) -> MemoryLimit | None:
    """The limit of memory at the top of the hierarchy; None if there is none.

    The page cache is charged to the cgroup and given up when memory is short, so it counts
    as available.
    """
    with suppress(OSError, ValueError, KeyError):
        if (root / "memory.max").exists():
            # Beyond memory.high nothing is killed, but all is slowed down for reclaim.
            total = min(_limit(root / "memory.max"), _limit(root / "memory.high"))
            used = _number(root / "memory.current")
            stat, prefix = root / "memory.stat", ""
        else:
            directory = root / "memory"
            total = _number(directory / "memory.limit_in_bytes")
            used = _number(directory / "memory.usage_in_bytes")
            stat, prefix = directory / "memory.stat", "total_"
        if total >= _NO_LIMIT:
            return None
        lines = (line.partition(" ") for line in stat.read_text(encoding="ascii").splitlines())
        values = {name: int(value) for name, _, value in lines if value}
        cache = values[f"{prefix}active_file"] + values[f"{prefix}inactive_file"]
        return MemoryLimit(max(0, min(total, total - used + cache)), total)
    return None


def processors(root: Path = ROOT) -> int | None:
    """The cgroup's CPU quota, in processors, rounded up; None without a quota."""
    with suppress(OSError, ValueError):
        if (root / "cpu.max").exists():
            quota, period = map(int, (root / "cpu.max").read_text(encoding="ascii").split())
        else:
            quota = _number(root / "cpu/cpu.cfs_quota_us")
            period = _number(root / "cpu/cpu.cfs_period_us")
        if quota > 0 and period > 0:
            return math.ceil(quota / period)
    return None


def _limit(path: Path) -> int:
    """Bytes; ``_NO_LIMIT`` for ``max``, and if the file is not there or holds something else."""
    with suppress(OSError, ValueError):
        return _number(path)
    return _NO_LIMIT


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
