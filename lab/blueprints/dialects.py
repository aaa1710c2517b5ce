"""What differs between servers: their dialects, and what each version has of them. One table.

``DIALECTS`` is what the newest versions understand. ``_OLDER`` has a line for each version that
brought something labs use: what a server before it is given instead. ``dialect_of`` puts both
together, so nothing else compares versions. Which family of engines has which dialect is in
``images/engines.toml``.

Sources: the documentation of MariaDB ("CREATE USER", "FLUSH", "READ ONLY ADMIN", "Semisynchronous
Replication", "RANDOM_BYTES") and the manuals of MySQL 5.6 to 8.0 ("CREATE USER", "ALTER INSTANCE",
"CHANGE REPLICATION SOURCE TO", "Functions Used with Global Transaction Identifiers"); and what
MariaDB 10.2.11, 10.11.5 and 11.4.5 and MySQL 5.6.24 say to each of these
(tests/unit/blueprints/test_old_servers.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Protocol

from lab.blueprints.switchover import Role
from lab.config.enginefile import Authentication, DialectName, family_of, numbers
from lab.errors import InvalidSpec
from lab.passwords import NATIVE
from lab.values import dataclass

_NOBODY = "*" + "0" * 40
"""A hash that no password is known to have."""


@dataclass(frozen=True)
class Links:
    """What replication takes: options, and statements.

    ``link``: has a replica follow ``{address}``, with ``{password}``.
    """

    options: str
    """Options of all servers at a link."""
    read_only: str
    semi_sync: str
    acknowledged: str
    """Options of a server whose commits wait for a replica."""
    acknowledges: str
    """Options of such a replica."""
    either: str
    """Options of a server that may be one or the other: without replicas no commit waits."""
    link: tuple[str, ...]
    """Statements that have a replica follow {address} by the {channel}, {delay} seconds late."""
    repoint: str
    """A statement that has a replica, which is stopped, follow {address} from where it is."""
    relink: tuple[str, ...]
    """Statements that give a replica, which runs, another {password}."""
    forget: tuple[str, ...]
    """Statements that remove a link by the {channel} that is down, which is then made again; empty:
    it is sufficient to ``relink``."""
    writable: tuple[str, ...]
    """Statements before and after changes of a replica's own accounts."""
    by_role: tuple[str, ...]
    """Statements for a server that may be the source: it is as before, and then relinked."""
    relink_if_linked: tuple[str, ...]
    """Statements of ``relink`` for a server that may have no link."""
    cannot_write: tuple[str, ...]
    """Statements after which the account of a lab's user cannot write to a read-only server."""
    role: Role
    waits: tuple[str, str]
    """Variables of a server whose commits wait, and of one whose commits do not."""
    account: tuple[str, ...] = (
        "DROP USER IF EXISTS {account}",
        "CREATE USER {account} {identified}",
        "GRANT REPLICATION SLAVE ON *.* TO {account}",
    )
    """Statements that make the account of replicas; a dataset may have had it."""
    several: bool = True
    """Whether a replica can have several sources."""
    semi_sync_by: str = ""
    """The feature of a build (build.toml) without which ``semi_sync`` fails; empty: none."""


_LINKED = (
    "EXISTS (SELECT 1 FROM performance_schema.replication_connection_configuration"
    " WHERE CHANNEL_NAME = '' AND HOST <> '')"
)
_RUNNING_HERE = (
    "(SELECT IF(SUM(c.SERVICE_STATE = 'ON' AND a.SERVICE_STATE = 'ON') >= {links},"
    " 'running', 'stopped') FROM performance_schema.replication_connection_status c"
    " JOIN performance_schema.replication_applier_status a USING (CHANNEL_NAME))"
)


