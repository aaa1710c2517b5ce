"""MySQL Group Replication: members that elect one of them to take writes, the primary, or all do.

All servers start from one data directory without a history. The first starts the group, the
others join it, at once and with nothing to transfer. What a member needs after that, its guest does
by itself: each time its server has started, it joins the group once another member is in it.

The start of a group that no member is in any more is decided here, where all nodes are seen:
the member that has received the most transactions starts it, as it has all that were acknowledged.
Members receive them in one order, so its set contains those of the others. And a member that has
left the group while its server ran is ordered to join again.

Source: the MySQL manual, "Group Replication", "Restarting a Group" and "Group Replication System
Variables".
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from lab.blueprints import (
    CLIENT,
    UNKNOWN,
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Promotion,
    Release,
    Remedy,
    Situation,
    gtid,
    proxy,
    server,
)
from lab.blueprints.proxies import RoleQuery, Traffic
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, Conflict, InvalidSpec, NotFound, NotReady
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.sizes import NodeSize
from lab.values import dataclass
from lab.wait import Deadline, attempts

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
_NAME = str(uuid.uuid5(_NAMESPACE, "lab/group"))
"""Of the group, and of the UUID in its GTIDs."""
_PORT = 33061
"""Where members talk to each other, on the segment of the lab."""
_ACCOUNT = "replication@'%'"
_CHANNEL = "FOR CHANNEL 'group_replication_recovery'"
_PROGRAM = "/usr/lib/lab/regroup"
_START_SECONDS = 120.0
_MOST = 2
"""How often the same action is taken on a node."""
_WEIGHT = 110
"""Of members in elections, ten less for each: of those that are left, the first is elected."""
_VIEW = 100
"""Characters of a view's name that are compared: it has about 20."""
_LOOK_SECONDS = 30.0
_RUNNING_SECONDS = 10
"""Seconds that running transactions may take while the primary changes."""
_UUID = re.compile(r"[0-9a-fA-F-]{36}")
_IN = ("ONLINE", "RECOVERING")
_OUT = ("OFFLINE", "ERROR")
_DENIED = "1045"
"""ER_ACCESS_DENIED_ERROR, of a member whose recovery logs in with a password that is not theirs."""
_ROLES = ("primary", "secondary")

