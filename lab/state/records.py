"""The rows of the state, as frozen dataclasses. ``schema`` makes a table of each.

Everywhere: times are UTC seconds since the epoch, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lab import options
from lab.names import LOOPBACK, Owner
from lab.sizes import NodeSize
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.blueprints import Blueprint, NodePlan
    from lab.spec import LabSpec

LabState = Literal["creating", "ready", "stopped", "failed", "removing"]
ImageState = Literal["building", "ready"]
TemplateState = Literal["building", "ready", "broken"]
ResourceKind = Literal["volume", "guest", "port", "file", "segment"]
ResourceState = Literal["intended", "made"]
StandbyState = Literal["making", "ready"]
BenchKind = Literal["run", "compare"]
Started = Literal["warm", "cold"]
Large: TypeAlias = int
"""A number, such as of bytes, that may take more than 32 bits."""
Kind = Literal["text", "whole", "large", "real", "flag", "json"]
"""What a field is kept as."""
_KINDS: Mapping[str, Kind] = {"int": "whole", "Large": "large", "float": "real", "bool": "flag"}


def kind_of(field: Field[Any]) -> tuple[Kind, bool]:
    """What a field of a record is kept as, and whether it may be absent, by its annotation."""
    plain = str(field.type).removesuffix(" | None")
    kind = "json" if plain.startswith("Mapping[") else _KINDS.get(plain, "text")
    return kind, plain != field.type


@dataclass(frozen=True, kw_only=True)
class Requested:
    """What was requested of a lab or of the labs of a template; ``requested`` has the values."""

    blueprint: str
    node_count: int
    """How many nodes; the blueprint may plan others, such as a proxy."""
    memory: Large
    """Bytes of RAM of a node."""
    cpus: int
    """Virtual CPUs of a node."""
    disk: Large
    """Bytes of a node's system volume; 0: as large as the image's."""
    profile: str = "balanced"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options of the blueprint; in a row as ``Options.said`` returns them."""


def requested(spec: LabSpec, profile: str) -> dict[str, Any]:
    """The fields of ``Requested`` that ``spec`` has; ``profile``: the name of its profile."""
    return {
        "blueprint": spec.blueprint,
        "node_count": spec.node_count,
        **vars(spec.size),
        "profile": profile,
        "options": spec.chosen.said,
    }


@dataclass(frozen=True)
class LabRecord(Requested):
    """A lab."""

    name: str
    engine: str
    engine_version: str
    image: str
    """The key of its engine's image."""
    state: LabState
    password: str = field(repr=False)
    """Of ``user``."""
    user: str
    """The database user."""
    owner: str
    """The user that created it."""
    created_at: float
    segment: int = 0
    """The number of its private network."""
    template: str | None = None
    """The key of its template."""
    expires_at: float | None = None
    """When its lease ends; None: it has none."""
    ready_seconds: float | None = None
    """How long its last start took; None before."""
    started: Started | None = None
    """How its last start went; None before."""
    why_cold: str = ""
    """Why that was not warm."""
    snapshots: str = ""
    """The schedule of its snapshots."""
    project: str = ""
    """Of the service, for whose token it was made; empty for others."""
    job: str = ""
    """Of the service, which made it; empty for others."""
    protected: bool = False
    """Whether it is removed by force only."""
    heartbeat: float | None = None
    """Seconds of lease that each heartbeat gives it; None without."""
    pool: str = ""
    """The warm pool that it waits in for somebody; empty for labs that are somebody's."""
    address: str = LOOPBACK
    """At which its SQL ports are published."""
    host: str = LOOPBACK
    """What is shown in the place of ``address``."""
    idle: float | None = None
    """Seconds without use after which its lease ends; None: it may be idle."""
    active_at: float | None = None
    """When it was last seen used; None: nobody has looked yet."""
    activity: str = ""
    """What its servers had counted then."""
    parent: str = ""
    """The capture of another lab that it is a clone of; empty: it is one of its template."""
    at: str = ""
    """The label of the snapshot that it last was like; empty: as it was when it was made."""
    identity: Large = 0
    """What the identities of its servers follow from; 0: from what it is a clone of."""
    reset_to: str = ""
    """The label of the snapshot that it was put back to last, as a whole; empty: never."""
    asleep_after: float | None = None
    """Seconds without use after which it sleeps; 0: never, None: as the service says."""
    asleep_at: float | None = None
    """When it was put to sleep; None: it is awake. Its guests may have been ended since."""

    @property
    def usable(self) -> bool:
        """Whether its nodes are complete: it neither failed nor is being created or removed."""
        return self.state in ("ready", "stopped")

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
    """A node of a lab. Where its guest has an address of its own, all ports are the guest's."""

    lab: str
    name: str
    idx: int
    role: str
    """The role that it was created in."""
    guest: str
    sql_port: int = 0
    """On the host; 0: none."""
    ssh_port: int = 0
    """On the host; 0: none."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What only one blueprint or driver knows about it; no secrets."""
    image: str = ""
    """The key of its image."""
    memory: Large = NodeSize.memory
    cpus: int = NodeSize.cpus
    disk: Large = NodeSize.disk
    services: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The ports on which it listens for others than its peers, in the guest, by their names."""
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The host's ports of its services besides SQL and SSH, by the names of these."""
    seen: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The ``role`` and the ``sources`` that it had when it was last asked, where these change."""

    @property
    def all_ports(self) -> dict[str, int]:
        """The ports of all services that have one, by the names of these."""
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
    others: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    """The engine and its version in each image that is not the lab's, by its key."""
    standby: str = ""
    """The label of the snapshot for which there is a standby; empty for none."""

    def engine_of(self, node: NodeRecord) -> tuple[str, str]:
        """The engine of a node and its version."""
        own = (self.lab.engine, self.lab.engine_version)
        return own if node.image in ("", self.lab.image) else self.others.get(node.image, ("", ""))

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
class StandbyRecord:
    """A standby of a lab: its nodes once more, as at one of its snapshots, paused and ready."""

    lab: str
    label: str
    """Of the snapshot."""
    state: StandbyState
    created_at: float
    segment: int = 0
    fits: str = ""
    """A hash of what of the lab it was made with; it is not used once that changed."""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """What each has of its own, by name: its ``guest``, and its ``ports`` until it is used."""

    @property
    def guests(self) -> list[str]:
        """The names of the guests of all nodes."""
        return [str(node["guest"]) for node in self.nodes.values()]

    @property
    def ports(self) -> set[int]:
        """The host's ports of all nodes."""
        return {int(port) for node in self.nodes.values() for port in node["ports"].values()}