@dataclass(frozen=True)
class Asked:
    """Parts of what replicas and their sources are asked.

    One text asks the newest servers of both: MariaDB alone executes what is in ``/*M! */``, and
    MySQL alone what is in ``/*!80000 */``, as MariaDB ignores those from 50700 to 99999 (its
    documentation, "Comment Syntax"). So a server can be asked whose image is not known.
    """

    # A number, or in MariaDB 12 one of several words.
    read_only: str = (
        "IF(CONCAT(/*M! @@GLOBAL.read_only*/ /*!80000 {variable}*/) IN ('0', 'OFF'), 'OFF', 'ON')"
    )
    position: str = (
        "/*M! @@GLOBAL.gtid_binlog_pos*/ /*!80000 REPLACE(@@GLOBAL.gtid_executed, '\\n', '')*/"
    )
    # In MariaDB SLAVES_RUNNING counts the links whose applying thread runs (its server,
    # show_slaves_running). A thread that receives is connected unless its state is one of
    # "Connecting", "Reconnecting" and "Waiting to reconnect" (its documentation, "Replica I/O
    # Thread States").
    running: str = (
        "/*M! (SELECT IF(VARIABLE_VALUE >= {links} AND {links} <= (SELECT COUNT(*)"
        " FROM information_schema.PROCESSLIST"
        " WHERE COMMAND = 'Slave_IO' AND STATE NOT LIKE '%onnect%'), 'running', 'stopped')"
        " FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'SLAVES_RUNNING')*/"
        " /*!80000 {running}*/"
    ).replace("{running}", _RUNNING_HERE)
    """Whether so many {links} are up."""
    linked: str = (
        "/*M! (SELECT IF(COUNT(*) > 0, 'running', 'stopped')"
        " FROM information_schema.PROCESSLIST WHERE COMMAND = 'Slave_IO')*/"
        " /*!80000 IF({linked}, 'running', 'stopped')*/"
    ).replace("{linked}", _LINKED)
    """Whether it follows a server, which may not run."""
    reached: str = (
        "/*M! MASTER_GTID_WAIT*/ /*!80000 WAIT_FOR_EXECUTED_GTID_SET*/('{position}', {seconds}) = 0"
    )
    """Whether it has executed all of a {position}; it may wait for so many {seconds}."""
    semi_sync: str = (
        "/*M! (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS"
        " WHERE VARIABLE_NAME = 'RPL_SEMI_SYNC_MASTER_{variable}')*/"
        " /*!80000 (SELECT VARIABLE_VALUE FROM performance_schema.global_status"
        " WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_{variable}')*/"
    )
    links: str = "SHOW /*M! ALL REPLICAS*/ /*!80000 REPLICA*/ STATUS"
    """What a server follows, with a row a link."""
    threads: str = "SHOW REPLICA STATUS"
    """What has the states of the two threads of a link in columns next to each other."""


@dataclass(frozen=True)
class Dialect:
    """The SQL and the options of servers."""

    by_native_hash: str
    """What sets an account's password in a statement, by the ``{hash}`` of the older plugin."""
    gtid_domains: bool
    """Whether GTIDs have domains, one for each history."""
    unlogged: str
    """The lines of an option file without which a server has a binary log."""
    initial: Mapping[str, frozenset[str]]
    """Options whose values a server keeps from when its data directory was initialised, in the
    image, each with the values that it starts with."""
    links: Links
    renew: str
    """The statement with which a server reads its certificate and key again. Empty: it cannot while
    it runs. Then no clone that wakes could have its own, so it has none, and no TLS."""
    asked: Asked = field(default_factory=Asked)
    draw: str | None = None
    """The statement for which OpenSSL's generator in the server gets new seeds (ARCHITECTURE.md,
    "Personalising a clone"); None: RANDOM_BYTES(), which the guest's program uses by itself. Empty:
    there is none, and nothing secret is drawn, as the server has no TLS."""
    caching_sha2: bool = True
    """Whether accounts can have caching_sha2_password, where the family wants that."""
    upgrades: bool = True
    """Whether servers of labs become such a server, and such a server a newer one. One that does
    not can say before it starts whether it knows its options, or upgrade its own tables, needs
    steps that ``lab upgrade`` does not have; and its accounts cannot log in to a newer one."""
    create: str = "CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK"
    """What makes an account with which nobody can log in."""
    alter: str = "ALTER USER {account} {identified}{require}"
    """What gives an account its password."""
    unlocked: str = " ACCOUNT UNLOCK"
    """What follows in ``alter``, for an account that is locked."""
    durable: tuple[str, ...] = ()
    """Statements around changes of accounts where their tables are MyISAM, which is not synced: a
    power loss soon afterwards would undo them. Empty: a commit makes them durable."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What takes the place of options, or of groups of them, that it does not know, by their names;
    ``{value}`` is what they have. Empty: nothing."""
    prepares: bool = False
    """Whether its images have the program that prepares physical backups."""
    binds: bool = False
    """Whether an index that a foreign key needs is never dropped, not even without its checks."""
    confined: str = "@@GLOBAL.secure_file_priv <> ''"
    """The condition of a server that may not read and write all files: NULL is no limit."""
    limits: tuple[str, ...] = ()
    """Statements for a session whose statements may read for {seconds}, or {milliseconds}."""
    loading: str = ""
    """An option file of servers that load data, beside that of the image."""

    @property
    def tls(self) -> bool:
        """Whether its connections can be encrypted."""
        return bool(self.renew)

    def kept(self, statements: Sequence[str]) -> list[str]:
        """Statements that change accounts, so that a power loss does not undo them."""
        around = self.durable if statements else ()
        return [*around[:1], *statements, *around[1:]]

    def understood(self, text: str) -> str:
        """An option file as this server understands it."""
        return "".join(map(self._line, text.splitlines(keepends=True))) if self.options else text

    def _line(self, line: str) -> str:
        name, _, value = (part.strip() for part in line.partition("="))
        if name not in self.options:
            return line
        instead = self.options[name].format(value=value)
        return f"{instead}\n" if instead else ""


