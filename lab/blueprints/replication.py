"""Asynchronous replication by GTID: one source that takes writes, replicas that follow it.

All servers start from one data directory without binary logs, so a replica begins at the source's
first transaction, and there is nothing to transfer.

A replica has caught up when it has executed all that its source had executed when that was asked,
shortly before: ``MASTER_GTID_WAIT`` (MariaDB's documentation).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.blueprints import (
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Remedy,
    Situation,
    server,
)
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.spec import LabSpec
from lab.wait import Deadline, attempts

_SQL = "/usr/lib/lab/sql"
_ACCOUNT = "replication"
_SERVER_SECONDS = 3
"""How long the guest's program waits for a server that starts: see ``readiness``."""
_CALL_SECONDS = 30.0
_WAIT = 0.2
"""Seconds that a replica may take to execute what its source just had."""
_POSITION = re.compile(
    r"[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20}(,[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20})*"
)
_OPTIONS = """\

[mariadbd]
log_bin = {logs}/binlog
relay_log = {logs}/relay
relay_log_recovery = ON
log_slave_updates = ON
gtid_strict_mode = ON
sync_binlog = {sync}
max_binlog_size = 64M
binlog_expire_logs_seconds = 604800
slave_net_timeout = 10
report_host = {name}
read_only = {read_only}
"""
_ON_REPLICA = (
    "SELECT 'read_only', IF(@@GLOBAL.read_only, 'ON', 'OFF')"
    " UNION ALL SELECT 'Slave_running', {running}"
    " UNION ALL SELECT 'caught up', {caught_up}"
)
_RUNNING = (
    "(SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS"
    " WHERE VARIABLE_NAME = 'SLAVE_RUNNING')"
)


