"""Labs and their nodes, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from lab.blueprints import Known, has_server
from lab.blueprints import Link as Link  # noqa: PLC0414  # it is a view too
from lab.errors import NotFound
from lab.marks import HostOnly, Login, Public, Time, login, public
from lab.observe.states import ListedState, NodeState, Requirement
from lab.progress import Step
from lab.values import dataclass

FIRST_USE = ("image", "template")
"""The steps of ``up`` that only the first lab of a kind has."""

_SILENT = ("stopped", "paused", "unreachable", "unknown")
"""The states of nodes that did not answer, unless they are ``answered``."""

SSL_MODE = "VERIFY_IDENTITY"
"""The mode in which clients verify a published server, as MySQL's clients name it."""


@dataclass(frozen=True)
class Unmet:
    """A requirement that a node does not meet."""

    name: Annotated[str, public("cluster")]
    what: Annotated[str, public("wsrep_cluster_size is 3")]
    found: Annotated[str, public("2")]
    """What it said instead."""


@dataclass(frozen=True)
class NodeView:
    """A node of a lab."""

    name: Annotated[str, public("n1")]
    role: Annotated[str, public("member")]
    state: Annotated[str, public(values=NodeState)]
    host: Annotated[str, public("127.0.0.1")]
    """The address of its SQL port."""
    sql_port: Annotated[int, public(23306)]
    """0 if it has no SQL."""
    ssh_port: Public[int]
    guest: Public[str]
    why: HostOnly[str] = ""
    """The error of a disk write, if one paused its guest."""
    image: Public[str] = ""
    """The key of its image."""
    memory: Public[int] = 0
    """In bytes."""
    cpus: Public[int] = 1
    disk: Public[int | None] = None
    """In bytes; null: the image's."""
    services: Annotated[Mapping[str, int], public({"sql": 3306, "ssh": 22})] = field(
        default_factory=dict
    )
    """The ports on which it listens, in the guest."""
    ports: Annotated[Mapping[str, int], public({"sql": 23306, "ssh": 23309})] = field(
        default_factory=dict
    )
    """The ports at which these are reached; SQL at `host`."""
    addresses: Annotated[
        Mapping[str, str], public({"sql": "127.0.0.1:23306", "ssh": "127.0.0.1:23309"})
    ] = field(default_factory=dict)
    """Where these are reached, from the host or, if published, from elsewhere."""
    position: Annotated[str, public("0-1-42")] = ""
    """What it has executed, as its engine names it, if it said so."""
    behind: Public[int | None] = None
    """Transactions of the nodes that it replicates from which it has not executed; null if it
    replicates from none, or that is not known."""
    observed_at: Public[Time | None] = None
    """When its state was observed; null: not within the last 30 seconds, and the state is
    unknown."""
    role_known: Public[Known] = ""
    """Empty: it has the role now; else it had it once, or was made in it."""
    unmet: Public[tuple[Unmet, ...]] = ()
    """What it lacks to be ready, or is not known to have."""
    engine: Annotated[str, public("mariadb")] = ""
    """What its image has."""
    engine_version: Annotated[str, public("11.8.6")] = ""
    answered: Public[bool] = False
    """Whether it answered. Its state may be unknown all the same, while a node on which a
    requirement depends does not answer."""

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer, so that what it has and does is not known."""
        return self.state in _SILENT and not self.answered

    @property
    def is_proxy(self) -> bool:
        """Whether it has no server of its own, but leads to those of others."""
        return "ro" in self.services

    @property
    def has_server(self) -> bool:
        """Whether it has a server of its own."""
        return has_server(self.services)

    @property
    def shown_role(self) -> str:
        """The role, and how it is known where it was not observed."""
        return f"{self.role} ({self.role_known})" if self.role and self.role_known else self.role

    @property
    def address(self) -> str:
        """Where SQL answers, as ``host:port``; empty if it has no SQL."""
        return f"{self.host}:{self.sql_port}" if self.sql_port else ""


@dataclass(frozen=True)
class NamedView:
    """A lab by its name, which comes first: fields of the last base are before those of others."""

    name: Annotated[str, public("shop")]


@dataclass(frozen=True, kw_only=True)
class RequestedView:
    """What was requested of a lab, or of the labs of a template."""

    blueprint: Annotated[str, public("pxc")]
    memory: Public[int] = 0
    """As requested for a node, in bytes."""
    cpus: Public[int] = 1
    """As requested for a node."""
    disk: Public[int | None] = None
    """As requested, in bytes; null: the image's."""
    profile: Public[str] = ""