# Members may talk in clear text: nobody else is on their segment, and their certificates change
# while the group runs. A node that lost its group stays readable. The expulsion of a member that
# ended takes 20 to 25 s, and for so long it cannot join again: that is the shortest that there is.
_OPTIONS = """
[mysqld]
log_bin = {logs}/binlog
relay_log = {logs}/relay
sync_binlog = {sync}
max_binlog_size = 64M
binlog_expire_logs_seconds = 604800
gtid_mode = ON
enforce_gtid_consistency = ON
super_read_only = ON
report_host = {address}
plugin_load_add = group_replication.so
loose_group_replication_group_name = {group}
loose_group_replication_local_address = {address}:{port}
loose_group_replication_group_seeds = {seeds}
loose_group_replication_ip_allowlist = {seed_addresses}
loose_group_replication_start_on_boot = OFF
loose_group_replication_ssl_mode = DISABLED
loose_group_replication_recovery_use_ssl = ON
loose_group_replication_recovery_reconnect_interval = 5
loose_group_replication_exit_state_action = READ_ONLY
loose_group_replication_message_cache_size = 128M
loose_group_replication_member_weight = {weight}
"""
_MULTI_PRIMARY = """\
loose_group_replication_single_primary_mode = OFF
loose_group_replication_enforce_update_everywhere_checks = ON
"""
_QUESTION = """
WITH me AS (SELECT * FROM performance_schema.replication_group_members m
 LEFT JOIN (SELECT MEMBER_ID AS id, VIEW_ID, COUNT_TRANSACTIONS_IN_QUEUE AS certified,
 COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE AS received
 FROM performance_schema.replication_group_member_stats) s ON s.id = m.MEMBER_ID
 WHERE m.MEMBER_ID = @@server_uuid)
 SELECT 'state', IFNULL((SELECT MEMBER_STATE FROM me), 'OFFLINE')
 UNION ALL SELECT 'role', IFNULL((SELECT LOWER(MEMBER_ROLE) FROM me), '')
 UNION ALL SELECT 'members ONLINE', COUNT(*)
 FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'
 UNION ALL SELECT 'primaries', COUNT(*)
 FROM performance_schema.replication_group_members WHERE MEMBER_ROLE = 'PRIMARY'
 UNION ALL SELECT 'view', IFNULL((SELECT VIEW_ID FROM me), '')
 UNION ALL SELECT 'transactions in queue', IFNULL((SELECT certified + received FROM me), 0)
 UNION ALL SELECT 'super_read_only', IF(@@GLOBAL.super_read_only =
 IFNULL((SELECT MEMBER_ROLE <> 'PRIMARY' FROM me), 1), 'by role',
 IF(@@GLOBAL.super_read_only, 'ON', 'OFF'))
 UNION ALL SELECT 'position', REPLACE(@@GLOBAL.gtid_executed, CHAR(10), '')
 UNION ALL SELECT 'view of all', {shared}
""".replace("\n", "")
_SHARED = "IF((SELECT VIEW_ID FROM me) = X'{view}', 'shared', 'not that of {name}')"
_READ_ONLY_BY_ROLE = (
    "SET GLOBAL super_read_only = (SELECT COUNT(*) = 0"
    " FROM performance_schema.replication_group_members"
    " WHERE MEMBER_ID = @@server_uuid AND MEMBER_ROLE = 'PRIMARY')"
)
# In a group with a majority: 3 on a primary, 2 on a secondary, else 1. SELECT would count as use.
_PLACE = (
    "SET SESSION lock_wait_timeout = (SELECT CAST(1 + IFNULL("
    "MAX(MEMBER_ID = @@server_uuid AND MEMBER_STATE = 'ONLINE')"
    " * (1 + MAX(MEMBER_ID = @@server_uuid AND MEMBER_ROLE = 'PRIMARY'))"
    " * (2 * SUM(MEMBER_STATE IN ('ONLINE', 'RECOVERING')) > COUNT(*)), 0) AS UNSIGNED)"
    " FROM performance_schema.replication_group_members)"
)
_SHOWN = "SHOW SESSION VARIABLES LIKE 'lock_wait_timeout'"
_TRAFFIC = Traffic(
    writes=(RoleQuery(_PLACE), RoleQuery(_SHOWN, "3")),
    reads=(RoleQuery(_PLACE), RoleQuery(_SHOWN, "2")),
)


