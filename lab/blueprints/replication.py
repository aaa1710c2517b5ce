"""Asynchronous replication by GTID: sources that take writes, replicas that follow them.

Which node follows which is data (``links``): by default all follow the first. All servers start
from one data directory without a history, so a replica begins at the source's first transaction,
and there is nothing to transfer.

A replica has caught up when it has executed all that its source had executed when that was asked,
shortly before: ``MASTER_GTID_WAIT`` in MariaDB, ``WAIT_FOR_EXECUTED_GTID_SET`` in MySQL. The
statements of each are in ``dialects``.

In a star another node can become the source (``switchover``): so its servers start read-only, and
their roles are asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final

from lab.blueprints import (
    CLIENT,
    UNKNOWN,
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Link,
    Member,
    NodePlan,
    Promotion,
    Release,
    Remedy,
    Situation,
    gtid,
    proxy,
    server,
    switchover,
)
from lab.blueprints.dialects import Asked, dialect_of
from lab.blueprints.proxies import RoleQuery, Traffic
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.network import inner_address
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.options import Topology
from lab.sizes import NodeSize
from lab.units import format_duration
from lab.values import dataclass
from lab.wait import Deadline

_ACCOUNT = "replication@'%'"
_RELINKS = 6
"""How often a link that is down is made again, at one look in two."""
_WAIT = 0.2
"""Seconds that a replica may take to execute what its source just had."""
_OPTIONS = """
[mysqld]
log_bin = {logs}/binlog
relay_log = {logs}/relay
relay_log_recovery = ON
sync_binlog = {sync}
max_binlog_size = 64M
binlog_expire_logs_seconds = 604800
report_host = {name}
"""


_READ_ONLY = "@@GLOBAL.read_only"
_SUPER_READ_ONLY = "@@GLOBAL.super_read_only"
_ROLES = ("source", "replica", "delayed")
_TRAFFIC = Traffic(
    writes=(RoleQuery("SHOW GLOBAL VARIABLES LIKE 'read_only'", "OFF"),),
    reads=(RoleQuery("SHOW GLOBAL VARIABLES LIKE 'read_only'", "ON"),),
)
"""What a proxy finds out by itself; a server's checker looks at its link, too."""
_FOLLOWS = (
    Condition("replicating", "replication", "running"),
    Condition("caught up", "caught up", "yes", "not-synced"),
)
REPLICA = (Condition("read-only", "read_only", "ON"), *_FOLLOWS)
"""What is required of a replica."""
_DELAYED = REPLICA[:-1]
"""What is required of a delayed replica, which is late on purpose."""
_FIXED = {
    "chain": "in a chain each node follows the one before it",
    "ring": "in a ring every node takes writes",
    "fan-in": "in a fan-in every node but the last one takes writes",
}
"""Why no node can be promoted in other topologies than a star."""