_MARIADB = Links(
    options="log_slave_updates = ON\ngtid_strict_mode = ON\nslave_net_timeout = 10\n",
    read_only="read_only = ON\n",
    semi_sync="rpl_semi_sync_master_wait_point = AFTER_SYNC\n",
    acknowledged="rpl_semi_sync_master_enabled = ON\n",
    acknowledges="rpl_semi_sync_slave_enabled = ON\n",
    either="rpl_semi_sync_master_wait_no_slave = OFF\n",
    link=(
        (
            "CHANGE MASTER '{channel}' TO MASTER_HOST = '{address}', MASTER_USER = 'replication',"
            " MASTER_PASSWORD = '{password}', MASTER_SSL = 0, MASTER_CONNECT_RETRY = 1,"
            " MASTER_USE_GTID = slave_pos, MASTER_DELAY = {delay}"
        ),
        "START SLAVE '{channel}'",
    ),
    repoint="CHANGE MASTER TO MASTER_HOST = '{address}', MASTER_USE_GTID = slave_pos",
    # The password is in a file (master.info) that the server does not sync unless it is asked to:
    # after a power loss the replica would log in with the one of the template.
    relink=(
        "STOP SLAVE '{channel}'",
        "SET @lab_sync = @@GLOBAL.sync_master_info",
        "SET GLOBAL sync_master_info = 1",
        "CHANGE MASTER '{channel}' TO MASTER_PASSWORD = '{password}'",
        "SET GLOBAL sync_master_info = @lab_sync",
        "START SLAVE '{channel}'",
    ),
    forget=("STOP SLAVE '{channel}'", "RESET SLAVE '{channel}' ALL"),
    writable=("DO 1", "DO 1"),
    by_role=("DO 1", "DO 1"),
    relink_if_linked=(
        (
            "SET @lab_linked = IF(@lab_linked, 1, (SELECT VARIABLE_VALUE > 0"
            " FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'SLAVES_RUNNING'))"
        ),
        "EXECUTE IMMEDIATE IF(@lab_linked, 'STOP SLAVE', 'DO 1')",
        "SET @lab_sync = @@GLOBAL.sync_master_info",
        "SET GLOBAL sync_master_info = 1",
        (
            "EXECUTE IMMEDIATE IF(@lab_linked,"
            " 'CHANGE MASTER TO MASTER_PASSWORD = ''{password}''', 'DO 1')"
        ),
        "SET GLOBAL sync_master_info = @lab_sync",
        "EXECUTE IMMEDIATE IF(@lab_linked, 'START SLAVE', 'DO 1')",
        "SET @lab_linked = NULL",
    ),
    cannot_write=("REVOKE READ ONLY ADMIN ON *.* FROM lab@'%'",),
    role=Role(
        lead=("read_only=OFF",),
        follow=("read_only=ON",),
        unlink=("STOP SLAVE", "RESET SLAVE ALL"),
        link=(),
        # The files that say whom it followed may be incomplete, after a power loss.
        relink=("STOP SLAVE", "RESET SLAVE ALL"),
        # What it has executed itself, as the source, is what it begins after.
        begin=(
            "STOP SLAVE",
            "RESET SLAVE ALL",
            "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos",
        ),
    ),
    waits=("rpl_semi_sync_master_wait_no_slave=ON", "rpl_semi_sync_master_wait_no_slave=OFF"),
)