@dataclass(frozen=True)
class Group(server.Defaults):
    """See Blueprint."""

    name: str = "group"
    version: int = 1
    engines: Mapping[str, str] = field(default_factory=lambda: {"mysql": "MySQL"}, hash=False)
    transient: str = "Lock wait timeout|Deadlock found|super-read-only"
    flush: tuple[str, ...] = ("FLUSH LOCAL BINARY LOGS", "FLUSH LOCAL ENGINE LOGS")
    elects: bool = True
    needs: tuple[str, ...] = ("group-replication",)
    writers: tuple[str, ...] = ("primary",)
    # A group refuses a primary by hand whose version is not the lowest of its members' ("The
    # appointed primary member is not the lowest version in the group").
    hands_over: bool = True
    look_every: float = 2.0  # no group starts by itself
    takes: frozenset[str] = server.COMMON | {"node", "multi_primary", "proxy"}

    @property
    def _traffic(self) -> Traffic:
        return replace(_TRAFFIC, spread=self.options.multi_primary)

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if self.nodes < 2:
            raise InvalidSpec(
                f"{self.name} has two nodes at least, not {self.nodes}",
                hint="one server without a group is the blueprint single",
            )
        names = (node_name(number) for number in range(1, self.nodes + 1))
        members = tuple(NodePlan(name, "member", size) for name in names)
        return (*members, *proxy.plan(self.options, self.nodes))

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint; the guest reads from the second file where its peers are."""
        if member.role == proxy.PROXY:
            return proxy.files(members, engine, self.options, self._traffic)
        if member.role == CLIENT:
            return proxy.of_client(members, engine)
        members = proxy.servers(members)
        text = server.options(member, engine, memory, profile)
        text += _OPTIONS.format(
            logs=engine.log_directory,
            sync=int(profile.flush_log == 1),
            group=_NAME,
            address=member.address,
            port=_PORT,
            seeds=",".join(f"{other.address}:{_PORT}" for other in members),
            seed_addresses=",".join(other.address for other in members),
            weight=_WEIGHT - 10 * member.index,
        )
        if self.options.multi_primary:
            text += _MULTI_PRIMARY
        peers = "".join(f"{other.address} {_PORT}\n" for other in members if other != member)
        return {
            engine.config_path: SeedFile(text.encode()),
            "/etc/lab/group": SeedFile(peers.encode()),
            **proxy.checks(member, self.options, self._traffic),
        }

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint; guests join by themselves what the first one starts."""
        password, cluster = secrets.token_hex(16), proxy.servers_of(cluster)

        def prepare(member: Member) -> None:
            statements = [
                "SET SESSION sql_log_bin = 0",
                "SET GLOBAL super_read_only = OFF",
                f"DROP USER IF EXISTS {_ACCOUNT}",  # a dataset may have had it
                f"CREATE USER {_ACCOUNT} {server.identified(engines[member.name], password)}",
                (
                    "GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN,"
                    f" GROUP_REPLICATION_STREAM ON *.* TO {_ACCOUNT}"
                ),
                "SET GLOBAL super_read_only = ON",
                _login(password),
            ]
            server.first_statements(cluster, member, statements, deadline)

        cluster.each(prepare)
        first = cluster.members[0]
        cluster.run(first, _regroup("bootstrap", engines[first.name]), timeout=_START_SECONDS)

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """See Blueprint; the view of the first member is that of all."""
        first = not proxy.serves(member.role) or member == members[0]
        return () if first else (members[0].name,)

    def through(self, role: str) -> Mapping[str, str]:
        """See Blueprint."""
        return proxy.through(self.options, self._traffic) if role == proxy.PROXY else {}

    def question(
        self,
        role: str,  # noqa: ARG002  part of the protocol
        reported: Mapping[str, Mapping[str, str]],
        release: Release,  # noqa: ARG002  part of the protocol
    ) -> str:
        """See Blueprint."""
        shared = "'shared'"
        for name, answer in reported.items():
            if not answer:
                shared = f"'{UNKNOWN}{name} does not answer'"
            else:  # as hexadecimal digits: it comes from a guest
                view = answer.get("view", "")[:_VIEW].encode().hex()
                shared = _SHARED.replace("{view}", view).replace("{name}", name)
        return _QUESTION.replace("{shared}", shared)

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:
        """See Blueprint."""
        if role == proxy.PROXY:
            return proxy.requirements(self.options, self._traffic, self.nodes)
        if role == CLIENT:
            return ()
        primaries = ("one primary", "primaries", "1")
        if self.options.multi_primary:
            primaries = (f"{nodes} primaries", "primaries", str(nodes))
        return (
            Condition("ONLINE", "state", "ONLINE", "not-primary"),
            Condition(f"{nodes} ONLINE", "members ONLINE", str(nodes)),
            Condition(*primaries, "not-primary"),
            Condition("view", "view of all", "shared"),
            Condition("caught up", "transactions in queue", "0", "not-synced"),
            Condition("read-only by role", "super_read_only", "by role"),
        )

    def role(self, planned: str, answer: Mapping[str, str]) -> str:
        """See Blueprint."""
        role = answer.get("role", "")
        return role if role in _ROLES else planned

    def personalise_statements(
        self,
        member: Member,  # noqa: ARG002  part of the protocol
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        engine: Engine,
        user: str,
        password: str,
        *,
        tls: bool = False,
    ) -> Sequence[str]:
        """See Blueprint.

        Each server is given the password by itself: a clone of a group that was stopped is
        given it before its members are in the group. What members log in with to recover follows
        from it.
        """
        own = server.peer_password(password)
        return [
            *self.renewal(engine),
            "SET SESSION sql_log_bin = 0",
            "SET GLOBAL super_read_only = OFF",
            *server.accounts(engine, user, password, self.options, tls=tls),
            f"ALTER USER {_ACCOUNT} {server.identified(engine, own)}",
            "SET SESSION sql_log_bin = 1",
            _READ_ONLY_BY_ROLE,
            _login(own),
        ]

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint; the group has a name of its own, too, as it is in its GTIDs."""
        cluster = proxy.servers_of(cluster)
        super().identify(cluster, engines, identity)
        name = uuid.uuid5(_NAMESPACE, f"lab/group/{identity}")
        statement = f"SET PERSIST group_replication_group_name = '{name}'"
        deadline = Deadline.after(_START_SECONDS)
        cluster.each(lambda m: server.first_statements(cluster, m, [statement], deadline))
        # Servers stop one after the other: who stopped last may have what an event committed last.
        best = _most_advanced(
            dict(cluster.each(lambda m: _position(cluster, engines, m, deadline)))
        )
        (first,) = (member for member in cluster.members if member.name == best)
        cluster.run(first, _regroup("bootstrap", engines[first.name]), timeout=_START_SECONDS)

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return _regroup("state", engine)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        found = _values(standing)
        return " ".join(found.get(name, "") for name in ("server", "member", "reachable", "leaves"))

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint."""
        ended = server.restarts(situation, engines)
        standings = {node: _values(text) for node, text in situation.standings.items()}
        if any(map(_serves, standings.values())):
            # A node whose server has started since joins by itself.
            return ended + _returns(situation, standings, engines)
        if ended:
            return ended
        if any(
            one.get("server") != "active" or "executed" not in one or "leaves" in one
            for one in standings.values()
        ):
            return []
        if not situation.all_here:
            raise NotReady(
                "no node is in the group, and a node that does not run may have transactions"
                " that the others lack",
                hint="`lab start` without --node starts all nodes",
            )
        left = [node for node, one in standings.items() if one.get("member") in _IN]
        if left:
            # A minority that waits for members which are in no group any more.
            out = len(left) < len(standings) or situation.waited
            why = "it waits for members that are not in the group any more; it leaves the group"
            return [
                _remedy(engines, node, "leave", why)
                for node in left
                if out and _may(situation, node, "leave")
            ]
        best = _most_advanced(standings)
        why = "no node is in the group; it starts the group, as it has the most transactions"
        if not _may(situation, best, "bootstrap"):
            return []
        return [_remedy(engines, best, "bootstrap", why)]

    def promote(
        self, cluster: Cluster, engines: Mapping[str, Engine], promotion: Promotion
    ) -> None:
        """See Blueprint; a member is made the primary by the group itself."""
        to = promotion.to
        if self.options.multi_primary:
            raise InvalidSpec(f"{to} cannot be promoted: all members are primaries")
        cluster = proxy.servers_of(cluster)
        found = _look(cluster, engines)
        own = found.get(to, {})
        if own.get("member") not in _IN:
            raise NotReady(
                f"{to} is not in the group", hint="`lab start` has its nodes join the group"
            )
        (member,) = (one for one in cluster.members if one.name == to)
        if not _keeps(own, found):
            _force(cluster, engines, found, member, promotion)
            own = _look(cluster, engines).get(to, {})
        if own.get("role") == "primary":
            promotion.note(f"{to} is the primary")
            return
        if not _UUID.fullmatch(own.get("uuid", "")) or own["member"] != "ONLINE":
            raise NotReady(f"{to} is {own.get('member', 'silent')}, not ONLINE")
        statement = f"SELECT group_replication_set_as_primary('{own['uuid']}', {_RUNNING_SECONDS})"
        _sql(cluster, member, statement, max(promotion.deadline.left, 1.0))

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint; before nodes were asked, the first one is the primary."""
        everyone, nodes = nodes, proxy.servers(nodes)
        primaries = tuple(node.name for node in nodes if node.role == "primary")
        first = len(nodes) if self.options.multi_primary else 1
        primaries = primaries or tuple(node.name for node in nodes[:first])
        others = tuple(node.name for node in nodes if node.name not in primaries)
        found = [Endpoint("rw", primaries), Endpoint("ro", others)]
        if self.options.multi_primary and not others:
            found.pop()
        return proxy.endpoints(tuple(found), everyone, self.options)


def _returns(
    situation: Situation, standings: Mapping[str, Mapping[str, str]], engines: Mapping[str, Engine]
) -> list[Remedy]:
    """The remedies for members that are out of their group, which others are in, and stay so.

    A node that has just booted is OFFLINE, too, and must not have its START interrupted: its
    guest's program joins, and has not noted yet that it has ``joined``. That program may be gone:
    so after as long as a node could need, ``waited``, it is started again. A member in ERROR has
    left. One that RECOVERS and is refused would become ERROR, minutes later.
    """
    found = []
    for node, one in standings.items():
        if one.get("server") != "active" or "leaves" in one or not _may(situation, node, "return"):
            continue
        member, login = one.get("member"), b""
        if situation.password:  # the others have it; this node may be older than it is
            login = f"{_login(server.peer_password(situation.password))}\n".encode()
        if member in _OUT and ("joined" in one or situation.waited):
            why = f"it is {member}: it has left the group; it joins again"
        elif member == "RECOVERING" and login and one.get("recovery error") == _DENIED:
            why = "the group refuses the password of its recovery; it joins with the lab's"
        else:
            continue
        argv = _regroup("leave", engines[node])
        found.append(Remedy(node, "return", argv, why, stdin=login))
    return found


def _login(password: str) -> str:
    return (
        "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'replication',"
        f" SOURCE_PASSWORD = '{password}' {_CHANNEL}"
    )


def _regroup(action: str, engine: Engine) -> tuple[str, ...]:
    """The guest's program ``regroup`` with an action: state, bootstrap or leave."""
    return (_PROGRAM, action, engine.service)


