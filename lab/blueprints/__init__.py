"""Topologies: which nodes a lab has, of which role, and how they become one system. One a file.

A blueprint is data and small functions. It plans the nodes, says which files each boots with, when
a node of a role is ready, what to do before disks are captured, what helps nodes that do not get
ready, and which nodes users connect to. It reaches guests through ``Cluster`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, cast

from lab.config import enginefile
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest import network
from lab.guest.seed import SeedFile
from lab.marks import Public, public
from lab.names import node_name
from lab.options import Options
from lab.sizes import BLUEPRINTS, NodeSize
from lab.suggest import did_you_mean
from lab.values import dataclass
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.spec import LabSpec

__all__ = ["BLUEPRINTS"]

T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """A TCP port of a node that is reached from outside of the lab. ``port``: the guest's.

    ``sql`` is what readiness is asked through; it is published with the lab, and so is a proxy's
    ``ro``. The others, ``ssh`` and such as a proxy's ``admin``, are reached from this host alone. A
    node without ``sql``, such as an arbiter, is ready when its guest agent answers; no statement is
    sent to it.
    """

    name: str
    port: int


CLIENT = "client"
"""The role of a node that has no server and is of no cluster: it uses the servers of the others."""

SERVICES = (Service("sql", network.SQL_PORT), Service("ssh", network.SSH_PORT))
"""The services of a node with a database server."""


@dataclass(frozen=True)
class NodePlan:
    """A node of a lab to be made.

    ``recipe``: of its image; empty: the recipe of the engine that the lab gets. A recipe that is
    named is never replaced by that of another engine.
    """

    name: str
    role: str
    size: NodeSize
    recipe: str = ""
    services: tuple[Service, ...] = SERVICES
    image: str = ""
    """The key of its image, if that was decided before; else empty."""

    @property
    def has_server(self) -> bool:
        """Whether it has a database server of its own."""
        return has_server(service.name for service in self.services)


def has_server(services: Iterable[str]) -> bool:
    """Whether a node with these services has a server of its own: ``ro`` is a proxy's alone."""
    names = set(services)
    return "sql" in names and "ro" not in names


@dataclass(frozen=True)
class Release:
    """A server, as far as what it understands depends on it."""

    name: str = ""
    """Its engine, as images and records have it; empty: not known."""
    version: str = ""


@dataclass(frozen=True)
class Engine:
    """The engine in an image, as far as blueprints depend on it."""

    name: str
    version: str
    config: str
    """The template of its my.cnf."""
    config_path: str
    """Where a node's my.cnf goes in the guest."""
    user: str
    """The account that the server runs as in the guest, with ``uid`` and ``gid``."""
    uid: int
    gid: int
    log_directory: str = "/var/lib/mysql"
    """Where the server keeps its logs, which may be a volume of their own."""
    service: str = ""
    """The server's systemd unit."""

    @property
    def release(self) -> Release:
        """What it is."""
        return Release(self.name, self.version)


@dataclass(frozen=True)
class Member:
    """A node as blueprints see it: ``index`` counts from 1, ``address`` is on the lab's segment."""

    name: str
    index: int
    address: str
    role: str = ""


Unmet = Literal["degraded", "not-synced", "not-primary"]
"""States of a node that answers but does not meet a requirement, the worst last: it accepts
statements, but its cluster is incomplete; it is joining, donating or desynced; it refuses
statements that write."""


UNKNOWN = "unknown: "
"""What a value begins with that is not known; the reason follows, such as a silent source."""


@dataclass(frozen=True)
class Condition:
    """A requirement of a node: ``variable`` in its answer has ``value``."""

    name: str
    """The requirement in a word or two."""
    variable: str
    value: str
    unmet: Unmet = "degraded"
    """The state of the node while it is not met."""
    hint: str = ""
    """The remedy for a node that answers and does not meet it in time, if there is a special one.
    """

    @property
    def what(self) -> str:
        """The requirement, as it can be looked up."""
        return f"{self.variable} is {self.value}"

    def found(self, answer: Mapping[str, str]) -> str:
        """The value in ``answer``."""
        return answer.get(self.variable, "nothing")

    def met(self, answer: Mapping[str, str]) -> bool | None:
        """Whether it is met; None if that is not known."""
        found = self.found(answer)
        return None if found.startswith(UNKNOWN) else found == self.value