def _if_linked(linked: str, *statements: str) -> tuple[str, ...]:
    """The statements, for a server that may have no link; MySQL has no EXECUTE IMMEDIATE."""
    return tuple(
        line
        for statement in statements
        for line in (
            f"SET @lab_statement = IF({linked}, '{statement}', 'DO 1')",
            "PREPARE lab FROM @lab_statement",
            "EXECUTE lab",
        )
    )


_MYSQL = Links(
    options="gtid_mode = ON\nenforce_gtid_consistency = ON\nreplica_net_timeout = 10\n",
    read_only="super_read_only = ON\n",
    semi_sync=("plugin_load_add = semisync_source.so\nplugin_load_add = semisync_replica.so\n"),
    acknowledged="loose_rpl_semi_sync_source_enabled = ON\n",
    acknowledges="loose_rpl_semi_sync_replica_enabled = ON\n",
    either="loose_rpl_semi_sync_source_wait_no_replica = OFF\n",
    semi_sync_by="semi-sync",
    # By default it gives its source up after ten tries. Its plugin for passwords wants TLS. No
    # certificate is checked: a clone of the RAM has its own, while those of its peers are new.
    link=(
        (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{address}', SOURCE_USER = 'replication',"
            " SOURCE_PASSWORD = '{password}', SOURCE_SSL = 1, SOURCE_CONNECT_RETRY = 1,"
            " SOURCE_RETRY_COUNT = 31536000, SOURCE_AUTO_POSITION = 1, SOURCE_DELAY = {delay}"
            " FOR CHANNEL '{channel}'"
        ),
        "START REPLICA FOR CHANNEL '{channel}'",
    ),
    repoint="CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{address}', SOURCE_AUTO_POSITION = 1",
    relink=(
        "STOP REPLICA IO_THREAD FOR CHANNEL '{channel}'",
        "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD = '{password}' FOR CHANNEL '{channel}'",
        "START REPLICA IO_THREAD FOR CHANNEL '{channel}'",
    ),
    forget=(),
    writable=("SET GLOBAL super_read_only = OFF", "SET GLOBAL super_read_only = ON"),
    by_role=(
        f"SET @lab_read_only = COALESCE(@lab_read_only, @@GLOBAL.super_read_only OR {_LINKED})",
        "SET GLOBAL super_read_only = OFF",
        "SET GLOBAL super_read_only = @lab_read_only",
        "SET @lab_read_only = NULL",
    ),
    relink_if_linked=_if_linked(
        _LINKED,
        "STOP REPLICA IO_THREAD FOR CHANNEL ''''",
        "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD = ''{password}'' FOR CHANNEL ''''",
        "START REPLICA IO_THREAD FOR CHANNEL ''''",
    ),
    cannot_write=(),
    role=Role(
        lead=("super_read_only=OFF", "read_only=OFF"),
        follow=("super_read_only=ON",),
        unlink=("STOP REPLICA FOR CHANNEL ''", "RESET REPLICA ALL FOR CHANNEL ''"),
        link=(),
        relink=("STOP REPLICA FOR CHANNEL ''",),
        begin=(),
    ),
    waits=("rpl_semi_sync_source_wait_no_replica=ON", "rpl_semi_sync_source_wait_no_replica=OFF"),
)

