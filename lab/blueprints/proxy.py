"""Nodes that have no data: proxies, through which users connect, arbiters, which vote, and clients.

Source: the Galera documentation, "Galera Arbitrator".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import Template
from typing import TypeVar

from lab.blueprints import CLIENT, Cluster, Condition, Endpoint, Engine, Member, NodePlan, Service
from lab.blueprints.proxies import CHECK_PORT, RO_PORT, Proxy, Traffic
from lab.blueprints.proxies.haproxy import HAProxy
from lab.blueprints.proxies.router import Router
from lab.errors import InvalidSpec
from lab.guest import network
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.options import Options
from lab.sizes import NODES_LIMIT, NodeSize
from lab.units import MIB
from lab.values import dataclass

PROXY, ARBITER = "proxy", "arbiter"
"""The roles of nodes without data, besides ``CLIENT``."""

PROXIES: dict[str, Proxy] = {"haproxy": HAProxy(), "router": Router()}
"""The proxies, by what the option ``proxy`` calls them."""

CHECKS = "/etc/lab/check"
"""What a server's checker reads: where it listens, and what it asks."""

_SIZE = NodeSize(memory=384 * MIB)
_SSH = Service("ssh", network.SSH_PORT)
_NAMES = {"rw": "writers", "ro": "readers"}
"""The endpoints of the servers themselves where a proxy is in front of them."""

T = TypeVar("T")


@dataclass(frozen=True)
class RouteCondition(Condition):
    """A service of a proxy leads to servers of the right kind.

    Its ``name`` is that of the endpoint.
    """

    key: str = ""
    """Of the answer of the server that was reached."""
    expected: str = ""
    """The value of ``key``; empty for any."""
    unlike: str = ""
    """The key whose value must be another."""
    least: int = 1
    """How many servers the proxy itself must have for it, where nobody reaches it yet."""

    @property
    def what(self) -> str:
        """See Condition."""
        return f"{self.variable} {self.value}"

    def found(self, answer: Mapping[str, str]) -> str:
        """See Condition."""
        if self.key not in answer:
            servers = answer.get(self.name, "").split()
            few = " ".join(servers) or "no server"
            return self.value if len(servers) >= self.least else f"only {few}" if servers else few
        value = answer[self.key]
        if self.unlike and answer.get(self.unlike) == value:
            return f"{value}, as rw does"
        if not self.expected:
            return self.value if value else "an unknown node"
        if value != self.expected:
            return "a server that is read-only" if value == "ON" else "a server that takes writes"
        return self.value


def serves(role: str) -> bool:
    """Whether a node of ``role`` has a database server."""
    return role not in (PROXY, ARBITER, CLIENT)


def plan(options: Options, servers: int) -> tuple[NodePlan, ...]:
    """The nodes after ``servers`` servers; raises InvalidSpec if they are too many together."""
    found: list[NodePlan] = []
    if options.arbiter:
        found.append(NodePlan(node_name(servers + 1), ARBITER, _SIZE, "galera-arbitrator", (_SSH,)))
    if front := PROXIES.get(options.proxy):
        name, sql = node_name(servers + len(found) + 1), Service("sql", network.SQL_PORT)
        services = (sql, Service("ro", RO_PORT), _SSH, *front.pages)
        found.append(NodePlan(name, PROXY, _SIZE, front.recipe, services))
    if options.client:
        name = node_name(servers + len(found) + 1)
        found.append(NodePlan(name, CLIENT, _SIZE, "client", (_SSH,)))
    if servers + len(found) > NODES_LIMIT:
        more = " and ".join(f"a node for the {node.role}" for node in found)
        raise InvalidSpec(
            f"{servers} servers and {more} are {servers + len(found)} nodes:"
            f" a lab has at most {NODES_LIMIT} nodes",
            hint=f"`--nodes {NODES_LIMIT - len(found)}` leaves room for it",
        )
    return tuple(found)


def servers(members: Sequence[Member]) -> list[Member]:
    """The members that have a database server."""
    return [member for member in members if serves(member.role)]


def voters(members: Sequence[Member]) -> list[Member]:
    """The members that vote in a Galera cluster: servers and an arbiter."""
    return [member for member in members if member.role not in (PROXY, CLIENT)]