@dataclass(frozen=True)
class Remedy:
    """What helps a node that booted and does not get ready."""

    node: str
    action: str
    """Its name; the same action is counted for each node."""
    argv: tuple[str, ...]
    """The program that does it, run in the node as root with ``stdin``."""
    why: str
    """The reason."""
    effect: str = ""
    """What happens to the node; empty if ``why`` says it."""
    replaces: bool = False
    """Whether the node's data are replaced by those of another."""
    stdin: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Situation:
    """What is known of the nodes that run while they do not get ready."""

    standings: Mapping[str, str]
    """The output of the blueprint's ``standing`` program, by node."""
    all_here: bool
    """Whether those are all nodes of the lab."""
    waited: bool
    """Whether nothing changed for as long as a node could need."""
    given: Mapping[tuple[str, str], int]
    """How often each action was taken on a node."""
    password: str = field(default="", repr=False)
    """The password of the lab's user; empty while it is not known."""


@dataclass(frozen=True)
class Promotion:
    """A node that is to take the writes of a lab."""

    to: str
    """The name of that node."""
    nodes: tuple[str, ...]
    """The names of all nodes."""
    deadline: Deadline
    force: bool = False
    """Whether to do without the node that takes the writes now, which does not answer."""
    password: str = field(default="", repr=False)
    """The password of the lab's user."""
    fence: Callable[[str], None] = field(default=lambda _: None, repr=False)
    """Powers a node off, by name."""
    note: Callable[[str], None] = field(default=lambda _: None, repr=False)
    """Reports a step."""


@dataclass(frozen=True)
class Endpoint:
    """What users connect to.

    Where ``rw`` and ``ro`` are a proxy, ``writers`` and ``readers`` are the servers behind it.
    """

    name: str
    """Such as ``rw``."""
    nodes: tuple[str, ...]
    """The names of its nodes, best first."""
    service: str = "sql"
    """The service of these nodes that answers there."""


Known = Literal["", "last known", "planned"]
"""How what a view says is known: from the last question, an earlier one, or from none."""


@dataclass(frozen=True)
class Link:
    """``replica`` receives what ``source`` commits."""

    source: Annotated[str, public("n1")]
    replica: Annotated[str, public("n2")]
    kind: Public[str] = ""
    """Such as semi-sync; empty: asynchronous."""
    known: Public[Known] = ""
    """Empty: the replica said so; else that it said so once, or never did."""