DIALECTS: Mapping[DialectName, Dialect] = {
    "mariadb": Dialect(
        renew="FLUSH LOCAL SSL",
        by_native_hash="IDENTIFIED VIA mysql_native_password USING '{hash}'",
        gtid_domains=True,
        unlogged="",
        initial={
            "lower_case_table_names": frozenset({"0", "1", "2"}),
            "innodb_page_size": frozenset({"16384", "16k"}),
        },
        links=_MARIADB,
        limits=("SET SESSION max_statement_time = {seconds}",),
        prepares=True,
    ),
    "mysql": Dialect(
        renew="ALTER INSTANCE RELOAD TLS",
        by_native_hash="IDENTIFIED WITH mysql_native_password AS '{hash}'",
        gtid_domains=False,
        unlogged="\n[mysqld]\nskip_log_bin\n",
        initial={
            "lower_case_table_names": frozenset({"0"}),
            "innodb_page_size": frozenset({"16384", "16k"}),
        },
        links=_MYSQL,
        limits=("SET SESSION max_execution_time = {milliseconds}",),
        binds=True,
        # NULL: it reads and writes none.
        confined="IFNULL(@@GLOBAL.secure_file_priv, 'NULL') <> ''",
        # Rows go from server to server in files. Events of the data are for labs. Older servers
        # had foreign keys that refer to no unique key. Without its option a server refuses partial
        # revokes; one that has such accounts sets it itself when it starts. Percona XtraDB Cluster
        # refuses LOCK TABLES and tables without a key where it is strict.
        loading='[mysqld]\nsecure_file_priv = ""\nevent_scheduler = OFF\npartial_revokes = ON\n'
        "loose_restrict_fk_on_non_standard_key = OFF\nloose_pxc_strict_mode = DISABLED\n",
    ),
}


@dataclass(frozen=True)
class _Older:
    """What servers before a version have instead: values of the fields of ``Dialect``."""

    before: tuple[int, ...]
    server: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Added to those of newer versions."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What each of these is called, in all texts of ``links`` and ``asked``."""

    def of(self, newer: Dialect) -> Dialect:
        """The dialect of servers before that version."""
        return replace(
            newer,
            links=replace(_reworded(newer.links, self.words), **self.links),
            asked=replace(_reworded(newer.asked, self.words), **self.asked),
            options={**newer.options, **self.options},
            **self.server,
        )


def _reworded(value: Any, words: Mapping[str, str]) -> Any:
    """Replace ``words`` in all texts of ``value``."""
    if isinstance(value, str):
        for word, other in words.items():
            value = value.replace(word, other)
    elif isinstance(value, tuple):
        return tuple(_reworded(one, words) for one in value)
    elif isinstance(value, Links | Asked | Role):
        return replace(value, **{k: _reworded(v, words) for k, v in vars(value).items()})
    return value


# Statements that functions and triggers need SUPER for where there is a binary log.
_NO_SUPER = ("REVOKE SUPER ON *.* FROM lab@'%'",)
_BY_ANYONE = "log_bin_trust_function_creators = ON\n"
_SYNCED = ("SET GLOBAL flush = ON", "SET GLOBAL flush = OFF")
_NO_TLS = {"ssl_cert": "", "ssl_ca": "", "ssl_key": ""}
_STATUS = "FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME"
_FOLLOWS_56 = "EXISTS (SELECT 1 FROM mysql.slave_master_info WHERE Host <> '')"

