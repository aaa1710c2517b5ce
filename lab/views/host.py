"""What was done to a host, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from lab.host.finding import Finding as Finding  # noqa: PLC0414  # it is a view too
from lab.marks import Public


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
    """What was removed, what was not and why, and the changes of snapshots by schedules."""

    removed: Public[tuple[str, ...]]
    left: Public[tuple[str, ...]]
    snapshots: Public[tuple[str, ...]] = ()
