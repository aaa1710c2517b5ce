"""A host of a service, what was done to it, and by requests to its service, as it is shown."""

from __future__ import annotations

from typing import Annotated, Literal

from lab.host.finding import Finding as Finding  # noqa: PLC0414  # it is a view too
from lab.marks import ForAdmins, Public, Time, public
from lab.values import dataclass

FleetHostState = Literal["up", "late", "draining", "lost"]


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
class Capacity:
    """What all labs together may use, and what they use; memory in bytes."""

    total: Public[int]
    used: Public[int]


@dataclass(frozen=True)
class PoolView:
    """A warm pool of a service."""

    name: Annotated[str, public("pxc")]
    blueprint: Public[str]
    nodes: Public[int]
    memory: Public[int]
    """Of a node, in bytes."""
    count: Public[int]
    """How many labs it is to have."""
    ready: Public[int]
    """How many can be claimed."""
    hits: Public[int]
    """Requests that it served since the service was started."""
    misses: Public[int]
    """Requests that found none of its labs ready."""


@dataclass(frozen=True)
class Usage:
    """What the labs of a project use; memory and processors: of those that are not stopped."""

    project: Public[str]
    labs: Public[int]
    memory: Public[int]
    """In bytes."""
    processors: Public[int]


@dataclass(frozen=True)
class Host:
    """The host's capabilities and capacity."""

    hypervisor: Public[str]
    accelerator: Public[str]
    warm: Public[bool]
    why_cold: Public[str]
    storage: Public[str]
    memory: Public[Capacity]
    memory_available: Public[int]
    """In bytes."""
    ports: Public[Capacity]
    processors: Public[int]
    processors_used: Public[int]
    """Those of all running nodes."""
    space_free: Public[int]
    """In bytes."""
    space_total: Public[int]
    """In bytes."""
    labs: Public[int]
    """Without those in pools."""
    pooled: Public[int]
    """Labs in pools; what they use is counted, too."""
    projects: Public[tuple[Usage, ...]]
    """Of the token's project; for administrators, of all."""
    waiting: Public[int]
    """Jobs that wait for room."""
    pools: Public[tuple[PoolView, ...]]


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
    """Of the client."""
    via: Public[str] = ""
    """The host of the fleet that passed the request on; empty: the client sent it to this one."""
    host_name: Public[str] = ""
    """The host of the fleet that answered it, and that ``id`` is of; empty: it belongs to none."""


@dataclass(frozen=True)
class FleetHost:
    """A host of a fleet, as it said it was with its last heartbeat; sizes in bytes.

    null: not known, of a host that is lost, or has not said it since it was started.
    """

    name: Annotated[str, public("h1")]
    state: Annotated[str, public(values=FleetHostState)]
    """late: its heartbeat is overdue, and no lab is placed on it."""
    heard_at: Public[Time]
    """When it was heard of last."""
    labels: Public[tuple[str, ...]]
    memory: Public[Capacity | None]
    """For labs; ``used`` includes what is promised to jobs."""
    processors: Public[int | None]
    load: Public[float | None]
    """Of its processors, over a minute."""
    labs: Public[int | None]
    waiting: Public[int]
    """Jobs that were placed on it and have not ended."""
    templates: Public[int | None]
    version: Public[str]
    """Of its program."""
    url: Public[str]
    """At which other hosts reach it."""
    disk: Public[Capacity | None] = None
    """Of its storage."""
    datasets: ForAdmins[tuple[str, ...] | None] = None
    """Of all projects; null: shown to administrators only."""


@dataclass(frozen=True)
class CaptureRow:
    """A template or a dataset, and the hosts of a fleet that have it."""

    kind: Literal["template", "dataset"]
    what: str
    hosts: frozenset[str]