@dataclass(frozen=True)
class _SomeNodes:
    """Some nodes of a cluster; see ``Cluster``."""

    whole: Cluster
    members: Sequence[Member]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """See Cluster."""
        return self.whole.run(member, argv, stdin=stdin, timeout=timeout)

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        names = {member.name for member in self.members}
        found = self.whole.each(lambda m: [step(m)] if m.name in names else [])
        return [one for part in found for one in part]


def servers_of(cluster: Cluster) -> Cluster:
    """``cluster`` without the nodes that have no database server."""
    return _SomeNodes(cluster, servers(cluster.members))


def voters_of(cluster: Cluster) -> Cluster:
    """``cluster`` without proxies and clients."""
    return _SomeNodes(cluster, voters(cluster.members))


def checks(member: Member, options: Options, traffic: Traffic) -> dict[str, SeedFile]:
    """The file of a server's checker; none if no proxy asks it."""
    if options.proxy not in PROXIES:
        return {}
    lines = [f"listen\t{member.address}\t{CHECK_PORT}"]
    for path, asked in (("/rw", traffic.writes), ("/ro", traffic.reads)):
        lines += [f"{path}\t{one.text}\t{one.statement}" for one in asked]
    return {CHECKS: SeedFile("".join(f"{line}\n" for line in lines).encode())}


def files(
    members: Sequence[Member], engine: Engine, options: Options, traffic: Traffic
) -> Mapping[str, SeedFile]:
    """What a proxy in front of ``members`` boots with."""
    return PROXIES[options.proxy].files(servers(members), engine, traffic)


def of_client(members: Sequence[Member], engine: Engine) -> Mapping[str, SeedFile]:
    """What a client boots with: which servers there are."""
    lines = [f"# {one.name} {one.address}\n" for one in servers(members)]
    return {engine.config_path: SeedFile((engine.config + "".join(lines)).encode())}


def garbd(member: Member, members: Sequence[Member], engine: Engine) -> SeedFile:
    """The option file of the arbiter ``member`` of a Galera cluster."""
    text = Template(engine.config).substitute(
        node_name=member.name,
        node_address=member.address,
        cluster_name="lab",
        cluster_address="gcomm://" + ",".join(other.address for other in voters(members)),
    )
    return SeedFile(text.encode())


def through(options: Options, traffic: Traffic) -> dict[str, str]:
    """See Blueprint."""
    statement = f"SHOW GLOBAL VARIABLES LIKE '{traffic.variable}'"
    pages = {page.name: "" for page in PROXIES[options.proxy].pages}
    return {"sql": statement, "ro": statement, **pages}


def requirements(options: Options, traffic: Traffic, count: int) -> tuple[Condition, ...]:
    """What a proxy in front of ``count`` servers must meet.

    Where all of them take writes, none is left to read from.
    """
    front = PROXIES[options.proxy]
    rw, ro = f"sql.{traffic.variable}", f"ro.{traffic.variable}"
    writes = ("rw", "rw leads to", "a server that takes writes")
    expected = "" if traffic.alike else "OFF"
    found: list[Condition] = [
        RouteCondition(*writes, unmet="not-primary", key=rw, expected=expected)
    ]
    if traffic.alike and count > 1:
        reads = ("ro", "ro leads to", "another server than rw")
        found.append(RouteCondition(*reads, key=ro, unlike=rw, least=count - 1))
    elif not (traffic.alike or traffic.spread):
        reads = ("ro", "ro leads to", "a server that is read-only")
        late = len(options.on) if options.delay and not front.counts_delayed else 0
        found.append(
            RouteCondition(*reads, key=ro, expected="ON", least=count - 1 - late or count - 1)
        )
    found += [Condition(page.name, f"{page.name}.page", "200") for page in front.pages]
    return tuple(found)


def endpoints(
    found: tuple[Endpoint, ...], nodes: Sequence[Member], options: Options
) -> tuple[Endpoint, ...]:
    """The endpoints of the servers, ``found``, behind those of a proxy if there is one."""
    proxies = tuple(node.name for node in nodes if node.role == PROXY)
    if not proxies:
        return found
    front = [Endpoint("rw", proxies), Endpoint("ro", proxies, "ro")]
    pages = PROXIES[options.proxy].pages
    front += [Endpoint(page.name, proxies, page.name) for page in pages]
    return (*front, *(replace(one, name=_NAMES[one.name]) for one in found if one.nodes))
