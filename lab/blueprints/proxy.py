"""Nodes that have no data: proxies, through which users connect, and arbiters, which vote.

Each server has a resident checker (``/usr/lib/lab/check`` in its guest) that answers over HTTP
whether its server takes writes now (``/rw``) and whether it can be read from (``/ro``): 200 or
503. HAProxy asks it by itself. MySQL Router with static destinations knows of no roles, so a
program next to it asks, and restarts it with other destinations.

Sources: the manuals of HAProxy 3.0 ("Configuration Manual") and MySQL Router ("Configuration
Options"), and the Galera documentation, "Galera Arbitrator".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import TypeVar

from lab.blueprints import Cluster, Condition, Endpoint, Engine, Member, NodePlan, Service
from lab.errors import InvalidSpec
from lab.guest import network
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.options import Options
from lab.spec import NODES_LIMIT, NodeSize
from lab.units import MIB

PROXY, ARBITER = "proxy", "arbiter"
"""The roles of nodes without data."""

RO_PORT, ADMIN_PORT, CHECK_PORT = 3307, 8404, 9200
CHECKS = "/etc/lab/check"
"""What a server's checker reads: where it listens, and what it asks."""
SERVERS = "/etc/lab/proxy"
"""What the program beside MySQL Router reads: how writes are spread, and the servers, in order."""

_SIZE = NodeSize(memory=384 * MIB)
_RECIPES = {"haproxy": "haproxy", "router": "mysql-router"}
_SSH = Service("ssh", network.SSH_PORT)
_NAMES = {"rw": "writers", "ro": "readers"}
"""The endpoints of the servers themselves where a proxy is in front of them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A question of the checker: ``statement`` holds when its first row has ``text`` in it.

    ``text``: values of columns that are next to each other, with spaces between; one of several,
    with ``|`` between. Empty: the statement has no rows and only has to succeed. Statements are of
    kinds that are not counted as use of a lab (``lab.lifecycle.service.activity``), so no SELECT.
    """

    statement: str
    text: str = ""


@dataclass(frozen=True)
class Traffic:
    """Which servers of a blueprint get which statements.

    ``writes``, ``reads``: what holds on a server that takes writes, and on one to read from.
    ``alike``: all servers take writes, and the first of those that do is given them all.
    ``variable``: of servers, by whose value it is seen where a statement arrived: ``read_only``, or
    the name of the node where servers are alike. ``spread``: writes go to all that take them.
    """

    writes: tuple[Check, ...]
    reads: tuple[Check, ...]
    variable: str = "read_only"
    alike: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Leads(Condition):
    """A service of a proxy leads to servers of the right kind.

    ``name``: the service's endpoint. ``key``: of the answer of the server that was reached;
    ``expected``: its value, empty for any; ``unlike``: the key whose value must be another.
    ``least``: how many servers the proxy itself must have for it, where nobody reaches it yet.
    """

    key: str = ""
    expected: str = ""
    unlike: str = ""
    least: int = 1

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
    return role not in (PROXY, ARBITER)


def plan(options: Options, servers: int) -> tuple[NodePlan, ...]:
    """The nodes after ``servers`` servers; raises InvalidSpec if they are too many together."""
    found: list[NodePlan] = []
    if options.arbiter:
        found.append(NodePlan(node_name(servers + 1), ARBITER, _SIZE, "galera-arbitrator", (_SSH,)))
    if options.proxy != "none":
        services = [Service("sql", network.SQL_PORT), Service("ro", RO_PORT), _SSH]
        if options.proxy == "haproxy":
            services.append(Service("admin", ADMIN_PORT))
        name, recipe = node_name(servers + len(found) + 1), _RECIPES[options.proxy]
        found.append(NodePlan(name, PROXY, _SIZE, recipe, tuple(services)))
    if servers + len(found) > NODES_LIMIT:
        more = " and ".join(f"a node for the {node.role}" for node in found)
        raise InvalidSpec(
            f"{servers} servers and {more} are {servers + len(found)} nodes:"
            f" a lab has at most {NODES_LIMIT} nodes",
            hint=f"`--nodes {NODES_LIMIT - len(found)}` leaves room for it",
        )
    return tuple(found)


def servers(members: Sequence[Member]) -> list[Member]:
    """Those that have a database server."""
    return [member for member in members if serves(member.role)]


def voters(members: Sequence[Member]) -> list[Member]:
    """Those that are members of a Galera cluster: servers and an arbiter."""
    return [member for member in members if member.role != PROXY]


@dataclass(frozen=True)
class _Part:
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
    return _Part(cluster, servers(cluster.members))


def voters_of(cluster: Cluster) -> Cluster:
    """``cluster`` without proxies."""
    return _Part(cluster, voters(cluster.members))


def checks(member: Member, options: Options, traffic: Traffic) -> dict[str, SeedFile]:
    """The file of a server's checker; none if no proxy asks it."""
    if options.proxy == "none":
        return {}
    lines = [f"listen\t{member.address}\t{CHECK_PORT}"]
    for path, asked in (("/rw", traffic.writes), ("/ro", traffic.reads)):
        lines += [f"{path}\t{one.text}\t{one.statement}" for one in asked]
    return {CHECKS: SeedFile("".join(f"{line}\n" for line in lines).encode())}


