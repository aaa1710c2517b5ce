"""What was done to a host, and by requests to its service, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lab.host.finding import Finding as Finding  # noqa: PLC0414  # it is a view too
from lab.marks import Public, Time, public


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


@dataclass(frozen=True)
class AuditEntry:
    """An audit entry: a request that changes something or reads secrets, and its answer."""

    id: Public[int]
    at: Public[Time]
    token: Public[str]
    project: Public[str]
    action: Annotated[str, public("createLab")]
    target: Annotated[str, public("/v1/labs")]
    status: Public[int]
    request: Public[str]
    address: Public[str]