_OLDER: Mapping[DialectName, tuple[_Older, ...]] = {
    "mariadb": (
        # READ ONLY ADMIN is no part of SUPER.
        _Older(
            (10, 11),
            links={
                "options": _MARIADB.options + _BY_ANYONE,
                "cannot_write": (*_MARIADB.cannot_write, *_NO_SUPER),
            },
        ),
        # RANDOM_BYTES(). A context of TLS has random keys for tickets.
        _Older((10, 10), server={"draw": "FLUSH LOCAL SSL"}),
        _Older((10, 6), options={"binlog_expire_logs_seconds": "expire_logs_days = 7"}),
        # READ ONLY ADMIN; REPLICA in statements.
        _Older(
            (10, 5),
            links={"cannot_write": _NO_SUPER},
            asked={"links": "SHOW ALL SLAVES STATUS", "threads": "SHOW SLAVE STATUS"},
        ),
        # FLUSH SSL, ACCOUNT LOCK; accounts in a table of Aria; the group of options [mariadbd].
        _Older(
            (10, 4),
            server={
                "renew": "",
                "draw": "",
                "create": "CREATE USER IF NOT EXISTS {account}"
                f" IDENTIFIED VIA mysql_native_password USING '{_NOBODY}'",
                "unlocked": "",
                "durable": _SYNCED,
            },
            options={"[mariadbd]": "[mysqld]", **_NO_TLS},
        ),
        # Semi-synchronous replication without plugins.
        _Older(
            (10, 3),
            links={
                "semi_sync": "plugin_load_add = semisync_master\nplugin_load_add = semisync_slave\n"
                "loose_rpl_semi_sync_master_wait_point = AFTER_SYNC\n",
                "acknowledged": "loose_rpl_semi_sync_master_enabled = ON\n",
                "acknowledges": "loose_rpl_semi_sync_slave_enabled = ON\n",
                "either": "loose_rpl_semi_sync_master_wait_no_slave = OFF\n",
                "semi_sync_by": "semi-sync",
            },
        ),
    ),
    "mysql": (
        # The same capacity: there are two files.
        _Older((8, 0, 30), options={"innodb_redo_log_capacity": "innodb_log_file_size = 32M"}),
        # SOURCE and REPLICA, in the last of these: names of semi-synchronous replication.
        _Older(
            (8, 0, 26),
            asked={"links": "SHOW SLAVE STATUS"},
            links={"semi_sync_by": "older semi-sync"},
            words={
                "CHANGE REPLICATION SOURCE": "CHANGE MASTER",
                "SOURCE_": "MASTER_",
                "REPLICA ": "SLAVE ",
                "semi_sync_source": "semi_sync_master",
                "semi_sync_replica": "semi_sync_slave",
                "semisync_source": "semisync_master",
                "semisync_replica": "semisync_slave",
                "wait_no_replica": "wait_no_slave",
                "replica_net_timeout": "slave_net_timeout",
            },
        ),
        # ALTER INSTANCE RELOAD TLS. Without TLS the password is proved by the older plugin.
        # mysqld --validate-config, and a server that does what mysql_upgrade did.
        _Older(
            (8, 0, 16),
            server={"renew": "", "caching_sha2": False, "upgrades": False},
            words={"MASTER_SSL = 1": "MASTER_SSL = 0"},
            options=_NO_TLS,
        ),
        # Comments of 80000; accounts in tables of InnoDB; seconds for which binary logs stay; what
        # 8.0 has by default.
        _Older(
            (8, 0),
            server={"durable": _SYNCED},
            links={
                "options": "gtid_mode = ON\nenforce_gtid_consistency = ON\n"
                "slave_net_timeout = 10\nlog_slave_updates = ON\nbinlog_format = ROW\n"
                "master_info_repository = TABLE\nrelay_log_info_repository = TABLE\n",
            },
            asked={
                "read_only": "IF({variable}, 'ON', 'OFF')",
                "position": "REPLACE(@@GLOBAL.gtid_executed, '\\n', '')",
                "running": _RUNNING_HERE,
                "linked": f"IF({_LINKED}, 'running', 'stopped')",
                "reached": "WAIT_FOR_EXECUTED_GTID_SET('{position}', {seconds}) = 0",
                "semi_sync": "(SELECT VARIABLE_VALUE FROM performance_schema.global_status"
                " WHERE VARIABLE_NAME = 'Rpl_semi_sync_master_{variable}')",
            },
            options={
                "mysqlx": "",
                "caching_sha2_password_auto_generate_rsa_keys": "",
                "binlog_expire_logs_seconds": "expire_logs_days = 7",
            },
        ),
        # ALTER USER for passwords, ACCOUNT LOCK, IF EXISTS; super_read_only; channels, and tables
        # of performance_schema about them; WAIT_FOR_EXECUTED_GTID_SET(); limits of time.
        _Older(
            (5, 7),
            server={
                "limits": (),
                "by_native_hash": "IDENTIFIED BY PASSWORD '{hash}'",
                "create": f"GRANT USAGE ON *.* TO {{account}} IDENTIFIED BY PASSWORD '{_NOBODY}'",
                "alter": "GRANT USAGE ON *.* TO {account} {identified}{require}",
                "unlocked": "",
            },
            links={
                "read_only": "read_only = ON\n",
                "options": "gtid_mode = ON\nenforce_gtid_consistency = ON\n"
                "slave_net_timeout = 10\nlog_slave_updates = ON\nbinlog_format = ROW\n"
                "master_info_repository = TABLE\nrelay_log_info_repository = TABLE\n" + _BY_ANYONE,
                "relink": (
                    "STOP SLAVE",
                    "CHANGE MASTER TO MASTER_PASSWORD = '{password}'",
                    "START SLAVE",
                ),
                "relink_if_linked": _if_linked(
                    _FOLLOWS_56,
                    "STOP SLAVE",
                    "CHANGE MASTER TO MASTER_PASSWORD = ''{password}''",
                    "START SLAVE",
                ),
                "writable": ("DO 1", "DO 1"),
                "by_role": ("DO 1", "DO 1"),
                "cannot_write": _NO_SUPER,
                "role": Role(
                    lead=("read_only=OFF",),
                    follow=("read_only=ON",),
                    unlink=("STOP SLAVE", "RESET SLAVE ALL"),
                    link=(),
                    relink=("STOP SLAVE",),
                    begin=(),
                ),
                "account": ("GRANT REPLICATION SLAVE ON *.* TO {account} {identified}",),
                "several": False,
            },
            asked={
                "read_only": "IF(@@GLOBAL.read_only, 'ON', 'OFF')",
                "running": "(SELECT IF(VARIABLE_VALUE = 'ON', 'running', 'stopped')"
                f" {_STATUS} = 'SLAVE_RUNNING')",
                "linked": f"IF({_FOLLOWS_56}, 'running', 'stopped')",
                "reached": "GTID_SUBSET('{position}', @@GLOBAL.gtid_executed)",
                "semi_sync": f"(SELECT VARIABLE_VALUE {_STATUS} ="
                " 'RPL_SEMI_SYNC_MASTER_{variable}')",
            },
            words={" FOR CHANNEL '{channel}'": ""},
            options={"auto_generate_certs": "", "secure_file_priv": ""},
        ),
    ),
}
"""By dialect, the newest first: the series whose first release for use has the newer form, or the
very release within a series."""