@dataclass(frozen=True)
class Replication(server.Defaults):
    """See Blueprint."""

    name: str = "replication"
    version: int = 3
    engines: Mapping[str, str] = field(
        default_factory=lambda: {"mariadb": "MariaDB", "mysql": "MySQL"}, hash=False
    )
    flush: tuple[str, ...] = ("FLUSH LOCAL BINARY LOGS", "FLUSH LOCAL ENGINE LOGS")
    takes: frozenset[str] = server.COMMON | {
        "node",
        "topology",
        "semi_sync",
        "delay",
        "on",
        "proxy",
    }
    writers: tuple[str, ...] = ("source",)
    late: tuple[str, ...] = ("delayed",)

    def __post_init__(self) -> None:
        star = self.options.topology == "star"
        object.__setattr__(self, "elects", star)
        object.__setattr__(self, "look_every", 2.0 if star else 10.0)

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if self.nodes < 2:
            raise InvalidSpec(
                f"{self.name} has two nodes at least, not {self.nodes}",
                hint="one server without replicas is the blueprint single",
            )
        options, numbers = self.options, range(1, self.nodes + 1)
        roles = {node_name(n): _role(options.topology, n, self.nodes) for n in numbers}
        replicas = [name for name, role in roles.items() if role == "replica"]
        if options.on and not options.delay:
            raise InvalidSpec(
                f"nodes are named ({', '.join(options.on)}), but no delay for them",
                hint="such as --delay 1h --on n3",
            )
        if options.proxy != "none" and options.topology not in ("star", "chain"):
            raise InvalidSpec(
                f"no proxy can be in front of a {options.topology}: it has several sources",
                hint="--topology star or chain, or no --proxy",
            )
        if options.delay and not replicas:
            raise InvalidSpec(f"no node of the topology {options.topology} is a replica to delay")
        for name in options.on:
            if name not in replicas:
                raise InvalidSpec(
                    f"{name} is no replica that can be delayed",
                    hint=f"replicas are: {', '.join(replicas)}",
                )
        if options.delay:
            roles |= dict.fromkeys(options.on or replicas, "delayed")
        nodes = tuple(NodePlan(name, role, size) for name, role in roles.items())
        return (*nodes, *proxy.plan(options, self.nodes))

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        if member.role == proxy.PROXY:
            return proxy.files(members, engine, self.options, _TRAFFIC)
        if member.role == CLIENT:
            return proxy.of_client(members, engine)
        members = proxy.servers(members)
        text = server.options(member, server.alone(engine), memory, profile)
        text += binary_log(member, engine, profile)
        dialect, several = dialect_of(engine).links, self.options.topology in ("ring", "fan-in")
        if len(self._links(member)) > 1 and not dialect.several:
            raise InvalidSpec(
                f"{member.name} cannot follow several servers: MySQL has channels since 5.7, and"
                f" this one is {engine.version}",
                hint="another topology, or another engine for it: --node",
            )
        text += dialect.options
        if several and dialect_of(engine).gtid_domains:
            text += f"gtid_domain_id = {member.index}\n"
        if self.options.topology == "ring":
            text += f"auto_increment_increment = {len(members)}\n"
            text += f"auto_increment_offset = {member.index}\n"
        if self.options.semi_sync and self.elects:
            text += dialect.semi_sync + dialect.acknowledged + dialect.acknowledges
            text += dialect.either
        elif self.options.semi_sync:
            text += dialect.semi_sync
            text += dialect.acknowledged if self._followers(member, members) else ""
            text += dialect.acknowledges if self._links(member) else ""
        if self.elects or member.role != "source":
            text += dialect.read_only
        files = {engine.config_path: SeedFile(text.encode())}
        # Where the source is lost there are still data to read.
        link = RoleQuery(dialect_of(engine).asked.threads, "Yes Yes|Connecting Yes")
        traffic = replace(_TRAFFIC, reads=(*_TRAFFIC.reads, link))
        return files | proxy.checks(member, self.options, traffic)

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint; what is done here is in no binary log."""
        password, cluster = secrets.token_hex(16), proxy.servers_of(cluster)
        addresses = {member.index: member.address for member in cluster.members}

        def accounts(member: Member) -> None:
            engine = engines[member.name]
            before, after = "DO 1", "DO 1"
            if self.elects or member.role != "source":
                before, after = dialect_of(engine).links.writable
            own = [*account(engine, password), *read_only(engine)]
            statements = [before, *unlogged(own), after]
            server.first_statements(cluster, member, statements, deadline)
            if self.elects:  # also of a dataset's node, which may remember another lab's
                note = (switchover.PROGRAM, "note", "0", node_name(1))
                lead = switchover.lead(member, 0, self._switched(engine))
                order = lead if member.role == "source" else note
                cluster.run(member, order, timeout=max(deadline.left, 1.0))

        def follow(member: Member) -> None:
            statements: list[str] = []
            delay = int(self.options.delay) if member.role == "delayed" else 0
            for number, channel in self._links(member).items():
                address = addresses[number]
                statements += link(engines[member.name], address, password, channel, delay)
            if statements:
                server.first_statements(cluster, member, statements, deadline)

        cluster.each(accounts)
        cluster.each(follow)

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """See Blueprint."""
        links = self._links(member) if proxy.serves(member.role) else {}
        return tuple(other.name for other in members if other.index in links)

    def follows(self, role: str) -> bool:
        """See Blueprint."""
        if not proxy.serves(role):
            return False
        return self.elects or role != "source" or self.options.topology == "ring"

    def links(self, members: Sequence[Member]) -> tuple[Link, ...]:
        """See Blueprint; in a star all follow the source."""
        found = []
        sources = [member.name for member in members if member.role == "source"][:1]
        for member in proxy.servers(members):
            if member.role == "delayed":
                kind = f"{format_duration(self.options.delay)} late"
            else:
                kind = "semi-sync" if self.options.semi_sync else ""
            followed = sources if self.elects else self.sources(member, members)
            found += [Link(name, member.name, kind) for name in followed if name != member.name]
        return tuple(found)

    def through(self, role: str) -> Mapping[str, str]:
        """See Blueprint."""
        return proxy.through(self.options, _TRAFFIC) if role == proxy.PROXY else {}

    def question(
        self, role: str, reported: Mapping[str, Mapping[str, str]], release: Release
    ) -> str:
        """See Blueprint."""
        asked = self._question_of_star if self.elects else self._question_of_links
        return asked(role, reported, dialect_of(release).asked)

    def _question_of_links(
        self, role: str, reported: Mapping[str, Mapping[str, str]], asked: Asked
    ) -> str:
        """To a node in the role that it was planned for."""
        writes = role == "source"
        found = _standing(asked, _READ_ONLY if writes else _SUPER_READ_ONLY)
        if self.options.semi_sync and writes:
            found += _semi_sync(asked)
        if writes and self.options.topology != "ring":
            return found
        return found + _following(asked, reported, delayed=role == "delayed")

    def _question_of_star(
        self, role: str, reported: Mapping[str, Mapping[str, str]], asked: Asked
    ) -> str:
        """To a node in whatever role; ``reported``: until one says that it takes writes."""
        found = _standing(asked, _SUPER_READ_ONLY)
        if self.options.semi_sync:
            found += _semi_sync(asked)
        running = asked.running.format(links=1)
        caught_up = "'delayed'" if role == "delayed" else "'yes'"
        sources = {
            name: answered
            for name, answered in reported.items()
            if answered.get("read_only") == "OFF"
        }
        silent = [name for name, answered in reported.items() if "read_only" not in answered]
        for name, answered in sources.items():
            position = answered.get("position", "")
            if not gtid.valid_position(position):
                caught_up = f"'{UNKNOWN}{name} sent an invalid position'"
            elif position and role != "delayed":
                caught_up = _caught_up(asked, position)
        if not sources and silent:
            caught_up = f"'{UNKNOWN}{silent[0]} does not answer'"
        elif not sources and len(reported) >= self.nodes - 1:
            caught_up = "'no node takes writes'"
        elif not sources:  # of a node whose source is not to run, no more is wanted
            running = asked.linked
        return found + _replicating(running, caught_up)

    def elsewhere(
        self,
        member: Member,
        members: Sequence[Member],
        answer: Mapping[str, str],
        reported: Mapping[str, Mapping[str, str]],
    ) -> tuple[str, ...]:
        """See Blueprint; a node that is read-only has a source, which takes writes."""
        found = any(answered.get("read_only") == "OFF" for answered in reported.values())
        if not self.elects or found or answer.get("read_only") != "ON":
            return ()
        names = (other.name for other in proxy.servers(members) if other != member)
        return tuple(name for name in names if name not in reported)

    def role(self, planned: str, answer: Mapping[str, str]) -> str:
        """See Blueprint."""
        if not self.elects or planned not in _ROLES:
            return planned
        if answer.get("read_only") == "OFF":
            return "source"
        return "replica" if planned == "source" else planned

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:
        """See Blueprint; a delayed replica need not catch up."""
        if role == proxy.PROXY:
            return proxy.requirements(self.options, _TRAFFIC, self.nodes)
        if role == CLIENT:
            return ()
        hint = "`SET GLOBAL read_only = OFF` lets it accept writes again"
        if role != "source":
            return _DELAYED if role == "delayed" else REPLICA
        found = [Condition("writable", "read_only", "OFF", "degraded", hint)]
        replicas = nodes - 1 if self.options.topology == "star" else 1
        # Which node does not run is not known here: it may be the one that acknowledges.
        if self.options.semi_sync and (self.elects or nodes >= self.nodes):
            if replicas:
                found.append(Condition("semi-sync", "semi-sync status", "ON"))
            found.append(Condition("semi-sync replicas", "semi-sync clients", str(replicas)))
        return (*found, *(_FOLLOWS if self.options.topology == "ring" else ()))

    def personalise_statements(
        self,
        member: Member,
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        engine: Engine,
        user: str,
        password: str,
        *,
        tls: bool = False,
    ) -> Sequence[str]:
        """See Blueprint.

        Each server is given the password by itself, as a replica may be late. What replicas log in
        with follows from it.
        """
        accounts = server.accounts(engine, user, password, self.options, tls=tls)
        statements = unlogged([*accounts, login(engine, password)])
        if self.elects:
            dialect, own = dialect_of(engine).links, server.peer_password(password)
            half = len(dialect.by_role) // 2
            before, after = dialect.by_role[:half], dialect.by_role[half:]
            again = [one.replace("{password}", own) for one in dialect.relink_if_linked]
            return [*self.renewal(engine), *before, *statements, *after, *again]
        if member.role != "source":
            first, last = dialect_of(engine).links.writable
            statements = [first, *statements, last]
        for channel in self._links(member).values():
            statements += relink(engine, password, channel)
        return [*self.renewal(engine), *statements]

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return (switchover.PROGRAM, "state", engine.service)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        return switchover.unchanging(standing)

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint."""
        ended = server.restarts(situation, engines)
        if ended:
            return ended
        if not self.elects:
            numbers = range(1, self.nodes + 1)
            followed = {
                node_name(n): {
                    channel: inner_address(source)
                    for source, channel in self._links(Member(node_name(n), n, "", "")).items()
                }
                for n in numbers
            }
            writers = [node_name(n) for n in numbers if self._writes(n)]
            return relinks(situation, engines, followed, self._delays(), writers)
        password = server.peer_password(situation.password) if situation.password else ""
        return switchover.remedies(
            replace(situation, password=password),
            engines,
            self._switched,
            node_name(1),
            self._delays(),
        )

    def promote(
        self, cluster: Cluster, engines: Mapping[str, Engine], promotion: Promotion
    ) -> None:
        """See Blueprint."""
        if why := _FIXED.get(self.options.topology):
            raise InvalidSpec(
                f"{promotion.to} cannot be promoted: {why}",
                hint="a node of the topology star can be",
            )
        switchover.Star(
            proxy.servers_of(cluster),
            engines,
            self._switched,
            node_name(1),
            self._delays(),
            server.peer_password(promotion.password),
            replace(promotion, nodes=promotion.nodes[: self.nodes]),
        ).promote()

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint; where several nodes write, each has a GTID domain of its own."""
        if self.options.topology in ("star", "chain"):
            super().identify(cluster, engines, identity)
        else:
            server.identify_all(cluster, engines, identity, lambda member: member.index)

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint; delayed replicas are the last ones to read from."""
        by_role = {role: tuple(node.name for node in nodes if node.role == role) for role in _ROLES}
        first = proxy.servers(nodes)[:1]
        found = [Endpoint("rw", by_role["source"] or tuple(node.name for node in first))]
        if readers := by_role["replica"] + by_role["delayed"]:
            found.append(Endpoint("ro", readers))
        return proxy.endpoints(tuple(found), nodes, self.options)

    def _switched(self, engine: Engine) -> switchover.Role:
        """What a server is given when roles change."""
        dialect, reached = dialect_of(engine).links, dialect_of(engine).asked.reached
        role = replace(dialect.role, link=dialect.link, reached=reached)
        if not self.options.semi_sync:
            return role
        waits, lets = dialect.waits
        return replace(role, lead=(waits, *role.lead), follow=(*role.follow, lets))

    def _delays(self) -> dict[str, int]:
        """Seconds that replicas are late, by their names."""
        names = self.options.on or [node_name(number) for number in range(2, self.nodes + 1)]
        return dict.fromkeys(names, int(self.options.delay)) if self.options.delay else {}

    def _links(self, member: Member) -> dict[int, str]:
        """The numbers of the nodes that ``member`` follows, and the channel of each."""
        numbers = links(self.options.topology, member.index, self.nodes)
        return {n: node_name(n) if len(numbers) > 1 else "" for n in numbers}

    def _writes(self, number: int) -> bool:
        return _role(self.options.topology, number, self.nodes) == "source"

    def _followers(self, member: Member, members: Sequence[Member]) -> int:
        return sum(member.index in self._links(other) for other in members)


