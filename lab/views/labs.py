"""Labs and their nodes, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from lab.blueprints import Known
from lab.blueprints import Link as Link  # noqa: PLC0414  # it is a view too
from lab.observe.states import Requirement
from lab.progress import Step
from lab.views.marks import Public, public

FIRST_USE = ("image", "template")
"""The steps of ``up`` that only the first lab of a kind has."""

_SILENT = ("stopped", "paused", "unreachable", "unknown")
"""The states of nodes that did not answer, unless they are ``answered``."""

SSL_MODE = "VERIFY_IDENTITY"
"""The mode in which clients verify a published server, as MySQL's clients name it."""


@dataclass(frozen=True)
class Unmet:
    """A requirement that a node does not meet: ``what`` must hold, and what was ``found``."""

    name: str
    what: str
    found: str


@dataclass(frozen=True)
class NodeView:
    """A node of a lab."""

    name: str
    role: str
    state: str
    """See ``NODE_STATES``."""
    host: str
    """The address of its SQL port."""
    sql_port: int
    """0 if it has no SQL."""
    ssh_port: int
    guest: str
    why: str = ""
    """The error of a disk write, if one paused its guest."""
    image: str = ""
    """The key of its image."""
    memory: int = 0
    cpus: int = 1
    disk: int | None = None
    services: Mapping[str, int] = field(default_factory=dict)
    """The ports on which it listens in the guest, by their names."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """The ports at which its services are reached, by the names of these."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Where each service is reached, as ``host:port``.

    SQL is reached at ``host``, the other services on the host of the lab, or at the guest's own
    address if it has one.
    """
    position: str = ""
    """What it has executed, as its engine names it; empty if it did not answer that."""
    behind: int | None = None
    """Transactions of its sources that it has not executed; None if it has no source, or that is
    not known."""
    observed_at: float | None = None
    """When it was asked; None: never, or too long ago."""
    role_known: Known = ""
    """How the role is known, see ``Known``; empty as well where roles do not change."""
    unmet: tuple[Unmet, ...] = ()
    """The requirements that it did not meet when it was observed, or that are not known."""
    answered: bool = False
    """Whether it answered; its state may be ``unknown`` all the same, while a node on which it
    depends does not answer."""

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer, so that what it has and does is not known."""
        return self.state in _SILENT and not self.answered

    @property
    def is_proxy(self) -> bool:
        """Whether it has no server of its own, but leads to those of others."""
        return "ro" in self.services

    @property
    def shown_role(self) -> str:
        """The role, and how it is known where it was not observed."""
        return f"{self.role} ({self.role_known})" if self.role and self.role_known else self.role

    @property
    def address(self) -> str:
        """Where SQL answers, as ``host:port``; empty if it has no SQL."""
        return f"{self.host}:{self.sql_port}" if self.sql_port else ""


@dataclass(frozen=True)
class LabView:
    """A lab."""

    name: str
    blueprint: str
    engine: str
    engine_version: str
    state: str
    """See ``LAB_STATES``."""
    nodes: tuple[NodeView, ...]
    user: str
    password: str = field(repr=False)
    dsn: str = field(repr=False)
    ssl_ca: str = ""
    """The path of the certificate with which clients verify its servers; empty: it takes no TLS."""
    image: str = ""
    template: str = ""
    owner: str = ""
    started: str = ""
    """How it was last started, ``warm`` or ``cold``; empty if no node runs."""
    why_cold: str = ""
    memory: int = 0
    cpus: int = 1
    disk: int | None = None
    created_at: float = 0.0
    expires_at: float | None = None
    profile: str = ""
    risks: tuple[str, ...] = ()
    """What its profile may lose; empty if no commit can be lost."""
    snapshots: str = ""
    """The schedule of its snapshots."""
    seconds: float = 0.0
    """How long its last start took."""
    first_use_seconds: float = 0.0
    """How long the image and the template took to build, before ``seconds``; of ``up`` only."""
    steps: tuple[Step, ...] = ()
    """The steps of the ``up`` that returned this view."""
    endpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the nodes that users connect to, by endpoint; the first is the default."""
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The addresses of these nodes, as ``host:port``, by endpoint."""
    parent: str = ""
    """The snapshot that it is a branch of, as ``lab:NAME@LABEL``; empty for other labs."""
    requested_nodes: int = 0
    """The number that was requested; the blueprint may have planned others, such as a proxy.
    0: there is no record."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its options as ``Options.shown`` returns them."""
    links: tuple[Link, ...] = ()
    """Which node replicates from which."""
    observed_at: float | None = None
    """When its nodes were asked; None: never, or too long ago."""
    interrupted: str = ""
    """The verb that was interrupted and must be completed, and how; else empty."""

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
class Preview:
    """The lab that would be created, with its image and template."""

    name: Annotated[str, public("shop")]
    blueprint: Annotated[str, public("pxc")]
    engine: Public[str]
    nodes: Public[int]
    memory: Public[int]
    """As requested for a node, in bytes."""
    cpus: Public[int]
    disk: Public[int | None]
    """As requested, in bytes; null: the image's."""
    profile: Public[str]
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
