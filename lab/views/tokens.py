"""Tokens of a service, as they are shown."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from lab.marks import Public, Time, public
from lab.state.service import Scope
from lab.values import dataclass


@dataclass(frozen=True)
class Used:
    """What a project has of all that quotas limit, jobs that have not ended included."""

    labs: Public[int] = 0
    nodes: Public[int] = 0
    memory: Public[int] = 0
    """In bytes."""
    cpus: Public[int] = 0
    disk: Public[int] = 0
    """In bytes."""
    snapshots: Public[int] = 0
    templates: Public[int] = 0


@dataclass(frozen=True)
class TokenView:
    """A token, without its text. Null: not limited, except by the service's settings."""

    id: Public[str]
    name: Public[str]
    project: Public[str]
    scope: Annotated[str, public(values=Scope)]
    created_at: Public[Time]
    expires_at: Public[Time | None]
    revoked_at: Public[Time | None]
    max_labs: Public[int | None]
    max_nodes: Public[int | None]
    max_memory: Public[int | None]
    """In bytes."""
    max_cpus: Public[int | None]
    max_disk: Public[int | None]
    """In bytes."""
    max_snapshots: Public[int | None]
    max_templates: Public[int | None]
    max_ttl: Public[float | None]
    """In seconds."""
    asleep_after: Public[float | None]
    """In seconds; see ``Lab``."""
    last_used_at: Public[Time | None]
    """Null: never."""
    used: Annotated[Used | None, public(values=Used)] = None
    """What its project has now, counted as its quotas count it."""


@dataclass(frozen=True)
class MadeToken:
    """A new token; its text is not shown again."""

    token: Public[TokenView]
    text: Public[str] = field(repr=False)