_OLDEST: Mapping[DialectName, tuple[str, str]] = {
    "mariadb": ("10.2", "ALTER USER, EXECUTE IMMEDIATE and delayed replicas"),
    "mysql": ("5.6.17", "RANDOM_BYTES(), with which a clone gets seeds of its own"),
}
"""The oldest version that serves a lab, and what one before it lacks."""

_LOADS: Mapping[DialectName, tuple[str, str]] = {
    "mariadb": ("10.3", "queries that say what its columns are"),
    "mysql": ("8.0.22", "statements by which accounts, links and rows are carried over"),
}
"""The oldest version that makes datasets, and what one before it lacks."""


_RUNS: Mapping[str, Mapping[DialectName, tuple[str, str]]] = {
    "group-replication": {
        "mysql": ("8.0.27", "the privilege GROUP_REPLICATION_STREAM, which members need"),
    },
}
"""By features that blueprints need: the oldest version that does, and what one before it lacks."""


_REMOVED: Mapping[DialectName, Mapping[str, Mapping[str, str]]] = {
    # MDEV-29694. It starts with the others that it removed, and logs that they do nothing.
    "mariadb": {"11.0": {"innodb_change_buffer_max_size": ""}},
    # Its manual, "What Is New in MySQL 8.4 since MySQL 8.0" and "... 9.0 since MySQL 8.4".
    "mysql": {
        "8.4": {
            "default_authentication_plugin": "authentication_policy",
            "expire_logs_days": "binlog_expire_logs_seconds",
            "group_replication_ip_whitelist": "group_replication_ip_allowlist",
            "skip_host_cache": "host_cache_size = 0",
            "no_dd_upgrade": "upgrade = NONE",
            "binlog_transaction_dependency_tracking": "",
            "log_bin_use_v1_row_events": "",
            "master_info_file": "",
            "master_info_repository": "",
            "relay_log_info_file": "",
            "relay_log_info_repository": "",
            "slave_rows_search_algorithms": "",
            "transaction_write_set_extraction": "",
            "avoid_temporal_upgrade": "",
            "show_old_temporals": "",
            "old_style_user_limits": "",
        },
        "9.0": {"mysql_native_password": ""},
    },
}
"""Options that servers do not know since a version, each with what took its place; empty: nothing.
Not all of them: a server is asked as well."""