def links(topology: Topology, number: int, nodes: int) -> tuple[int, ...]:
    """The numbers of the nodes that the node ``number`` of so many nodes follows."""
    if topology == "ring":
        return (number - 1 or nodes,)
    if topology == "fan-in":
        return tuple(range(1, nodes)) if number == nodes else ()
    if number == 1:
        return ()
    return (1,) if topology == "star" else (number - 1,)


def _role(topology: Topology, number: int, nodes: int) -> str:
    if topology == "ring" or not links(topology, number, nodes):
        return "source"
    return "replica"


def binary_log(member: Member, engine: Engine, profile: EngineProfile) -> str:
    """The options of a server at either end of a link, in a group of their own."""
    text = _OPTIONS.format(
        logs=engine.log_directory, sync=int(profile.flush_log == 1), name=member.name
    )
    return dialect_of(engine).understood(text)


def replica_options(engine: Engine) -> str:
    """The options of a server that follows another and takes no writes."""
    return dialect_of(engine).links.options + dialect_of(engine).links.read_only


def account(engine: Engine, password: str) -> list[str]:
    """The statements that make the account of replicas; a dataset may have had it."""
    return [
        one.format(account=_ACCOUNT, identified=server.identified(engine, password))
        for one in dialect_of(engine).links.account
    ]


