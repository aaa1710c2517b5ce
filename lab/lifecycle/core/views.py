"""Results of the lifecycle: plain data that the CLI prints and the API serialises.

Times are UTC epoch seconds, durations seconds, sizes bytes. A ``disk`` of None is as large as the
image's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.blueprints import Known
from lab.blueprints import Link as Link  # noqa: PLC0414  # it is a view too
from lab.host.finding import Finding as Finding  # noqa: PLC0414  # it is a view too
from lab.observe.states import Requirement
from lab.progress import Step
from lab.schedule import ORIGIN

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
class Place:
    """Where the node ``name`` is drawn. ``depth``: of what it replicates from, plus one.

    ``link``: to that, None if it replicates from none; ``again``: it has an earlier place, too.
    """

    depth: int
    name: str
    link: Link | None = None
    again: bool = False


def topology(nodes: Sequence[str], links: Sequence[Link]) -> list[Place]:
    """The nodes of a lab as a tree: each after what it replicates from; each link is there once.

    Nodes that replicate from none come at depth 0, of a ring the first node.
    """
    links = [link for link in links if link.source in nodes and link.replica in nodes]
    replicas = {link.replica for link in links}
    found: list[Place] = []
    seen: set[str] = set()

    def add(name: str, depth: int, link: Link | None) -> None:
        again = name in seen
        seen.add(name)
        found.append(Place(depth, name, link, again))
        for below in links if not again else ():
            if below.source == name:
                add(below.replica, depth + 1, below)

    for name in (*(name for name in nodes if name not in replicas), *nodes):
        if name not in seen:
            add(name, 0, None)
    return found


@dataclass(frozen=True)
class SnapshotView:
    """A snapshot of a lab."""

    label: str
    name: str
    """The first part of its label, which users choose."""
    at: float | None
    """When it was taken; None if that is not known."""
    warm: bool = False
    """Whether it has the RAM of all nodes."""
    why_cold: str = ""
    """Why it has no RAM."""
    pause: float = 0.0
    """Seconds for which the nodes were paused."""
    ram: int = 0
    """Bytes on disk of its files besides disks."""
    protected: bool = False
    expires_at: float | None = None
    """When it is removed, unless it is used; None for never."""
    parent: str = ""
    """The capture that it descends from, as ``OWNER@LABEL``."""
    branches: tuple[str, ...] = ()
    """The labs that are clones of it."""
    current: bool = False
    """Whether no other snapshot was taken or rolled back to since this one was."""


def descent(views: Sequence[SnapshotView]) -> list[tuple[int, SnapshotView]]:
    """The snapshots of a lab as a tree: each with its depth, after the one it descends from.

    All descend from the origin, also one whose parent was removed. Siblings stay in order.
    """
    known = {view.label: view for view in views}
    origin = known.get(ORIGIN)
    children: dict[str, list[SnapshotView]] = {}
    for view in views:
        label = view.parent.partition("@")[2]
        beyond = view is origin or (origin is not None and view.parent == origin.parent)
        if beyond or label not in known or label == view.label:
            label = ORIGIN if origin is not None and view is not origin else ""
        children.setdefault(label, []).append(view)
    found: list[tuple[int, SnapshotView]] = []

    def add(label: str, depth: int) -> None:
        for view in children.get(label, ()):
            found.append((depth, view))
            add(view.label, depth + 1)

    add("", 0)
    return found


@dataclass(frozen=True)
class PlannedNode:
    """A node of a template, or of a lab that is not made yet. ``image``: the key of its image."""

    name: str
    image: str
    memory: int
    cpus: int
    disk: int | None


@dataclass(frozen=True)
class Preview:
    """The lab that ``up`` would create."""

    name: str
    blueprint: str
    engine: str
    nodes: int
    memory: int
    """Memory, processors and disk are the size that is requested for a node."""
    cpus: int
    disk: int | None
    profile: str
    image: str
    image_exists: bool
    """False if the image would be built first."""
    template: str | None
    """The template's key; empty if it would be built first, None if none is cloned."""
    start: str
    """``warm`` or ``cold``."""
    why_cold: str = ""
    each: tuple[PlannedNode, ...] = ()
    """The nodes, one by one."""
    displaces: tuple[str, ...] = ()
    """The templates that would be removed for the new one, as there are ``max_templates``."""


@dataclass(frozen=True)
class LabStatus:
    """A lab looked at just now, with each requirement of each node."""

    lab: LabView
    requirements: tuple[Requirement, ...]


Use = Literal["current", "stale", "unused"]
"""The use of an image or a template: ``current``: the next lab of its kind is cloned from it;
``stale``: only existing labs are; ``unused``: no lab is, and a part of its key has changed."""


@dataclass(frozen=True)
class ImageView:
    """An image. ``key`` is its content key; ``used_by`` names templates and labs."""

    key: str
    recipe: str
    engine: str
    engine_version: str
    state: str
    size: int
    created_at: float
    build_seconds: float
    used_by: tuple[str, ...] = ()
    use: Use = "current"
    used_at: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)


