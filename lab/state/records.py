"""The rows of the state, as frozen dataclasses.

Everywhere: times are UTC seconds since the epoch, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lab import options
from lab.names import LOOPBACK, Owner
from lab.spec import LabSpec, NodeSize

if TYPE_CHECKING:
    from lab.blueprints import Blueprint, NodePlan

LabState = Literal["creating", "ready", "stopped", "failed", "removing"]
ImageState = Literal["building", "ready"]
TemplateState = Literal["building", "ready", "broken"]
ResourceKind = Literal["volume", "guest", "port", "file", "segment"]
ResourceState = Literal["intended", "made"]
Scope = Literal["read", "use", "admin"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobKind = Literal[
    "create",
    "delete",
    "start",
    "stop",
    "restart",
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
    "promote",
    "branch",
    "create-dataset",
    "refresh-dataset",
    "delete-dataset",
]
Started = Literal["warm", "cold"]


@dataclass(frozen=True)
class LabRecord:
    """A lab.

    ``image``, ``template``: the keys of its engine's image and of its template. ``memory``,
    ``cpus``, ``disk``: the size that was requested for a node. ``user``: the database user that
    ``password`` is for; ``owner``: the user that created the lab. ``segment``: the number
    of its private network. ``expires_at`` None: no lease. ``ready_seconds``, ``started``:
    how its last start went, None before; ``why_cold``: why it was not warm. ``project``, ``job``:
    of the service, which made it; empty for others. ``protected``: it is not removed without
    force. ``heartbeat``: seconds of lease that each heartbeat gives it, None without.
    ``pool``: the warm pool that it waits in for somebody; empty for labs that are somebody's.
    ``address``: at which its SQL ports are published; ``host``: what is shown in its place.
    ``idle``: seconds without use after which its lease ends, None if it may be idle.
    ``active_at``: when it was last seen used, None if nobody has looked yet; ``activity``: what its
    servers had counted. ``parent``: the capture of another lab that it is a clone of, empty if it
    is one of its template; ``at``: the label of the snapshot that it last was like, empty if that
    is what it was when it was made. ``identity``: what the identities of its servers follow from,
    0 if it has those of what it is a clone of. ``options``: as ``Options.said``.
    """

    name: str
    blueprint: str
    engine: str
    engine_version: str
    image: str
    node_count: int
    memory: int
    cpus: int
    disk: int
    state: LabState
    password: str = field(repr=False)
    user: str
    owner: str
    created_at: float
    segment: int = 0
    template: str | None = None
    expires_at: float | None = None
    ready_seconds: float | None = None
    started: Started | None = None
    why_cold: str = ""
    profile: str = "balanced"
    snapshots: str = ""
    project: str = ""
    job: str = ""
    protected: bool = False
    heartbeat: float | None = None
    pool: str = ""
    address: str = LOOPBACK
    host: str = LOOPBACK
    idle: float | None = None
    active_at: float | None = None
    activity: str = ""
    parent: str = ""
    at: str = ""
    identity: int = 0
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def plan(self) -> Blueprint:
        """Its blueprint, with its options; raises InvalidSpec if there is no such one here."""
        from lab.blueprints import with_options

        return with_options(self.blueprint, options.of(self.options), self.node_count)

    @property
    def spec(self) -> LabSpec:
        """What was requested, as far as the plan of its nodes follows from it."""
        return _spec(self)


@dataclass(frozen=True)
class NodeRecord:
    """A node of a lab. ``sql_port``, ``ssh_port``: on the host, 0 for none.

    ``ports``: those of its other services, by their names. Where the guest has an address of its
    own (``guest_address``), all of them are the guest's.
    ``extra``: what only one blueprint or driver knows about it; no secrets. ``image``: the key of
    its image; ``memory``, ``cpus``, ``disk``: its size; ``services``: the ports on which it listens
    for others than its peers, in the guest, by their names. ``role``: that it was made in;
    ``seen``: the ``role`` and the ``sources`` that it had when it was last asked, where these may
    change.
    """

    lab: str
    name: str
    idx: int
    role: str
    guest: str
    sql_port: int = 0
    ssh_port: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    image: str = ""
    memory: int = NodeSize.memory
    cpus: int = NodeSize.cpus
    disk: int = NodeSize.disk
    services: Mapping[str, int] = field(default_factory=dict, hash=False)
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    seen: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def all_ports(self) -> dict[str, int]:
        """Those of all services that have one, by their names."""
        found = {"sql": self.sql_port, "ssh": self.ssh_port, **self.ports}
        return {name: port for name, port in found.items() if port}

    @property
    def size(self) -> NodeSize:
        """Memory, processors and disk."""
        return NodeSize(self.memory, self.cpus, self.disk)

    @property
    def plan(self) -> NodePlan:
        """What it was made as."""
        from lab.blueprints import NodePlan, Service

        services = tuple(Service(name, port) for name, port in self.services.items())
        return NodePlan(self.name, self.role, self.size, services=services)

    @property
    def guest_address(self) -> str:
        """The guest's own address, where the hypervisor forwards no ports; else empty."""
        return str(self.extra.get("address", ""))

    @property
    def redirect(self) -> int:
        """The port at the lab's address that leads others to its SQL port, 0 for none.

        Only where that is at ``guest_address``.
        """
        return int(self.extra.get("redirect", 0))