@dataclass(frozen=True)
class Replication:
    """See Blueprint."""

    name: str = "replication"
    version: int = 1
    engines: Mapping[str, str] = field(default_factory=lambda: {"mariadb": "MariaDB"}, hash=False)
    transient: str = "Lock wait timeout|Deadlock found"
    flush: tuple[str, ...] = ("FLUSH LOCAL BINARY LOGS", "FLUSH LOCAL ENGINE LOGS")

    def plan(self, spec: LabSpec) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if spec.nodes < 2:
            raise InvalidSpec(
                f"{self.name} has two nodes at least, not {spec.nodes}",
                hint="one server without replicas is the blueprint single",
            )
        return tuple(
            NodePlan(node_name(number), "source" if number == 1 else "replica", spec.size)
            for number in range(1, spec.nodes + 1)
        )

    def files(
        self,
        member: Member,
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        more = _OPTIONS.format(
            logs=engine.log_directory,
            sync=int(profile.flush_log == 1),
            name=member.name,
            read_only="OFF" if member.role == "source" else "ON",
        )
        text = server.options(member, server.alone(engine), memory, profile) + more
        return {engine.config_path: SeedFile(text.encode())}

    def form(self, cluster: Cluster, deadline: Deadline) -> None:
        """See Blueprint; the account of replicas reaches them by replication, too."""
        password = secrets.token_hex(16)
        hashed = server.native_hash(password)
        source = _source(cluster.members)
        (address,) = (member.address for member in cluster.members if member.name == source)

        account = (
            (
                f"CREATE OR REPLACE USER {_ACCOUNT}@'%' IDENTIFIED VIA mysql_native_password"
                f" USING '{hashed}'"
            ),
            f"GRANT REPLICATION SLAVE ON *.* TO {_ACCOUNT}@'%'",
            # Else it could write to replicas, which would then differ from the source.
            "REVOKE READ ONLY ADMIN ON *.* FROM lab@'%'",
        )
        link = (
            (
                f"CHANGE MASTER TO MASTER_HOST = '{address}', MASTER_USER = '{_ACCOUNT}',"
                f" MASTER_PASSWORD = '{password}', MASTER_SSL = 0, MASTER_CONNECT_RETRY = 1,"
                " MASTER_USE_GTID = slave_pos"
            ),
            "START SLAVE",
        )

        def one(member: Member) -> None:
            statements = account if member.name == source else link
            _first(cluster, member, statements, deadline)

        cluster.each(one)

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """See Blueprint."""
        if member.role == "source":
            return ()
        return tuple(other.name for other in members if other.role == "source")

    def question(self, role: str, told: Mapping[str, Mapping[str, str]]) -> str:
        """See Blueprint."""
        if role == "source":
            return (
                "SELECT 'read_only', IF(@@GLOBAL.read_only, 'ON', 'OFF')"
                " UNION ALL SELECT 'position', @@GLOBAL.gtid_binlog_pos"
            )
        running, caught_up = _RUNNING, "'yes'"
        if not told:  # the source is not to run
            running = "'ON'"
        for name, said in told.items():
            position = said.get("position")
            if position is None:
                caught_up = f"'unknown: {name} does not answer'"
            elif _POSITION.fullmatch(position):
                caught_up = f"IF(MASTER_GTID_WAIT('{position}', {_WAIT}) = 0, 'yes', 'no')"
            elif position:
                caught_up = f"'unknown: {name} sent an invalid position'"
        return _ON_REPLICA.format(running=running, caught_up=caught_up)

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:  # noqa: ARG002
        """See Blueprint."""
        if role == "source":
            hint = "`SET GLOBAL read_only = OFF` lets it accept writes again"
            return (Condition("writable", "read_only", "OFF", "degraded", hint),)
        return (
            Condition("read-only", "read_only", "ON"),
            Condition("replicating", "Slave_running", "ON"),
            Condition("caught up", "caught up", "yes", "not-synced"),
        )

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
        with follows from it; the connections that they have need no login.
        """
        own = hashlib.sha256(f"replication {password}".encode()).hexdigest()[:32]
        hashed = server.native_hash(own)
        statements = [
            self.renew(engine),
            "SET SESSION sql_log_bin = 0",
            server.unlock(engine, user, password, tls=tls),
            f"ALTER USER {_ACCOUNT}@'%' IDENTIFIED VIA mysql_native_password USING '{hashed}'",
            "SET SESSION sql_log_bin = 1",
        ]
        if member.role != "source":
            change = f"CHANGE MASTER TO MASTER_PASSWORD = '{own}'"
            statements += ["STOP SLAVE", change, "START SLAVE"]
        return statements

    def renew(self, engine: Engine) -> str:
        """See Blueprint."""
        return server.renew(engine)

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """See Blueprint; the guest's shutdown stops the server cleanly."""

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint; replicas continue at the positions that they have."""
        server.identify_apart(cluster, engines, identity)

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return server.standing(engine)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        return server.state(standing)

    def remark(self, standing: str) -> str:  # noqa: ARG002  part of the protocol
        """See Blueprint."""
        return ""

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint; servers recover by themselves, unless one has ended."""
        return server.restarts(situation, engines)

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint."""
        by_role = {
            role: tuple(node.name for node in nodes if node.role == role)
            for role in ("source", "replica")
        }
        return (Endpoint("rw", by_role["source"]), Endpoint("ro", by_role["replica"]))


def _source(members: Sequence[Member]) -> str:
    (name,) = (member.name for member in members if member.role == "source")
    return name


def _first(cluster: Cluster, member: Member, statements: Sequence[str], deadline: Deadline) -> None:
    """Execute statements once a node that boots takes them; raises NotReady and CommandFailed."""
    waiting = b"DO 1\n"
    for _ in attempts(deadline):
        try:
            cluster.run(member, [_SQL, str(_SERVER_SECONDS)], stdin=waiting, timeout=_CALL_SECONDS)
        except (NotReady, CommandFailed):
            continue
        stdin = "".join(f"{statement}\n" for statement in statements).encode()
        cluster.run(member, [_SQL], stdin=stdin, timeout=_CALL_SECONDS)
        return
    raise NotReady(f"the server of {member.name} did not start in time")


REPLICATION: Final[Blueprint] = Replication()