def read_only(engine: Engine) -> list[str]:
    """The statements after which the account of a lab's user cannot write to replicas."""
    # Else replicas would differ from their source.
    return list(dialect_of(engine).links.cannot_write)


def unlogged(statements: Sequence[str]) -> list[str]:
    """``statements`` that no replica executes."""
    return ["SET SESSION sql_log_bin = 0", *statements, "SET SESSION sql_log_bin = 1"]


def of_replica(engine: Engine, statements: Sequence[str]) -> list[str]:
    """``statements`` that a replica, which is read-only, executes for itself."""
    before, after = dialect_of(engine).links.writable
    return [before, *unlogged(statements), after]


def link(
    engine: Engine, address: str, password: str, channel: str = "", delay: int = 0
) -> list[str]:
    """The statements that have a replica follow the server at ``address``."""
    return [
        statement.format(channel=channel, address=address, password=password, delay=delay)
        for statement in dialect_of(engine).links.link
    ]


def repoint(engine: Engine, address: str) -> str:
    """The statement that has a replica, which is stopped, follow another server of its source's."""
    return dialect_of(engine).links.repoint.format(address=address)


def login(engine: Engine, password: str) -> str:
    """The statement that gives replicas' account what follows from a lab's ``password``."""
    own = server.identified(engine, server.peer_password(password))
    return dialect_of(engine).alter.format(account=_ACCOUNT, identified=own, require="")