def _remedy(engines: Mapping[str, Engine], node: str, action: str, why: str) -> Remedy:
    return Remedy(node, action, _regroup(action, engines[node]), why)


def _may(situation: Situation, node: str, action: str) -> bool:
    return situation.given.get((node, action), 0) < _MOST


def _look(cluster: Cluster, engines: Mapping[str, Engine]) -> dict[str, Mapping[str, str]]:
    """How the nodes that answer stand."""

    def standing_of(member: Member) -> tuple[str, Mapping[str, str]] | None:
        try:
            return member.name, _standing(cluster, engines, member)
        except (NotReady, NotFound, CommandFailed):
            return None

    return dict(found for found in cluster.each(standing_of) if found is not None)


def _standing(cluster: Cluster, engines: Mapping[str, Engine], member: Member) -> Mapping[str, str]:
    argv = _regroup("state", engines[member.name])
    return _values(cluster.run(member, argv, timeout=_LOOK_SECONDS))


def _position(
    cluster: Cluster, engines: Mapping[str, Engine], member: Member, deadline: Deadline
) -> tuple[str, Mapping[str, str]]:
    """How a member stands whose server has just started; raises NotReady."""
    for _ in attempts(deadline):
        found = _standing(cluster, engines, member)
        if "executed" in found:
            return member.name, found
    raise NotReady(f"the position of {member.name} is not known")