@dataclass(frozen=True)
class LabView(RequestedView, NamedView):
    """A lab."""

    engine: Public[str]
    engine_version: Public[str]
    state: Annotated[str, public(values=ListedState)]
    nodes: Public[tuple[NodeView, ...]]
    user: Login[str] = ""
    password: Login[str] = field(default="", repr=False)
    dsn: Annotated[str, login("mysql://lab:secret@127.0.0.1:23306/")] = field(
        default="", repr=False
    )
    ssl_ca: Annotated[str, login("/v1/host/ca")] = ""
    """The path of the CA certificate that verifies the servers; empty: no TLS."""
    unencrypted: Public[str] = ""
    """Why connections to its servers are not encrypted; empty: they can be."""
    image: Public[str] = ""
    template: Public[str] = ""
    owner: Public[str] = ""
    started: Public[str] = ""
    """warm or cold"""
    why_cold: Public[str] = ""
    created_at: Public[Time] = 0.0
    expires_at: Public[Time | None] = None
    risks: HostOnly[tuple[str, ...]] = ()
    """What its profile may lose; empty if no commit can be lost."""
    snapshots: Public[str] = ""
    """The schedule of its snapshots."""
    seconds: Annotated[float, public(name="ready_seconds")] = 0.0
    """Duration of its last start, in seconds."""
    first_use_seconds: HostOnly[float] = 0.0
    """How long the image and the template took to build, before ``seconds``; of ``up`` only."""
    steps: HostOnly[tuple[Step, ...]] = ()
    """The steps of the ``up`` that returned this view."""
    endpoints: Annotated[Mapping[str, tuple[str, ...]], public({"rw": ["n1", "n2", "n3"]})] = field(
        default_factory=dict
    )
    """For users; the default is the first node of the first endpoint."""
    addresses: Annotated[
        Mapping[str, tuple[str, ...]],
        public({"rw": ["127.0.0.1:23306", "127.0.0.1:23307", "127.0.0.1:23308"]}),
    ] = field(default_factory=dict)
    """Where the nodes of each endpoint answer."""
    parent: Annotated[str, public("lab:shop@before-upgrade.20261121t110000")] = ""
    """The snapshot of another lab that it is a branch of; empty for others."""
    requested_nodes: Public[int] = 0
    """As requested; the blueprint may have others, such as a proxy."""
    options: Annotated[Mapping[str, Any], public({"semi_sync": True})] = field(default_factory=dict)
    """As requested, with digests of files."""
    links: Public[tuple[Link, ...]] = ()
    """Who replicates from whom."""
    observed_at: Public[Time | None] = None
    """When its state was observed; null: not within the last 30 seconds, and the state is
    unknown."""
    interrupted: Public[str] = ""
    """What was interrupted, and what completes it; else empty."""
    at: Annotated[str, public("before-upgrade.20261121t110000")] = ""
    """The snapshot that it was put back to last, or taken of it since; empty: its origin."""
    standby: Annotated[str, public("before-upgrade.20261121t110000")] = ""
    """The snapshot for which a standby was made; empty: there is none."""
    asleep_at: Public[Time | None] = None
    """When it was put to sleep; null: it is not asleep."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of its servers with their versions, each once, the lab's own first."""
        own = f"{self.engine} {self.engine_version}".strip()
        found = (f"{n.engine} {n.engine_version}".strip() for n in self.nodes if n.has_server)
        return tuple(dict.fromkeys(filter(None, (own, *found))))

    @property
    def entry(self) -> NodeView | None:
        """The node to which users connect by default; None if the lab has no nodes."""
        names = next(iter(self.endpoints.values()), ())
        first = names[self._first(names)] if names else ""
        return next((n for n in self.nodes if n.name == first), next(iter(self.nodes), None))

    def address(self, endpoint: str) -> str:
        """Where an endpoint answers: its first node that is not stopped; empty without nodes."""
        found = self.addresses.get(endpoint, ())
        return found[self._first(self.endpoints[endpoint])] if found else ""

    def _first(self, names: Sequence[str]) -> int:
        stopped = {node.name for node in self.nodes if node.state == "stopped"}
        return next((at for at, name in enumerate(names) if name not in stopped), 0)


@dataclass(frozen=True)
class Lab(LabView):
    """A lab of a service."""

    project: Public[str] = ""
    job: Public[str] = ""
    """The job that created it."""
    protected: Public[bool] = False
    """It is removed only with force."""
    heartbeat: Public[float | None] = None
    """In seconds."""
    idle: Public[float | None] = None
    """In seconds."""
    asleep_after: Public[float | None] = None
    """In seconds; 0: it never sleeps by itself; null: as the service says."""
    host_name: Public[str] = ""
    """The host of the fleet that it is on; empty: the service belongs to none."""

    def node(self, name: str) -> NodeView:
        """The node of that name; raises NotFound."""
        for found in self.nodes:
            if found.name == name:
                return found
        names = ", ".join(node.name for node in self.nodes)
        raise NotFound(f"the lab {self.name} has no node {name}", hint=f"its nodes: {names}")


@dataclass(frozen=True)
class PlannedNode:
    """A node of a template, or of a lab that would be created."""

    name: Annotated[str, public("n1")]
    image: Public[str]
    """The key of its image."""
    memory: Public[int]
    """In bytes."""
    cpus: Public[int]
    disk: Public[int | None]
    """In bytes; null: the image's."""


@dataclass(frozen=True)
class Preview(RequestedView, NamedView):
    """The lab that would be created, with its image and template."""

    engine: Public[str]
    nodes: Public[int]
    image: Public[str]
    image_exists: Public[bool]
    """The image exists; else it is built first."""
    template: Public[str | None]
    """Empty if it is built first; null if none is used."""
    start: Public[str]
    """warm or cold"""
    why_cold: Public[str] = ""
    each: Public[tuple[PlannedNode, ...]] = ()
    """The nodes, one by one."""
    displaces: Public[tuple[str, ...]] = ()
    """Templates that would be removed for the one that it needs."""


@dataclass(frozen=True)
class LabStatus:
    """A lab looked at just now, with each requirement of each node."""

    lab: LabView
    requirements: tuple[Requirement, ...]