def writers_of(endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """The servers that take writes, best first, whether or not a proxy is in front of them."""
    by_name = {endpoint.name: endpoint.nodes for endpoint in endpoints}
    return by_name.get("writers", by_name.get("rw", ()))


class Cluster(Protocol):
    """The running nodes of a lab, from inside."""

    @property
    def members(self) -> Sequence[Member]:
        """The nodes, in order."""

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """Run a program in a node as root and return its output.

        ``timeout`` in seconds. Raises NotReady or CommandFailed.
        """

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """Run ``step`` for all nodes at the same time; the first error is raised."""


class Blueprint(Protocol):
    """A topology."""

    @property
    def name(self) -> str:
        """The name by which users request it."""

    @property
    def version(self) -> int:
        """Raised when templates that were made before must not be used any more.

        Such as when a service listens at another port of the guest: the key of a template has no
        services.
        """

    @property
    def engines(self) -> Mapping[str, str]:
        """Names in messages, by the families of engines, the preferred one first.

        A family is the recipe of its default series; its other series, and families that run in
        its place, can be required (lab/config/enginefile.py).
        """

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs of a server that not each build has (``features`` in build.toml)."""

    @property
    def transient(self) -> str:
        """A regular expression for errors of a server that a retry may solve."""

    @property
    def options(self) -> Options:
        """What differs from the defaults in a lab; see ``blueprint_of``."""

    @property
    def takes(self) -> Collection[str]:
        """The names of the options that it has."""

    @property
    def elects(self) -> bool:
        """Whether nodes elect who takes writes, so that roles change while a lab runs."""

    @property
    def writers(self) -> Collection[str]:
        """The roles of nodes that take writes, where nodes elect them."""

    @property
    def late(self) -> Collection[str]:
        """The roles of nodes that execute late what they receive: they are never promoted."""

    @property
    def hands_over(self) -> bool:
        """Whether the others elect one that takes writes when it leaves.

        Then none is promoted before an upgrade of that node.
        """

    @property
    def any_source(self) -> bool:
        """Whether of the ``sources`` of a node only the first that answers matters."""

    @property
    def transfers(self) -> bool:
        """Whether the others send their state to any node that boots from disks of its image.

        Such a node can begin again without them.
        """

    @property
    def look_every(self) -> float:
        """Seconds after which nodes that boot are looked at again for whom ``remedies`` help."""

    @property
    def flush(self) -> tuple[str, ...]:
        """The statements that each server executes before disks of running nodes are captured.

        A guest that boots from such a disk must find all commits in it, and must be able to rejoin.
        """

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """The nodes of a lab with its options and its number of nodes, each of ``size``.

        Raises InvalidSpec if there can be no such lab.
        """

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """What ``member`` boots with, by absolute path; ``memory`` of the node in bytes."""

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """The steps after the first boot, before nodes are queried; none if files are sufficient.

        Nodes may still boot; they must be formed by ``deadline``. ``engines``: by the names of
        nodes. Labs are clones of the result, so it runs once for each template, and for a lab that
        is made without one, again when that goes back to its origin. Raises NotReady or
        CommandFailed.
        """

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """The nodes of ``members`` on whose answers the ``question`` to ``member`` depends.

        Such as those that it replicates from. They are asked before it.
        """

    def question(
        self, role: str, reported: Mapping[str, Mapping[str, str]], release: Release
    ) -> str:
        """The statement to whose answer ``requirements`` apply; its rows are (name, value).

        ``release``: of the server that is asked.
        ``reported``: what the node's ``sources`` just said, by their names; nothing of one that
        does not answer: what depends on it is ``UNKNOWN``. It comes from guests, whose root may say
        anything.
        """

    def elsewhere(
        self,
        member: Member,
        members: Sequence[Member],
        answer: Mapping[str, str],
        reported: Mapping[str, Mapping[str, str]],
    ) -> tuple[str, ...]:
        """The nodes of which one has to be asked before ``member`` is asked again.

        A member in another role than planned has other sources than ``sources``, so its ``answer``
        depends on more than what these ``reported``. Empty if it is in the planned role.
        """

    def through(self, role: str) -> Mapping[str, str]:
        """The statements that a proxy is asked in the place of ``question``, by its services.

        Servers answer them; what they say is named ``SERVICE.NAME``. An empty statement stands for
        a page, whose HTTP status is ``SERVICE.page``. Of a proxy that is not reached through its
        ports yet, the guest's program ``/usr/lib/lab/proxied`` says what ``requirements`` apply to.
        """

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:
        """What a node of ``role`` must meet to be ready in a lab of ``nodes``, without proxies.

        None for nodes without the service ``sql``: nobody can be asked.
        """

    def role(self, planned: str, answer: Mapping[str, str]) -> str:
        """The role that a node has by its ``answer``; ``planned`` unless nodes elect.

        An empty answer is that of a node which does not answer, while another one takes writes.
        """

    def follows(self, role: str) -> bool:
        """Whether a node that was planned for ``role`` may replicate from another.

        Asynchronously: members of one cluster need no links. Such a node is asked for its sources.
        """

    def links(self, members: Sequence[Member]) -> tuple[Link, ...]:
        """Who is to replicate from whom by the roles of ``members``; see ``follows``."""

    def position(self, answer: Mapping[str, str]) -> str:
        """What a node has executed, as its engine names it, such as GTIDs; empty if not known."""

    def personalise_statements(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        user: str,
        password: str,
        *,
        tls: bool = False,
    ) -> Sequence[str]:
        """The statements that give a cloned ``member`` its identity.

        No password that users have is in clear text. ``members``: the nodes that run. ``tls``: the
        user may log in through TLS only.
        """

    def renew(self, engine: Engine) -> str:
        """The statement with which a server reads its certificate and key again; empty: none.

        A server that cannot has no TLS.
        """

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """Bring all servers to rest before their guests shut down, to be captured without RAM.

        ``engines``: by the names of nodes.
        Clones of the disks must boot as if they had been formed and not run. Nobody else writes to
        the cluster. Raises NotReady or CommandFailed.
        """

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """Restart all servers with identities of the lab's own, which follow from ``identity``.

        Server ids and UUIDs, GTID domain, those of a cluster, machine ids: a clone has those of
        what it is a clone of. ``engines``: by the names of nodes. Nobody else writes to the
        cluster. Returns without waiting for the servers. Raises NotReady or CommandFailed.
        """

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """The program that describes a node that does not get ready, in lines."""

    def unchanging(self, standing: str) -> str:
        """``standing`` without what changes in a node all the time."""

    def remark(self, standing: str) -> str:
        """What users should know of a node of this ``standing``; empty for nothing."""

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """What to do now, in this order; nothing while nodes can recover by themselves.

        ``engines``: by the names of nodes.
        Raises NotReady if only nodes that do not run could help.
        """

    def promote(
        self, cluster: Cluster, engines: Mapping[str, Engine], promotion: Promotion
    ) -> None:
        """Have another node take writes, in steps that complete what was interrupted.

        At any moment one node takes writes, or none. ``cluster``: the nodes that run; ``engines``:
        by their names. Raises InvalidSpec where no node can be promoted, Conflict, NotReady.
        """

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """What users connect to; the first endpoint's first node is the default."""


KNOWN = {
    "pxc": "lab.blueprints.galera:PXC",
    "galera": "lab.blueprints.galera:GALERA",
    "single": "lab.blueprints.single:SINGLE",
    "replication": "lab.blueprints.replication:REPLICATION",
    "group": "lab.blueprints.group:GROUP",
    "galera-dr": "lab.blueprints.dr:GALERA_DR",
    "pxc-dr": "lab.blueprints.dr:PXC_DR",
}
"""Where each blueprint is: a module, which is imported when it is used, and its constant."""


def blueprint(name: str) -> Blueprint:
    """The blueprint of that name; raises InvalidSpec."""
    if name not in KNOWN:
        raise InvalidSpec(
            f"there is no blueprint {name!r}",
            hint=did_you_mean(name, KNOWN, otherwise=f"blueprints: {', '.join(KNOWN)}"),
        )
    module, _, constant = KNOWN[name].partition(":")
    return cast("Blueprint", getattr(import_module(module), constant))


def blueprint_of(spec: LabSpec) -> Blueprint:
    """The blueprint of a lab, with its options; raises InvalidSpec."""
    return with_options(spec.blueprint, spec.chosen, spec.node_count)


def with_options(blueprint_name: str, options: Options, nodes: int) -> Blueprint:
    """A blueprint for a lab of ``nodes`` with these options; raises InvalidSpec."""
    found = blueprint(blueprint_name)
    for name in options.said:
        if name not in found.takes:
            raise InvalidSpec(
                f"the blueprint {found.name} does not have the option {name}",
                hint=f"its options are: {', '.join(sorted(found.takes))}",
            )
    return cast("Blueprint", replace(cast("Any", found), options=options, nodes=nodes))


def foreseen(spec: LabSpec) -> tuple[NodePlan, ...]:
    """The nodes of a lab; equal ones if this version of lab does not have its blueprint."""
    try:
        return planned(spec)
    except InvalidSpec:
        names = (node_name(number) for number in range(1, spec.node_count + 1))
        return tuple(NodePlan(name, "", spec.size) for name in names)


def planned(spec: LabSpec, added: Mapping[str, str] = enginefile.NONE) -> tuple[NodePlan, ...]:
    """The nodes of a lab; raises InvalidSpec if there can be no such lab; see ``planned_by``."""
    return planned_by(blueprint_of(spec), spec.size, spec.engine, added)


def planned_by(
    plan: Blueprint, size: NodeSize, engine: str, added: Mapping[str, str]
) -> tuple[NodePlan, ...]:
    """The nodes of a lab whose blueprint is ``plan``; raises InvalidSpec as ``planned`` does.

    ``size``: of each node; ``engine``: the required one, or empty; ``added``: the families of
    engines that were added to the home, by name.
    """
    found = plan.plan(size)
    roles = dict.fromkeys(node.role for node in found if node.has_server)
    for file in plan.options.my_cnf:
        if file.role and file.role not in roles:
            raise InvalidSpec(
                f"no node has the role {file.role}, for which an option file was given",
                hint=f"roles are: {', '.join(roles)}",
            )
    return _with_engines(plan, engine, found, added) if plan.options.node else found


def _with_engines(
    plan: Blueprint, engine: str, nodes: tuple[NodePlan, ...], added: Mapping[str, str]
) -> tuple[NodePlan, ...]:
    """Give some of ``nodes`` the engines that the options name; raises InvalidSpec.

    ``engine``: the one that the lab requires, of whose kind theirs must be; or empty.
    """
    given, servers = plan.options.engines, [node.name for node in nodes if node.has_server]
    for name in given:
        if name not in servers:
            raise InvalidSpec(
                f"{name} is no node with a server, so it has no engine of its own",
                hint=f"nodes with servers: {', '.join(servers)}",
            )
    recipes = {
        name: enginefile.recipe(own, plan.engines, plan.name, added) for name, own in given.items()
    }
    kinds = {enginefile.kind_of(recipe, added): given[name] for name, recipe in recipes.items()}
    if engine:
        of_lab = enginefile.recipe(engine, plan.engines, plan.name, added)
        kinds.setdefault(enginefile.kind_of(of_lab, added), engine)
    check_kinds(kinds)
    return tuple(replace(node, recipe=recipes.get(node.name, node.recipe)) for node in nodes)


def check_kinds(kinds: Mapping[str, str]) -> None:
    """Raise InvalidSpec if servers are of several kinds: by kind, the engine of one of them."""
    if len(kinds) > 1:
        raise InvalidSpec(
            f"{' and '.join(kinds.values())} cannot be in one lab: servers of these families"
            " neither replicate from each other nor form a cluster",
            hint="name series of one engine, such as mariadb:11.8 and mariadb:10.11",
        )
