"""The rows that only the service has, as frozen dataclasses; see ``records``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from lab.state.records import Large
from lab.values import dataclass

Scope = Literal["read", "use", "admin"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobKind = Literal[
    "create",
    "delete",
    "start",
    "stop",
    "restart",
    "sleep",
    "wake",
    "expire",
    "fill",
    "build-image",
    "delete-image",
    "build-template",
    "delete-template",
    "snapshot",
    "delete-snapshot",
    "prune-snapshots",
    "rollback",
    "reset",
    "standby",
    "drop-standby",
    "promote",
    "upgrade",
    "branch",
    "create-dataset",
    "refresh-dataset",
    "delete-dataset",
]


@dataclass(frozen=True)
class TokenRecord:
    """Who may use the service, and what its project may have when this token asks for more.

    None in a limit (``max_*``): no limit.
    """

    id: str
    name: str
    hash: str = field(repr=False)
    """SHA-256 of the secret, in hex."""
    scope: Scope
    """Each includes those before it; ``admin`` has all projects."""
    project: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    max_labs: int | None = None
    max_nodes: int | None = None
    max_memory: Large | None = None
    max_ttl: float | None = None
    """Seconds of lease."""
    max_cpus: int | None = None
    max_snapshots: int | None = None
    max_templates: int | None = None
    """Templates that were built for its labs."""
    max_disk: Large | None = None
    last_used_at: float | None = None
    """A minute late at most; None: not yet."""
    asleep_after: float | None = None
    """Of labs that request nothing else; see ``LabRecord``."""


@dataclass(frozen=True)
class JobRecord:
    """Something that the service does."""

    id: str
    kind: JobKind
    lab: str
    """Its name, once known."""
    project: str
    token: str
    state: JobState
    digest: str
    """A hash of the request that came with ``key``."""
    created_at: float
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of what was asked for, those that others than the job need, without its large texts."""
    size: Large = 0
    """Of the whole request, in bytes, while it is kept."""
    key: str | None = None
    """The Idempotency-Key."""
    started_at: float | None = None
    ended_at: float | None = None
    error: Mapping[str, Any] | None = field(default=None, hash=False)
    """A problem (RFC 9457) if it failed."""
    cancel: bool = False
    """Somebody asked for that."""
    about: str = ""
    """What it is about besides or instead of a lab, such as ``image:KEY``, once known."""


@dataclass(frozen=True)
class NewJob(JobRecord):
    """A job that is not recorded yet, with what is asked for, as JSON."""

    request: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class AuditRecord:
    """Who did what: a request that was to change something, and the status of its answer."""

    id: int
    at: float
    token: str
    project: str
    action: str
    target: str
    status: int
    request: str
    address: str
    """Of the client."""
    via: str = ""
    """The host of the fleet that passed the request on; empty: the client sent it to this one."""