@dataclass(frozen=True)
class LabWithNodes:
    """A lab and its nodes, in order."""

    lab: LabRecord
    nodes: tuple[NodeRecord, ...]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Its nodes, as planned until they are recorded."""
        from lab.blueprints import foreseen

        return tuple(node.plan for node in self.nodes) or foreseen(self.lab.spec)

    @property
    def images(self) -> frozenset[str]:
        """The keys of the images of its engine and of all nodes."""
        return frozenset({self.lab.image, *(node.image for node in self.nodes)})


@dataclass(frozen=True)
class ImageRecord:
    """An image. ``build_seconds`` and ``size`` are 0 until it is ready.

    ``dataset``: what it is a version of, by name; empty if it has no data. ``version``: counted
    from 1, 0 if it has none. ``parent``: the key of the image whose disks its own are clones of.
    ``project``: of the service, whose data it has; empty if they are for all. ``job``: of the
    service, which made it. ``removing``: no new lab gets it, and it goes with the last lab of it.
    """

    key: str
    recipe: str
    engine: str
    engine_version: str
    state: ImageState
    created_at: float
    used_at: float
    build_seconds: float = 0.0
    size: int = 0
    dataset: str = ""
    version: int = 0
    parent: str = ""
    project: str = ""
    job: str = ""
    removing: bool = False


@dataclass(frozen=True)
class TemplateRecord:
    """A template.

    ``fingerprint``: of the hypervisor, for the RAM image; ``warm``: it has one that can be
    restored. ``why``: why it is broken, or why its RAM is no longer restored; else empty.
    ``form_seconds`` and ``size`` are 0 until it is ready. ``project``: of the service,
    for whose lab it was made; empty for others. ``image``: the key of its engine's; ``memory``,
    ``cpus``, ``disk``: the size that was requested for a node. ``nodes``: what each has of its own,
    by name: the key of its image (``image``), and its size. ``source``: the snapshot of a lab in
    use that it was captured from, which no request for a freshly formed cluster uses; else empty.
    ``options``: as ``Options.said``.
    """

    key: str
    image: str
    blueprint: str
    node_count: int
    memory: int
    cpus: int
    disk: int
    fingerprint: str
    state: TemplateState
    warm: bool
    created_at: float
    used_at: float
    size: int = 0
    form_seconds: float = 0.0
    profile: str = "balanced"
    why: str = ""
    project: str = ""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def spec(self) -> LabSpec:
        """The lab that it is for."""
        return _spec(self)

    @property
    def images(self) -> frozenset[str]:
        """The keys of the images of all nodes."""
        return frozenset({self.image, *(str(node["image"]) for node in self.nodes.values())})


def _spec(record: LabRecord | TemplateRecord) -> LabSpec:
    return LabSpec(
        record.blueprint,
        nodes=record.node_count,
        size=NodeSize(record.memory, record.cpus, record.disk),
        profile=record.profile,
        options=options.of(record.options),
    )


@dataclass(frozen=True)
class ResourceRecord:
    """Something that exists or was about to: written before the thing is made.

    ``ref`` is the thing's name, unique within its ``kind``; ``pid``: who intended it.
    """

    id: int
    owner: Owner
    kind: ResourceKind
    ref: str
    state: ResourceState
    created_at: float
    pid: int


@dataclass(frozen=True)
class EventRecord:
    """A step that was taken. ``state`` is that of ``lab.progress.Event``."""

    id: int
    at: float
    owner: str
    step: str
    state: str
    text: str
    seconds: float


@dataclass(frozen=True)
class TokenRecord:
    """Who may use the service. ``hash``: SHA-256 of the secret, in hex.

    ``scope``: read, use or admin; each includes those before it, admin all projects. ``max_*``:
    what the project may have when this token asks for more (labs, nodes, bytes of memory and disk,
    processors, snapshots, templates made for it, seconds of lease); None: no limit.
    ``last_used_at``: a minute late at most; None: not yet.
    """

    id: str
    name: str
    hash: str = field(repr=False)
    scope: Scope
    project: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    max_labs: int | None = None
    max_nodes: int | None = None
    max_memory: int | None = None
    max_ttl: float | None = None
    max_cpus: int | None = None
    max_snapshots: int | None = None
    max_templates: int | None = None
    max_disk: int | None = None
    last_used_at: float | None = None


@dataclass(frozen=True)
class JobRecord:
    """Something that the service does.

    ``facts``: of what was asked for, those that others than the job need, without its large texts;
    ``size``: of the whole request, in bytes, while it is kept. ``lab``: its name, once known.
    ``about``: what it is about besides or instead of that, such as ``image:KEY``, once known.
    ``key``, ``digest``: the Idempotency-Key and a hash of the request that came with it.
    ``error``: a problem (RFC 9457) if it failed. ``cancel``: somebody asked for that.
    """

    id: str
    kind: JobKind
    lab: str
    project: str
    token: str
    state: JobState
    digest: str
    created_at: float
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    size: int = 0
    key: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    error: Mapping[str, Any] | None = field(default=None, hash=False)
    cancel: bool = False
    about: str = ""


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