def files(
    members: Sequence[Member], engine: Engine, options: Options, traffic: Traffic
) -> dict[str, SeedFile]:
    """What a proxy in front of ``members`` boots with."""
    behind = servers(members)
    if options.proxy == "haproxy":
        text = engine.config + _haproxy(behind, traffic)
        return {engine.config_path: SeedFile(text.encode())}
    lines = [f"rw\t{'round-robin' if traffic.spread else 'first-available'}"]
    lines += [f"{m.name}\t{m.address}\t{'last' if m.role == 'delayed' else ''}" for m in behind]
    return {
        engine.config_path: SeedFile(engine.config.encode()),
        SERVERS: SeedFile("".join(f"{line}\n" for line in lines).encode()),
    }


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
    found = {"sql": statement, "ro": statement}
    return found | ({"admin": ""} if options.proxy == "haproxy" else {})


def requirements(options: Options, traffic: Traffic, count: int) -> tuple[Condition, ...]:
    """What a proxy in front of ``count`` servers must meet.

    Where all of them take writes, none is left to read from.
    """
    rw, ro = f"sql.{traffic.variable}", f"ro.{traffic.variable}"
    writes = ("rw", "rw leads to", "a server that takes writes")
    expected = "" if traffic.alike else "OFF"
    found: list[Condition] = [Leads(*writes, unmet="not-primary", key=rw, expected=expected)]
    if traffic.alike and count > 1:
        reads = ("ro", "ro leads to", "another server than rw")
        found.append(Leads(*reads, key=ro, unlike=rw, least=count - 1))
    elif not (traffic.alike or traffic.spread):
        reads = ("ro", "ro leads to", "a server that is read-only")
        late = len(options.on) if options.delay and options.proxy == "router" else 0
        # HAProxy has those that are late as backup, Router only where there are no others.
        found.append(Leads(*reads, key=ro, expected="ON", least=count - 1 - late or count - 1))
    if options.proxy == "haproxy":
        found.append(Condition("admin", "admin.page", "200"))
    return tuple(found)


def endpoints(
    found: tuple[Endpoint, ...], nodes: Sequence[Member], options: Options
) -> tuple[Endpoint, ...]:
    """The endpoints of the servers, ``found``, behind those of a proxy if there is one."""
    proxies = tuple(node.name for node in nodes if node.role == PROXY)
    if not proxies:
        return found
    front = [Endpoint("rw", proxies), Endpoint("ro", proxies, "ro")]
    if options.proxy == "haproxy":
        front.append(Endpoint("admin", proxies, "admin"))
    return (*front, *(replace(one, name=_NAMES[one.name]) for one in found if one.nodes))


def _haproxy(behind: Sequence[Member], traffic: Traffic) -> str:
    """The frontends and backends of a proxy in front of these servers."""
    parts = [
        _frontend("rw", network.SQL_PORT, ["default_backend rw"]),
        _backend("rw", traffic, [_server(m, traffic, first=m == behind[0]) for m in behind]),
    ]
    if traffic.alike:
        # A backend to read from for each server that writes may go to: all others, then itself.
        # What the checks of the backend rw find holds for the servers of these as well.
        rules = [f"use_backend ro-{m.name} if {{ srv_is_up(rw/{m.name}) }}" for m in behind]
        parts.append(_frontend("ro", RO_PORT, [*rules, "default_backend rw"]))
        for writer in behind:
            tracked = [
                f"server {m.name} {m.address}:{network.SQL_PORT} track rw/{m.name}"
                + (" backup" if m == writer else "")
                for m in behind
            ]
            parts.append(_section(f"backend ro-{writer.name}", ["balance leastconn", *tracked]))
    else:
        rules = ["use_backend rw if { nbsrv(ro) lt 1 }", "default_backend ro"]
        parts.append(_frontend("ro", RO_PORT, rules))
        lines = ["balance leastconn", "option httpchk GET /ro", "http-check expect status 200"]
        for m in behind:
            last = " backup" if m.role == "delayed" else ""
            lines.append(f"server {m.name} {m.address}:{network.SQL_PORT} check{last}")
        parts.append(_section("backend ro", lines))
    return "".join(parts)


def _backend(name: str, traffic: Traffic, lines: Sequence[str]) -> str:
    balance = "leastconn" if traffic.spread else "first"
    head = [f"balance {balance}", "option httpchk GET /rw", "http-check expect status 200"]
    return _section(f"backend {name}", [*head, *lines])


def _server(member: Member, traffic: Traffic, *, first: bool) -> str:
    line = f"server {member.name} {member.address}:{network.SQL_PORT} check"
    if not traffic.alike:
        return line
    # Writes go to one node: sessions on others end when the first is back.
    return f"{line} on-marked-up shutdown-backup-sessions" if first else f"{line} backup"


def _frontend(name: str, port: int, lines: Sequence[str]) -> str:
    return _section(f"frontend {name}", [f"bind 0.0.0.0:{port}", *lines])


def _section(head: str, lines: Sequence[str]) -> str:
    return "".join([f"\n{head}\n", *(f"    {line}\n" for line in lines)])