_PLUGINS: Mapping[DialectName, Mapping[str, tuple[str, str]]] = {
    "mysql": {NATIVE: ("8.4", "9.0")},
}
"""Plugins of accounts: since when servers have each only with an option of its name, and since when
not at all."""


class Versioned(Protocol):
    """A server: its engine and its version."""

    @property
    def name(self) -> str:
        """The engine, as images and records have it."""

    @property
    def version(self) -> str:
        """Its version, such as 10.11.6; empty where that is not known: the newest."""


def dialect_of(server: Versioned) -> Dialect:
    """The dialect of a server as its version has it; the newest one of a server of no family."""
    family = family_of(server.name)
    return _at(family.dialect, server.version if family.series else "")


def plugin_of(server: Versioned) -> Authentication:
    """The plugin of the accounts that labs have on a server."""
    wanted = family_of(server.name).authentication
    return wanted if dialect_of(server).caching_sha2 else NATIVE


@lru_cache(maxsize=64)
def _at(name: DialectName, version: str) -> Dialect:
    found = DIALECTS[name]
    for older in _OLDER[name]:
        if _is_before(version, older.before):
            found = older.of(found)
    return found


def _is_before(version: str, other: tuple[int, ...]) -> bool:
    """Whether a version is before another; of a series, such as 8.0, its newest one counts."""
    known = numbers(version)
    return bool(known) and known < other[: len(known)]


def check_version(name: DialectName, version: str) -> None:
    """Raise InvalidSpec for a server that is too old to serve a lab; ``version``: as it says."""
    oldest, what = _OLDEST[name]
    if _is_before(version, numbers(oldest)):
        raise InvalidSpec(
            f"{family_of(name).title} {version} is too old for labs: it lacks {what}",
            hint=f"the oldest version that works is {oldest}",
        )


def lacks(server: Versioned, feature: str) -> str:
    """What a server is too old for that has a feature; empty: it is not."""
    family = family_of(server.name)
    oldest, what = _RUNS.get(feature, {}).get(family.dialect, ("", ""))
    if not oldest or not _is_before(server.version, numbers(oldest)):
        return ""
    return f"{what} (since {family.title} {oldest})"


def removed(was: Versioned, new: Versioned) -> dict[str, str]:
    """Options that ``new`` does not know any more, which ``was`` knows: what took their places."""
    found = dict[str, str]()
    for since, options in _REMOVED[family_of(new.name).dialect].items():
        if _is_before(was.version, numbers(since)) and not _is_before(new.version, numbers(since)):
            found |= options
    return found


def locks_out(server: Versioned, text: str) -> list[str]:
    """Plugins whose accounts cannot log in to a server with the option file ``text``."""
    found = list[str]()
    for plugin, (by_option, gone) in _PLUGINS.get(family_of(server.name).dialect, {}).items():
        is_on = re.compile(rf"^\s*(?:loose[-_])?{plugin}\s*(?:=\s*(?:on|true|1)\s*)?$", re.M | re.I)
        had = not _is_before(server.version, numbers(by_option))
        if had and not (
            _is_before(server.version, numbers(gone)) and is_on.search(text.replace("-", "_"))
        ):
            found.append(plugin)
    return found


def check_loads(server: Versioned) -> None:
    """Raise InvalidSpec for a server that is too old to make datasets."""
    family = family_of(server.name)
    oldest, what = _LOADS[family.dialect]
    if _is_before(server.version, numbers(oldest)):
        raise InvalidSpec(
            f"{family.title} {server.version} is too old to make datasets: it lacks {what}",
            hint=f"the oldest version that does is {oldest}; --init runs SQL in labs of older ones",
        )