def _force(
    cluster: Cluster,
    engines: Mapping[str, Engine],
    found: Mapping[str, Mapping[str, str]],
    member: Member,
    promotion: Promotion,
) -> None:
    """Have the members that ``member`` reaches be the group, as most of it is lost.

    Two groups would be the result if the others were one: so they must not run.
    """
    if any(_keeps(one, found) for one in found.values()):
        raise Conflict(
            f"{member.name} has lost its group, which others are in",
            hint="promote one of them; `lab start` has it join again",
        )
    if not promotion.force:
        first = found[member.name].get("role") == "primary"
        already = f"{member.name} is the primary already, and its group" if first else ""
        raise Conflict(
            f"{already or f'the group of {member.name}'} has lost its majority",
            hint="`lab start` brings the others back; `--force` makes a group of those that"
            f" {member.name} reaches",
        )
    found = _until_lost(cluster, engines, found, member, promotion)
    addresses = {one.address for one in cluster.members}
    reached = [one for one in found[member.name].get("reaches", "").split(",") if one in addresses]
    for other in cluster.members:
        if other.address in reached:
            continue
        if found.get(other.name, {}).get("member") in _IN:
            raise Conflict(
                f"{other.name} runs, and {member.name} does not reach it: they could be two groups",
                hint=f"`lab stop --force --node {other.name}` first",
            )
        if other.name not in found:
            promotion.fence(other.name)
    members = ",".join(f"{address}:{_PORT}" for address in reached)
    try:
        statement = f"SET GLOBAL group_replication_force_members = '{members}'"
        _sql(cluster, member, statement, _START_SECONDS)
    finally:  # else it could not start again
        _sql(cluster, member, "SET GLOBAL group_replication_force_members = ''", _LOOK_SECONDS)