def relink(engine: Engine, password: str, channel: str = "") -> list[str]:
    """The statements that have a replica log in with what follows from a lab's ``password``."""
    return [
        statement.format(channel=channel, password=server.peer_password(password))
        for statement in dialect_of(engine).links.relink
    ]


def relinks(
    situation: Situation,
    engines: Mapping[str, Engine],
    followed: Mapping[str, Mapping[str, str]],
    delays: Mapping[str, int] = MappingProxyType({}),
    writers: Collection[str] = (),
) -> list[Remedy]:
    """What nodes whose links are fixed need while one of them is down.

    ``followed``: the addresses of the sources of each node, by their channels; ``delays``: see
    ``switchover.remedies``; ``writers``: the nodes that take writes, by name.
    A node that went back logs in, and is logged in to, with the password of that time. And MariaDB
    ends the thread of a replica that asks its source for what that one is only about to have
    again (error 1236). Its file about a link may be incomplete, where a guest lost its power.
    """
    found = []
    for node, standing in situation.standings.items():
        down = "running\tno" in standing.splitlines() and server.state(standing) == "active"
        given = situation.given.get((node, "follow"), 0)
        if not (situation.password and followed.get(node) and down and given < _RELINKS):
            continue
        engine, password = engines[node], server.peer_password(situation.password)
        own = [login(engine, situation.password)]
        statements = unlogged(own) if node in writers else of_replica(engine, own)
        for channel, address in followed[node].items():
            if forgotten := dialect_of(engine).links.forget:
                statements += [one.format(channel=channel) for one in forgotten]
                statements += link(engine, address, password, channel, delays.get(node, 0))
            else:
                statements += relink(engine, situation.password, channel)
        stdin = "".join(f"{statement}\n" for statement in statements).encode()
        why = "the link to its source is down; it connects again"
        found.append(Remedy(node, "follow", (switchover.PROGRAM, "follow"), why, stdin=stdin))
    return found


