"""A Galera cluster, and a remote site whose replicas follow it asynchronously, by GTID.

The first replica follows a member of the cluster, the others follow the first replica: one link
crosses between the sites. The first replica's guest looks after that link (its program ``follow``):
when the source does not serve it any more, it follows the next member from the same GTID.

That needs write sets with the same GTIDs in the binary logs of all members. MariaDB: with
``wsrep_gtid_mode`` members number the write sets of one domain, ``wsrep_gtid_domain_id``, and each
has a domain of its own for what it does not replicate. The server id is part of a GTID, and a
source refuses to continue after one that it does not have, so it is the same on all members. A
server that starts numbers write sets of domain 0, whatever its options say (seen in 10.11.19): so
that is the domain, and a branch's own is set by an ``init_file``. Percona: ``gtid_mode``, whose
UUID for write sets is the cluster's.

Source: the MariaDB documentation, "Using MariaDB GTIDs with MariaDB Galera Cluster".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from lab.blueprints import (
    CLIENT,
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Link,
    Member,
    NodePlan,
    Release,
    Remedy,
    Situation,
    galera,
    gtid,
    proxy,
    replication,
    server,
)
from lab.blueprints.dialects import dialect_of
from lab.config.enginefile import DialectName, family_of
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.guest.network import inner_address
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.sizes import NODES_LIMIT, NodeSize
from lab.values import dataclass
from lab.wait import Deadline, attempts

T = TypeVar("T")

_SQL = "/usr/lib/lab/sql"
_SERVER_SECONDS = "3"
_CALL_SECONDS = 30.0
_START_SECONDS = 120.0
_SOURCES = "/etc/lab/sources"
"""What the guest's program ``follow`` reads: members' addresses, and how to follow each."""
_READY = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'"
_QUESTION = (
    "SELECT LOWER(VARIABLE_NAME), VARIABLE_VALUE"
    " FROM /*M! information_schema.GLOBAL_STATUS*/ /*!80000 performance_schema.global_status*/"
    " WHERE VARIABLE_NAME IN ('wsrep_local_state_comment', 'wsrep_cluster_status',"
    " 'wsrep_cluster_size', 'wsrep_ready')"
    " UNION ALL SELECT 'own', /*M! @@GLOBAL.gtid_domain_id*/ /*!80000 @@GLOBAL.server_uuid*/"
)
_MARIADB = """\
log_slave_updates = ON
wsrep_gtid_mode = ON
wsrep_gtid_domain_id = 0
gtid_domain_id = {own}
"""
_PERCONA = """\
gtid_mode = ON
enforce_gtid_consistency = ON
log_replica_updates = ON
"""
_OPTIONS: Mapping[DialectName, str] = {"mariadb": _MARIADB, "mysql": _PERCONA}


@dataclass(frozen=True)
class _Site:
    """The nodes of one role; see Cluster."""

    whole: Cluster
    role: str

    @property
    def members(self) -> Sequence[Member]:
        """See Cluster."""
        return [member for member in self.whole.members if member.role == self.role]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """See Cluster."""
        return self.whole.run(member, argv, stdin=stdin, timeout=timeout)

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        found = self.whole.each(lambda one: [step(one)] if one.role == self.role else [])
        return [result for results in found for result in results]


@dataclass(frozen=True, kw_only=True)
class Remote(galera.Galera):
    """See Blueprint; ``nodes`` is the number of members.

    ``transient``: also what a replica answers whose link its guest has just pointed elsewhere.
    ``flush``: a replica does not note in its binary log what is for members only.
    """

    transient: str = f"{galera.Galera.transient}|running (slave|replica)"
    takes: frozenset[str] = server.COMMON | {"node", "replicas"}
    any_source: bool = True
    transfers: bool = False  # the cluster sends its state to members, not to replicas
    flush: tuple[str, ...] = (
        "SET SESSION sql_log_bin = NOT @@GLOBAL.read_only",
        "FLUSH ENGINE LOGS",
        "FLUSH LOCAL BINARY LOGS",
        "FLUSH LOCAL ENGINE LOGS",
    )

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        replicas = self.options.replicas
        if self.nodes + replicas > NODES_LIMIT:
            raise InvalidSpec(
                f"{self.name} has {self.nodes} members and {replicas} replicas:"
                f" a lab has at most {NODES_LIMIT} nodes",
                hint="give fewer --nodes, which are the members, or fewer --replicas",
            )
        numbers = range(self.nodes + 1, self.nodes + replicas + 1)
        replica_plans = (NodePlan(node_name(n), "replica", size) for n in numbers)
        others = proxy.plan(self.options, self.nodes + replicas)
        return (*self._planned(size), *replica_plans, *others)

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint; the guest of the first replica reads the second file."""
        if member.role == CLIENT:
            return proxy.of_client(members, engine)
        cluster = _of(members, "member")
        logged = replication.binary_log(member, engine, profile)
        if member.role == "member":
            more = _OPTIONS[family_of(engine.name).dialect].format(own=member.index)
            one = _same_id(member, engine)
            files = dict(super().files(one, cluster, engine, memory, profile))
            text = files[engine.config_path].content.decode() + logged + more
            return {**files, engine.config_path: SeedFile(text.encode())}
        text = server.options(member, server.alone(engine), memory, profile)
        text += logged + replication.replica_options(engine)
        if dialect_of(engine).gtid_domains:
            text += f"gtid_domain_id = {member.index}\n"
        files = {engine.config_path: SeedFile(text.encode())}
        if self._is_first(member):
            lines = [f"{m.address}\t{replication.repoint(engine, m.address)}\n" for m in cluster]
            files[_SOURCES] = SeedFile("".join(lines).encode())
        return files

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint; replicas receive the account from the cluster, as all that is in it."""
        password = secrets.token_hex(16)
        site, replicas = _Site(cluster, "member"), _Site(cluster, "replica")
        source, relay = site.members[0], replicas.members[0]
        _until_ready(site, deadline)
        begin = _begin(site, source, engines[source.name])
        _execute(site, source, replication.account(engines[source.name], password))

        def follow(member: Member) -> None:
            engine = engines[member.name]
            address = (source if member == relay else relay).address
            own = replication.of_replica(engine, replication.read_only(engine))
            statements = [*own, *begin, *replication.link(engine, address, password)]
            server.first_statements(replicas, member, statements, deadline)

        replicas.each(follow)

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """See Blueprint; what one member has executed, all have, or are about to."""
        if member.role != "replica":
            return ()
        first = self._is_first(member)
        found = _of(members, "member") if first else [m for m in members if self._is_first(m)]
        return tuple(one.name for one in found)

    def follows(self, role: str) -> bool:
        """See Blueprint."""
        return role == "replica"

    def links(self, members: Sequence[Member]) -> tuple[Link, ...]:
        """See Blueprint; which member the first replica follows now, its guest decides."""
        followed = {one.name: self.sources(one, members) for one in _of(members, "replica")}
        return tuple(Link(names[0], replica) for replica, names in followed.items() if names)

    def position(self, answer: Mapping[str, str]) -> str:
        """See Blueprint; of members, too, the one that replicas compare theirs with."""
        (answered,) = _of_cluster({"": answer}).values()
        return answered.get("position", "")

    def question(
        self, role: str, reported: Mapping[str, Mapping[str, str]], release: Release
    ) -> str:
        """See Blueprint."""
        if role == "member":
            return _QUESTION + replication.question_of_position(release)
        followed = _of_cluster(reported) if self._members & reported.keys() else reported
        return replication.question_to_replica(followed, release)

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:  # noqa: ARG002
        """See Blueprint."""
        if role == "member":
            return super().requirements(role, self.nodes)
        return replication.REPLICA if role == "replica" else ()

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
        """See Blueprint.

        Replicas are also given the passwords by themselves, as they may be late.
        """
        cluster = _of(members, "member")
        if member.role == "member":
            found = super().personalise_statements(member, cluster, engine, user, password, tls=tls)
            login = [replication.login(engine, password)] if member == cluster[0] else []
            return [*found, *login]
        own = [
            *server.accounts(engine, user, password, self.options, tls=tls),
            replication.login(engine, password),
        ]
        return [
            *self.renewal(engine),
            *replication.of_replica(engine, own),
            *replication.relink(engine, password),
        ]

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """See Blueprint; replicas stop with their guests."""
        super().rest(_Site(cluster, "member"), engines)

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint; replicas start once there is a cluster that they can follow."""
        site = _Site(cluster, "member")
        super().identify(site, engines, identity)
        _until_ready(site, Deadline.after(_START_SECONDS))
        replicas = _Site(cluster, "replica")
        server.identify_all(replicas, engines, identity, lambda member: member.index)

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint; those of members need all members, but no replicas."""
        standings = situation.standings
        members = {name: text for name, text in standings.items() if name in self._members}
        replicas = {name: text for name, text in standings.items() if name not in members}
        complete = len(members) == self.nodes
        of_replicas = replace(situation, standings=replicas)
        relay = self.nodes + 1
        running = (number for number in range(1, relay) if node_name(number) in members)
        source = next(running, 1)
        followed = {
            name: {"": inner_address(source if name == node_name(relay) else relay)}
            for name in replicas
        }
        found = server.restarts(of_replicas, engines) or replication.relinks(
            of_replicas, engines, followed
        )
        if not members:
            return found
        of_members = replace(situation, standings=members, all_here=complete)
        return [*super().remedies(of_members, engines), *found]

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint; all members are writable."""
        replicas = Endpoint("ro", tuple(node.name for node in _of(nodes, "replica")))
        found = super().endpoints(_of(nodes, "member"))
        return (*found, replicas) if replicas.nodes else found

    def _restart(
        self,
        cluster: Cluster,
        member: Member,
        engine: Engine,
        identity: int,
        history: tuple[str, ...],
        view: str,
    ) -> None:
        domain = (str(identity),) if dialect_of(engine).gtid_domains else ()
        server.identify(
            cluster, _same_id(member, engine), engine, identity, *history, *domain,
            view=view, domain=member.index,
        )  # fmt: skip

    @property
    def _members(self) -> set[str]:
        """The names of the members."""
        return {node_name(number) for number in range(1, self.nodes + 1)}

    def _is_first(self, member: Member) -> bool:
        """Whether it is the replica that follows the cluster."""
        return member.index == self.nodes + 1