Buildable = Literal["yes", "failed", "unreachable", "unfit"]
BUILDABLE: Mapping[Buildable, str] = {
    "yes": "nothing is known that prevents it",
    "failed": "it could not be built, or its cluster did not form, within the last day",
    "unreachable": "its repository did not answer",
    "unfit": "this host lacks a program that a build needs",
}
"""Whether a host can build an image now, and the meanings."""


@dataclass(frozen=True)
class EngineView:
    """A series of an engine."""

    name: str
    """The name in requests, such as ``mariadb:10.11``."""
    server: str
    """The server that runs in the guests."""
    default: bool
    """Whether the engine without a series means this one."""
    recipe: str
    blueprints: tuple[str, ...]
    """The blueprints that run on it."""
    packages: tuple[str, ...]
    """Debian's release, and the URLs of further repositories."""
    build: Buildable
    """Whether this host can build its image now."""
    why: str = ""
    """Why this host cannot build it."""
    images: tuple[str, ...] = ()
    """The keys of its images."""
    templates: tuple[str, ...] = ()
    """The keys of templates of these images."""


@dataclass(frozen=True)
class DatasetView:
    """A version of a dataset: an image with data."""

    name: str
    version: int
    state: str
    """``building``, ``ready``, or ``removing``: no new lab gets it."""
    image: str
    """The key of the image."""
    engine: str
    source: str
    size: int
    loaded: int
    """Bytes of SQL."""
    tables: tuple[Mapping[str, str | int], ...]
    """Each table with ``database``, ``name``, ``engine``, and its estimated ``rows`` and
    ``size`` in bytes."""
    created_at: float
    seconds: float
    """How long it took to create it."""
    masked: bool = False
    """Whether masking rules were applied."""
    used_by: tuple[str, ...] = ()
    """Templates and labs."""
    steps: tuple[Step, ...] = ()
    """The steps of the command that returned this view."""
    project: str = ""
    """The project of the service whose data it has; empty: for all projects."""
    blueprint: str = ""
    keep: int = 0
    """How many versions are kept; 0: all."""
    columns: tuple[str, ...] = ()
    """Columns such as ``shop.customers.mail varchar``, if one version was asked for."""
    options: tuple[str, ...] = ()
    """Options of the servers that loaded and masked it."""
    accounts: tuple[str, ...] = ()
    """Accounts that came with the data."""
    definers: tuple[str, ...] = ()
    """Definers of views, routines, triggers and events that are no account, so these fail with
    error 1449."""

    @property
    def at(self) -> str:
        """What requests name it by."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class UploadView:
    """A dump that was sent to the service: ``id`` names it; ``size`` in bytes."""

    id: str
    name: str
    size: int


@dataclass(frozen=True)
class PersonalColumn:
    """A column that looks personal: ``column`` as ``shop.customers.mail``, ``rule`` that fits."""

    column: str
    reason: str
    rule: str


@dataclass(frozen=True)
class TemplateView:
    """A template."""

    key: str
    blueprint: str
    image: str
    """The key of its engine's image."""
    nodes: int
    memory: int
    """Memory, processors and disk are the size that was requested for a node."""
    cpus: int
    disk: int | None
    state: str
    """``building``, ``ready`` or ``broken``."""
    warm: bool
    """Whether its RAM is restored."""
    size: int
    created_at: float
    used_at: float
    form_seconds: float
    profile: str = ""
    use: Use = "current"
    why: str = ""
    """Why it is broken, or why its RAM is no longer restored; else empty."""
    each: tuple[PlannedNode, ...] = ()
    """The nodes, one by one."""
    source: str = ""
    """The snapshot of a lab in use that it was captured from, as ``shop@loaded``; empty for one
    of a freshly formed cluster."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of its labs, as ``Options.shown`` returns them."""

    @property
    def node_count(self) -> int:
        """How many nodes it has, with proxies, arbiters and replicas of a remote site."""
        return len(self.each) or self.nodes


@dataclass(frozen=True)
class ExportView:
    """An archive that was sent: ``kind`` is image, template or snapshot.

    ``key``: of a snapshot its name, as ``shop@loaded``. ``to``: a file, ``-`` or a host.
    ``outcome``: written (to a file), imported (by a host), exists (it had it already). ``lab``: the
    one that a host made of a snapshot.
    """

    kind: str
    key: str
    to: str
    outcome: str
    size: int
    seconds: float
    lab: str = ""


@dataclass(frozen=True)
class ImportView:
    """What an archive brought. ``outcome``: imported, or exists if it was here already.

    ``key``: under which it is here. ``notes``: what a user should know of it.
    """

    kind: str
    key: str
    outcome: str
    notes: tuple[str, ...] = ()


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