@dataclass(frozen=True)
class ImageRecord:
    """An image."""

    key: str
    recipe: str
    engine: str
    engine_version: str
    state: ImageState
    created_at: float
    used_at: float
    build_seconds: float = 0.0
    """0 until it is ready."""
    size: Large = 0
    """0 until it is ready."""
    dataset: str = ""
    """What it is a version of, by name; empty: it has no data."""
    version: int = 0
    """Counted from 1; 0: it has none."""
    parent: str = ""
    """The key of the image whose disks its own are clones of."""
    project: str = ""
    """Of the service, whose data it has; empty: they are for all."""
    job: str = ""
    """Of the service, which made it."""
    removing: bool = False
    """No new lab gets it, and it goes with the last lab of it."""


@dataclass(frozen=True)
class TemplateRecord(Requested):
    """A template."""

    key: str
    image: str
    """The key of its engine's image."""
    fingerprint: str
    """Of the hypervisor, for the RAM image."""
    state: TemplateState
    warm: bool
    """Whether it has RAM that can be restored."""
    created_at: float
    used_at: float
    size: Large = 0
    """0 until it is ready."""
    form_seconds: float = 0.0
    """0 until it is ready."""
    why: str = ""
    """Why it is broken, or why its RAM is no longer restored; else empty."""
    project: str = ""
    """Of the service, for whose lab it was made; empty for others."""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """What each has of its own, by name: the key of its image (``image``), and its size."""
    source: str = ""
    """The snapshot of a lab in use that it was captured from, which no request for a freshly formed
    cluster uses; else empty."""

    @property
    def spec(self) -> LabSpec:
        """The lab that it is for."""
        return _spec(self)

    @property
    def images(self) -> frozenset[str]:
        """The keys of the images of all nodes."""
        return frozenset({self.image, *(str(node["image"]) for node in self.nodes.values())})


def _spec(record: Requested) -> LabSpec:
    from lab.spec import LabSpec  # with msgspec, which listing labs does without

    return LabSpec(
        record.blueprint,
        nodes=record.node_count,
        memory=record.memory,
        cpus=record.cpus,
        disk=record.disk,
        profile=record.profile,
        options=dict(record.options),
    )


@dataclass(frozen=True)
class ResourceRecord:
    """Something that exists or was about to: written before the thing is made."""

    id: int
    owner: Owner
    kind: ResourceKind
    ref: str
    """The thing's name, unique within its ``kind``."""
    state: ResourceState
    created_at: float
    pid: int
    """Who intended it."""


@dataclass(frozen=True)
class BenchRecord:
    """A result of a benchmark, which outlives the lab."""

    id: str
    at: float
    """When it began."""
    kind: BenchKind
    workload: str
    label: str
    lab: str
    """The names of the labs."""
    result: Mapping[str, Any] = field(hash=False)
    """The view of it (``lab.views.benches``)."""


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
