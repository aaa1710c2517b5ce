"""What a process of this host has used, and on which processors it runs.

Source: proc(5), sched_setaffinity(2).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from lab.errors import HostUnfit
from lab.values import dataclass


@dataclass(frozen=True)
class Used:
    """What a process has used since it started."""

    cpu: float
    """Seconds of processor time."""
    written: int | None
    """Bytes that it had written to storage; None if that cannot be read."""


def used(pid: int, processes: Path = Path("/proc")) -> Used | None:
    """What a process has used; None if it is not there."""
    try:
        # The name, in parentheses, may have any characters in it.
        fields = (processes / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    written = None
    with suppress(OSError, ValueError):
        for line in (processes / str(pid) / "io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == "write_bytes":
                written = int(value)
    return Used(ticks / os.sysconf("SC_CLK_TCK"), written)


def processors() -> list[int]:
    """The numbers of the processors that this process may use; empty if that is not known."""
    with suppress(AttributeError, OSError):
        return sorted(os.sched_getaffinity(0))
    return []


def halves(
    processors_: Sequence[int] = (), root: Path = Path("/sys")
) -> tuple[list[int], list[int]]:
    """The processors in two halves that share no core: threads of one core are in one half.

    Source: sysfs, ``devices/system/cpu/cpuN/topology/thread_siblings_list``.
    """
    cores: dict[str, list[int]] = {}
    for number in processors_ or processors():
        path = root / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        try:
            core = path.read_text()
        except OSError:
            core = str(number)
        cores.setdefault(core, []).append(number)
    found = list(cores.values())
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    return [one for core in first for one in core], [one for core in second for one in core]


def pin(pid: int, to: Collection[int]) -> None:
    """Have all threads of a process run on these processors only; raises HostUnfit.

    Threads that it starts later run where the one runs that starts them.
    """
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), to)
    except (AttributeError, OSError) as error:
        raise HostUnfit(f"guests cannot be kept on processors of their own: {error}") from None


def release(pid: int) -> None:
    """Have all threads of a process run on any processor again, if it is there and that is allowed.

    The kernel leaves out what is not there, or not in the process's control group.
    """
    with suppress(HostUnfit):
        pin(pid, range(os.cpu_count() or 1))