def _until_lost(
    cluster: Cluster,
    engines: Mapping[str, Engine],
    found: Mapping[str, Mapping[str, str]],
    member: Member,
    promotion: Promotion,
) -> Mapping[str, Mapping[str, str]]:
    """How nodes stand once the group itself has seen that its majority is lost; raises NotReady.

    Before that it does not let members be forced.
    """
    for _ in attempts(promotion.deadline):
        if not _serves(found.get(member.name, {})):
            return found
        found = _look(cluster, engines)
        if any(_keeps(one, found) for one in found.values()):
            break
    raise NotReady(f"the group of {member.name} has not noticed in time which members are lost")


def _sql(cluster: Cluster, member: Member, statement: str, timeout: float) -> None:
    cluster.run(member, ("/usr/lib/lab/sql",), stdin=f"{statement}\n".encode(), timeout=timeout)


def _values(standing: str) -> dict[str, str]:
    pairs = (line.split("\t", 1) for line in standing.splitlines() if "\t" in line)
    return {pair[0]: pair[1] for pair in pairs}


def _serves(found: Mapping[str, str]) -> bool:
    """Whether a node is in a group that has a majority."""
    members, reachable = found.get("members", ""), found.get("reachable", "")
    if found.get("member") not in _IN or not (members.isdecimal() and reachable.isdecimal()):
        return False
    return 2 * int(reachable) > int(members)


def _keeps(own: Mapping[str, str], found: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the group of a node has a majority, and keeps it.

    For seconds after nodes were lost a group counts them still: those that answer are counted.
    """
    here = sum(one.get("member") in _IN for one in found.values())
    return _serves(own) and 2 * here > int(own["members"])


def _most_advanced(standings: Mapping[str, Mapping[str, str]]) -> str:
    """The node that has executed or received all that any has; raises NotReady if there is none."""
    try:
        sets = {
            node: gtid.union(gtid.parse(one["executed"]), gtid.parse(one.get("received", "")))
            for node, one in standings.items()
        }
    except ValueError as error:
        raise NotReady(f"the positions of the nodes are not known: {error}") from None
    best = max(sets, key=lambda node: gtid.size(sets[node]))
    for node, one in sets.items():
        if not gtid.contains(sets[best], one):
            raise NotReady(
                f"{node} has transactions that {best} has not, and {best} has more of them:"
                " they can be in no group together",
                hint="`lab rollback` to a snapshot, or to what the lab was first",
            )
    return best


GROUP: Final[Blueprint] = Group()
