"""Asynchronous replication by GTID: one source that takes writes, replicas that follow it.

All servers start from one data directory without a history, so a replica begins at the source's
first transaction, and there is nothing to transfer.

A replica has caught up when it has executed all that its source had executed when that was asked,
shortly before: ``MASTER_GTID_WAIT`` in MariaDB, ``WAIT_FOR_EXECUTED_GTID_SET`` in MySQL.

One statement asks servers of both: MariaDB alone executes what is in ``/*M! */``, and MySQL alone
what is in ``/*!80000 */``, as MariaDB ignores those from 50700 to 99999 (its documentation,
"Comment Syntax").
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
    server,
)
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.spec import LabSpec
from lab.wait import Deadline

_ACCOUNT = "replication@'%'"
_WAIT = 0.2
"""Seconds that a replica may take to execute what its source just had."""
_POSITION = re.compile(r"[0-9A-Za-z_:,-]{0,1000}")
"""GTIDs of both engines, and nothing that ends a text in SQL."""
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


@dataclass(frozen=True)
class _Dialect:
    """What differs between the engines.

    ``link``: has a replica follow ``{address}``, with ``{password}``.
    """

    options: str
    read_only: str
    link: tuple[str, ...]
    """Statements that have a replica follow {address}."""
    relink: tuple[str, ...]
    """Statements that give a replica, which runs, another {password}."""
    writable: tuple[str, str]
    """Statements before and after changes of a replica's own accounts."""


_MARIADB = _Dialect(
    options="log_slave_updates = ON\ngtid_strict_mode = ON\nslave_net_timeout = 10\n",
    read_only="read_only = ON\n",
    link=(
        (
            "CHANGE MASTER TO MASTER_HOST = '{address}', MASTER_USER = 'replication',"
            " MASTER_PASSWORD = '{password}', MASTER_SSL = 0, MASTER_CONNECT_RETRY = 1,"
            " MASTER_USE_GTID = slave_pos"
        ),
        "START SLAVE",
    ),
    relink=("STOP SLAVE", "CHANGE MASTER TO MASTER_PASSWORD = '{password}'", "START SLAVE"),
    writable=("DO 1", "DO 1"),
)
_MYSQL = _Dialect(
    options="gtid_mode = ON\nenforce_gtid_consistency = ON\nreplica_net_timeout = 10\n",
    read_only="super_read_only = ON\n",
    # By default it gives its source up after ten tries. Its plugin for passwords wants TLS. No
    # certificate is checked: a clone of the RAM has its own, while those of its peers are new.
    link=(
        (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{address}', SOURCE_USER = 'replication',"
            " SOURCE_PASSWORD = '{password}', SOURCE_SSL = 1, SOURCE_CONNECT_RETRY = 1,"
            " SOURCE_RETRY_COUNT = 31536000, SOURCE_AUTO_POSITION = 1"
        ),
        "START REPLICA",
    ),
    relink=(
        "STOP REPLICA IO_THREAD",
        "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD = '{password}'",
        "START REPLICA IO_THREAD",
    ),
    writable=("SET GLOBAL super_read_only = OFF", "SET GLOBAL super_read_only = ON"),
)

_ON_SOURCE = (
    "SELECT 'read_only', IF(@@GLOBAL.read_only, 'ON', 'OFF') UNION ALL SELECT 'position',"
    " /*M! @@GLOBAL.gtid_binlog_pos*/ /*!80000 REPLACE(@@GLOBAL.gtid_executed, '\\n', '')*/"
)
_ON_REPLICA = (
    "SELECT 'read_only', IF("
    "/*M! @@GLOBAL.read_only*/ /*!80000 @@GLOBAL.super_read_only*/, 'ON', 'OFF')"
    " UNION ALL SELECT 'replication', {running} UNION ALL SELECT 'caught up', {caught_up}"
)
_RUNNING = (
    "/*M! (SELECT IF(VARIABLE_VALUE = 'ON', 'running', 'stopped')"
    " FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'SLAVE_RUNNING')*/"
    " /*!80000 (SELECT IF(COUNT(*) > 0 AND MIN(c.SERVICE_STATE = 'ON' AND a.SERVICE_STATE = 'ON'),"
    " 'running', 'stopped') FROM performance_schema.replication_connection_status c"
    " JOIN performance_schema.replication_applier_status a USING (CHANNEL_NAME))*/"
)
_CAUGHT_UP = (
    "IF(/*M! MASTER_GTID_WAIT*/ /*!80000 WAIT_FOR_EXECUTED_GTID_SET*/('{position}', {seconds})"
    " = 0, 'yes', 'no')"
)