def question_to_replica(reported: Mapping[str, Mapping[str, str]], release: Release) -> str:
    """What a replica is asked, of which ``REPLICA`` is required; see Blueprint."""
    asked = dialect_of(release).asked
    return _standing(asked, _SUPER_READ_ONLY) + _following(asked, reported)


def question_of_position(release: Release) -> str:
    """A further row of a question: what a server has executed."""
    return f" UNION ALL SELECT 'position', {dialect_of(release).asked.position}"


def _standing(asked: Asked, variable: str) -> str:
    """The first rows: whether it is read-only, by that variable, and what it has executed."""
    read_only = asked.read_only.format(variable=variable)
    return f"SELECT 'read_only', {read_only} UNION ALL SELECT 'position', {asked.position}"


def _semi_sync(asked: Asked) -> str:
    return "".join(
        f" UNION ALL SELECT 'semi-sync {name}', {asked.semi_sync.replace('{variable}', name)}"
        for name in ("status", "clients")
    )


def _caught_up(asked: Asked, position: str) -> str:
    return f"IF({asked.reached.format(position=position, seconds=_WAIT)}, 'yes', 'no')"


def _replicating(running: str, caught_up: str) -> str:
    return f" UNION ALL SELECT 'replication', {running} UNION ALL SELECT 'caught up', {caught_up}"


def _following(
    asked: Asked, reported: Mapping[str, Mapping[str, str]], *, delayed: bool = False
) -> str:
    # Of a node whose source is not to run, nothing is wanted.
    running, caught_up, positions = "'running'", "'delayed'" if delayed else "'yes'", []
    if reported:
        running = asked.running.format(links=len(reported))
    for name, answer in reported.items():
        position = answer.get("position")
        if position is None:
            caught_up = f"'{UNKNOWN}{name} does not answer'"
        elif not gtid.valid_position(position):
            caught_up = f"'{UNKNOWN}{name} sent an invalid position'"
        elif position:
            positions.append(position)
    if positions and caught_up == "'yes'" and not delayed:
        caught_up = _caught_up(asked, ",".join(positions))
    return _replicating(running, caught_up)


REPLICATION: Final[Blueprint] = Replication()