def _of(members: Sequence[Member], role: str) -> list[Member]:
    return [member for member in members if member.role == role]


def _same_id(member: Member, engine: Engine) -> Member:
    """``member`` with the number from which its server id follows."""
    return replace(member, index=1) if dialect_of(engine).gtid_domains else member


def _of_cluster(reported: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """What a member of the cluster reported, less what it does not replicate."""
    for name, answer in reported.items():
        if "position" in answer:
            position, own = answer["position"], answer.get("own", "")
            if gtid.valid_position(position):
                kept = [part for part in position.split(",") if _origin(part) != own]
                position = ",".join(kept)
            return {name: {"position": position}}
    return {"the cluster": {}}


def _origin(part: str) -> str:
    """The GTID domain, or the UUID, of a part of a position."""
    return part.partition(":" if ":" in part else "-")[0]


def _until_ready(site: Cluster, deadline: Deadline) -> None:
    """Wait until all members accept statements; raises NotReady."""

    def until_accepts(member: Member) -> None:
        for _ in attempts(deadline):
            try:
                output = site.run(
                    member, [_SQL, _SERVER_SECONDS], stdin=f"{_READY}\n".encode(),
                    timeout=_CALL_SECONDS,
                )  # fmt: skip
            except (NotReady, CommandFailed):
                continue
            if output.endswith("\tON\n"):
                return
        raise NotReady(f"{member.name} did not join the cluster in time")

    site.each(until_accepts)


def _begin(site: Cluster, source: Member, engine: Engine) -> list[str]:
    """The statements after which a replica begins where the binary log of its source begins.

    In that of MariaDB the write sets count as executed with which the image was made. So they have
    been by a replica, whose data are of the same image, and for those that follow it.
    """
    if not dialect_of(engine).gtid_domains:
        return []
    position = _execute(site, source, ["SELECT @@GLOBAL.gtid_binlog_pos"]).strip()
    if not gtid.valid_position(position):
        raise NotReady(f"{source.name} sent an invalid position")
    return [f"SET GLOBAL gtid_{what} = '{position}'" for what in ("binlog_state", "slave_pos")]


def _execute(site: Cluster, member: Member, statements: Sequence[str]) -> str:
    stdin = "".join(f"{statement}\n" for statement in statements).encode()
    return site.run(member, [_SQL], stdin=stdin, timeout=_CALL_SECONDS)


GALERA_DR: Final[Blueprint] = Remote(name="galera-dr", engines=galera.GALERA.engines)
PXC_DR: Final[Blueprint] = Remote(name="pxc-dr", engines=galera.PXC.engines)