@dataclass(frozen=True)
class Replication(server.Defaults):
    """See Blueprint."""

    name: str = "replication"
    version: int = 1
    engines: Mapping[str, str] = field(
        default_factory=lambda: {"mariadb": "MariaDB", "mysql": "MySQL"}, hash=False
    )
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
        text = server.options(member, server.alone(engine), memory, profile)
        text += _OPTIONS.format(
            logs=engine.log_directory, sync=int(profile.flush_log == 1), name=member.name
        )
        text += _dialect(engine).options
        if member.role != "source":
            text += _dialect(engine).read_only
        return {engine.config_path: SeedFile(text.encode())}

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint; the account of replicas reaches them by replication, too."""
        password = secrets.token_hex(16)
        (source,) = (member for member in cluster.members if member.role == "source")

        def one(member: Member) -> None:
            engine = engines[member.name]
            statements = _account(engine, password)
            if member != source:
                link = _dialect(engine).link
                statements = [s.format(address=source.address, password=password) for s in link]
            server.first_statements(cluster, member, statements, deadline)

        cluster.each(one)

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:
        """See Blueprint."""
        if member.role == "source":
            return ()
        return tuple(other.name for other in members if other.role == "source")

    def question(self, role: str, reported: Mapping[str, Mapping[str, str]]) -> str:
        """See Blueprint."""
        if role == "source":
            return _ON_SOURCE
        # Of a node whose source is not to run, nothing is wanted.
        running, caught_up = (_RUNNING if reported else "'running'"), "'yes'"
        for name, said in reported.items():
            position = said.get("position")
            if position is None:
                caught_up = f"'unknown: {name} does not answer'"
            elif _POSITION.fullmatch(position):
                caught_up = _CAUGHT_UP.format(position=position, seconds=_WAIT)
            else:
                caught_up = f"'unknown: {name} sent an invalid position'"
        return _ON_REPLICA.format(running=running, caught_up=caught_up)

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:  # noqa: ARG002
        """See Blueprint."""
        if role == "source":
            hint = "`SET GLOBAL read_only = OFF` lets it accept writes again"
            return (Condition("writable", "read_only", "OFF", "degraded", hint),)
        return (
            Condition("read-only", "read_only", "ON"),
            Condition("replicating", "replication", "running"),
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
        with follows from it.
        """
        own = hashlib.sha256(f"replication {password}".encode()).hexdigest()[:32]
        statements = [
            "SET SESSION sql_log_bin = 0",
            server.unlock(engine, user, password, tls=tls),
            f"ALTER USER {_ACCOUNT} {server.identified(engine, own)}",
            "SET SESSION sql_log_bin = 1",
        ]
        if member.role != "source":
            before, after = _dialect(engine).writable
            relink = [statement.format(password=own) for statement in _dialect(engine).relink]
            statements = [before, *statements, after, *relink]
        return [self.renew(engine), *statements]

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint."""
        by_role = {
            role: tuple(node.name for node in nodes if node.role == role)
            for role in ("source", "replica")
        }
        return (Endpoint("rw", by_role["source"]), Endpoint("ro", by_role["replica"]))


def _dialect(engine: Engine) -> _Dialect:
    return _MARIADB if server.is_mariadb(engine) else _MYSQL


def _account(engine: Engine, password: str) -> list[str]:
    """The statements that make the account of replicas; a dataset may have had it."""
    statements = [
        f"DROP USER IF EXISTS {_ACCOUNT}",
        f"CREATE USER {_ACCOUNT} {server.identified(engine, password)}",
        f"GRANT REPLICATION SLAVE ON *.* TO {_ACCOUNT}",
    ]
    if server.is_mariadb(engine):
        # Else lab could write to replicas, which would then differ from the source.
        statements.append("REVOKE READ ONLY ADMIN ON *.* FROM lab@'%'")
    return statements


REPLICATION: Final[Blueprint] = Replication()
