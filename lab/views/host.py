"""What was done to a host, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from lab.host.finding import Finding as Finding  # noqa: PLC0414  # it is a view too


@dataclass(frozen=True)
class HostView:
    """What ``lab host init`` did, and the commands that root is to run before it is complete.

    ``config``: the file that the setting was written to; empty where it was there already.
    """

    pool: str
    version: str
    free: int
    total: int
    done: tuple[str, ...]
    missing: tuple[str, ...]
    config: str


@dataclass(frozen=True)
class GcReport:
    """What ``lab gc`` removed, what it found but left alone, and why.

    ``snapshots``: those that schedules had it take and remove.
    """

    removed: tuple[str, ...]
    left: tuple[str, ...]
    snapshots: tuple[str, ...] = ()
