"""What happens inside the guests of the fake hypervisor: a Galera cluster or servers.

All that a guest knows is on its first disk, so snapshots, clones and rollbacks of the
disk do to it what they do to a real one: ``MAGIC``, then one line of JSON. Its data are the
statements that changed something; a question is answered by replaying them into SQLite.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, field, replace
from functools import lru_cache
from pathlib import Path

from lab.blueprints.proxies.router import SERVERS
from lab.blueprints.proxy import PROXIES
from lab.errors import StatementRefused
from lab.guest import network, seed
from lab.hypervisor import Disk
from lab.passwords import CACHING_SHA2, NATIVE, caching_sha2, native
from lab.values import dataclass

MAGIC = b"lab-fake-guest 1\n"

ACCOUNT = re.compile(
    r"ALTER USER '(\w+)'@'%' IDENTIFIED (?:(?:VIA|WITH) mysql_native_password (?:USING|AS)"
    r" |WITH caching_sha2_password AS )('\*[0-9A-F]{40}'|0x[0-9a-f]+)( REQUIRE (?:SSL|NONE))?"
    r"(?: ACCOUNT UNLOCK)?"
)
"""The statement that gives the account of a lab's user its password."""
_OF_ACCOUNTS = ("CREATE USER IF NOT EXISTS ", "REVOKE ALL PRIVILEGES", "GRANT ")
"""Statements of accounts that change nothing here: nobody asks what an account may do."""
_DATABASE = re.compile(r"(CREATE|DROP) DATABASE (?:IF (?:NOT )?EXISTS )?`?(\w+)`?", re.IGNORECASE)
_SYSTEM = re.compile(r"information_schema|\bFROM mysql\.|performance_schema\.variables_info")
_OF_SESSION = re.compile(
    r"SET (?:SESSION max_|SESSION sql_select_limit |@)|START TRANSACTION |USE "
)
_MEASURES = re.compile(r"(SHOW SESSION STATUS LIKE )|SELECT TIMESTAMPDIFF")
"""What a session reads of itself: nothing takes time here."""
NO_DATA = (
    "DO 1",
    "SHOW ERRORS",
    "FLUSH LOCAL SSL",
    "ALTER INSTANCE RELOAD TLS",
    "FLUSH ENGINE LOGS",
    "FLUSH LOCAL ENGINE LOGS",
    "SET SESSION wsrep_sync_wait = 1",
    "SET SESSION sql_log_bin = 0",
    "SET SESSION sql_log_bin = 1",
    "SET GLOBAL flush = ON",
    "SET GLOBAL flush = OFF",
)
"""Statements that touch no data: a node executes them even without its cluster."""
PROVIDER = "26.4.13(r0)"
"""The version of the wsrep provider of all nodes of clusters."""
READ_LOCK = "FLUSH TABLES WITH READ LOCK"
"""What the client of a session may have done: until it ends, our own statements are blocked."""


@dataclass
class Inside:
    """The state of a guest on its first disk, with what a boot loses of the server's memory."""

    statements: list[str] = field(default_factory=list)
    """Statements that changed data or accounts, in order; the same on all nodes of a cluster."""
    files: dict[str, str] = field(default_factory=dict)
    """Contents as base64, by path."""
    modes: dict[str, str] = field(default_factory=dict)
    """Octal modes of ``files``, by path."""
    clock: float = 0.0
    """The time that the clock was last set to."""
    entropy: str = ""
    """A hash of all entropy that was mixed in."""
    apart: str = ""
    """Why the server is in no cluster (``inconsistent``, ``failed``, ``lost view``); else empty."""
    sessions: list[str] = field(default_factory=list)
    """The last statement of each client session; lost by a boot."""
    ended: int = 0
    """Sessions that were ended and not reported yet; lost by a boot."""
    seeds: str = ""
    """The entropy from which ``reseed`` seeded the server; empty if it did not; lost by a boot."""
    identity: list[str] = field(default_factory=list)
    """The last arguments of the guest's program ``identity``."""
    follows: str = ""
    """The sources of a server; see ``lab.fake.replication``."""
    noted: str = ""
    """The recorded source, after its number; see ``lab.fake.replication``."""
    leads: bool = False
    """Whether a server of a star takes writes; lost by a boot."""
    joined: int = 0
    """The order in which a member joined its group; see ``lab.fake.group``; lost by a boot."""
    left: bool = False
    """Whether it left its group by a statement; see ``lab.fake.group``; lost by a boot."""
    login: str = ""
    """The password with which it recovers from other members; see ``lab.fake.group``."""
    lets_in: str = ""
    """The hash of the password with which other members recover from it."""
    printed: str = ""
    """What the benchmark printed that was started last in a client; lost by a boot."""

    @property
    def accounts(self) -> dict[str, str]:
        """Password hashes by user; an account that was never unlocked is not there."""
        found = (ACCOUNT.fullmatch(statement) for statement in self.statements)
        return {match[1]: match[2].strip("'") for match in found if match}

    @property
    def tls_only(self) -> set[str]:
        """Users who are let in through TLS only."""
        found = [ACCOUNT.fullmatch(statement) for statement in self.statements]
        last = {match[1]: match[3] for match in found if match}
        return {user for user, required in last.items() if required}

    def file(self, path: str) -> bytes:
        """What was put at ``path``; raises KeyError."""
        return base64.b64decode(self.files[path])

    def put(self, path: str, content: bytes, mode: str) -> None:
        """Have a file."""
        self.files[path] = base64.b64encode(content).decode()
        self.modes[path] = mode

    def digest(self) -> str:
        """A hash of all of it; a field that homes of tests did not have counts if it is set."""
        later = (
            "sessions", "ended", "seeds", "identity", "follows", "noted", "leads", "joined",
            "left", "login", "lets_in", "printed",
        )  # fmt: skip
        found = {key: value for key, value in asdict(self).items() if value or key not in later}
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


Row = tuple[object, ...]


@dataclass(frozen=True)
class Result:
    """What a statement gives: no columns where it returns no rows."""

    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    affected: int = 0


def read_inside(disks: Sequence[Disk]) -> Inside:
    """What the first of a guest's disks holds; nothing if no guest ever wrote to it."""
    if not disks:
        return Inside()
    with disks[0].path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return Inside()
        return Inside(**json.loads(file.readline()))


def write_inside(disks: Sequence[Disk], inside: Inside) -> None:
    """Keep ``inside`` on the first disk."""
    with disks[0].path.open("r+b") as file:
        file.write(MAGIC + json.dumps(asdict(inside)).encode() + b"\n")


def forget_memory(disks: Sequence[Disk]) -> None:
    """Lose what was not on a guest's disks but in its memory, as a boot does."""
    inside = read_inside(disks)
    fresh = replace(
        inside, sessions=[], ended=0, seeds="", joined=0, left=False, leads=False, printed=""
    )
    if fresh != inside:
        write_inside(disks, fresh)


def members(disks: Sequence[Disk]) -> int:
    """How many nodes its cluster has by a guest's seed, 0 if that does not say it."""
    for line in _seeded(disks, "/99-lab.cnf"):
        if line.startswith("wsrep_cluster_address"):
            return len(line.partition("gcomm://")[2].split(","))
    prefix = network.inner_address(1).rsplit(".", 1)[0] + "."
    return sum(line.startswith(prefix) for line in _seeded(disks, "/etc/hosts"))


def proxies(disks: Sequence[Disk]) -> bool:
    """Whether a guest's seed makes it a proxy."""
    return any(_seeded(disks, one.seed) for one in PROXIES.values())


def last(disks: Sequence[Disk]) -> list[str]:
    """The servers that a guest's MySQL Router reads from only where no other can be."""
    lines = _seeded(disks, SERVERS)
    return [line.split("\t")[0] for line in lines if line.endswith("\tlast")]


def arbitrates(disks: Sequence[Disk]) -> bool:
    """Whether a guest's seed makes it a member of a cluster that has no data."""
    return bool(_seeded(disks, "/etc/lab/garbd.cnf"))


def only_uses(disks: Sequence[Disk]) -> bool:
    """Whether a guest's seed makes it a client of the other nodes' servers."""
    return bool(_seeded(disks, "/etc/lab/client.cnf"))


def alone(disks: Sequence[Disk]) -> bool:
    """Whether the option file in a guest's seed makes its server a node of no cluster."""
    options = _seeded(disks, "/99-lab.cnf")
    return bool(options) and not any(line.startswith("wsrep_") for line in options)


def grouped(disks: Sequence[Disk]) -> bool:
    """Whether a guest's seed makes its server a member of a group."""
    return bool(_seeded(disks, "/etc/lab/group"))


def sources(disks: Sequence[Disk]) -> list[str]:
    """The addresses of the servers of which a guest's seed lets its replica follow any."""
    return [line.partition("\t")[0] for line in _seeded(disks, "/etc/lab/sources")]


def read_only(disks: Sequence[Disk]) -> bool:
    """Whether the option file in a guest's seed refuses statements that write."""
    options = _seeded(disks, "/99-lab.cnf")
    return any(line in ("read_only = ON", "super_read_only = ON") for line in options)


def options_of(disks: Sequence[Disk]) -> Sequence[str]:
    """The lines of the option file in a guest's seed."""
    return _seeded(disks, "/99-lab.cnf")


def multi_primary(disks: Sequence[Disk]) -> bool:
    """Whether the option file in a guest's seed has all members of its group take writes."""
    options = _seeded(disks, "/99-lab.cnf")
    return "loose_group_replication_single_primary_mode = OFF" in options


def refused(disks: Sequence[Disk]) -> str:
    """The option in a guest's seed that its server does not know; empty if it knows all."""
    options = _seeded(disks, "/99-lab.cnf")
    return next((line for line in options if line.startswith("unknown_")), "")


def removed(disks: Sequence[Disk]) -> list[str]:
    """The options in a guest's seed that its server takes, and does nothing for."""
    options = _seeded(disks, "/99-lab.cnf")
    return [line.partition("=")[0] for line in options if line.startswith("removed_")]


def sql_port(disks: Sequence[Disk]) -> int:
    """The port at which a guest's server listens: what its option file says, or the usual one."""
    options = (line.replace(" ", "") for line in _seeded(disks, "/99-lab.cnf"))
    found = [line.removeprefix("port=") for line in options if line.startswith("port=")]
    return int(found[-1]) if found else network.SQL_PORT


def own_address(disks: Sequence[Disk]) -> str:
    """The address towards the host that a guest's seed gives it, empty if it does not."""
    return _address(disks, "OUTER_ADDRESS")


def inner_address(disks: Sequence[Disk]) -> str:
    """The address of a guest on its segment, as its seed has it."""
    return _address(disks, "INNER_ADDRESS")


def _address(disks: Sequence[Disk], name: str) -> str:
    lines = [line.partition("=") for line in _seeded(disks, "/etc/lab/network")]
    return {key: value for key, _, value in lines}.get(name, "").partition("/")[0]


def _seeded(disks: Sequence[Disk], path: str) -> Sequence[str]:
    """The lines of the file whose path ends so in a guest's seed, none if it has none."""
    for disk in disks:
        if disk.serial == seed.SERIAL:
            there = disk.path.stat()
            for name, lines in _files(disk.path, there.st_ino, there.st_mtime_ns).items():
                if name.startswith("lab/root/") and name.endswith(path):
                    return lines
    return ()


@lru_cache(maxsize=4096)
def _files(path: Path, inode: int, changed: int) -> Mapping[str, Sequence[str]]:  # noqa: ARG001
    """The lines of each file of a seed, none of a builder's, which is no archive."""
    if not tarfile.is_tarfile(path):
        return {}
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {
            name: tuple(file.read().decode(errors="replace").splitlines()) if file else ()
            for name, file in files.items()
        }


def status(running: int, nodes: int, apart: str = "") -> dict[str, str]:
    """A node's status variables when ``running`` of ``nodes`` nodes see each other."""
    if apart:
        return {
            "wsrep_local_state_comment": apart.capitalize(),
            "wsrep_cluster_status": "Disconnected",
            "wsrep_ready": "OFF",
            "wsrep_cluster_size": "0",
            "wsrep_provider_version": PROVIDER,
        }
    primary = 2 * running > nodes
    return {
        "wsrep_local_state_comment": "Synced" if primary else "Initialized",
        "wsrep_cluster_status": "Primary" if primary else "non-Primary",
        "wsrep_ready": "ON" if primary else "OFF",
        "wsrep_cluster_size": str(running),
        "wsrep_provider_version": PROVIDER,
    }


def counter(statement: str) -> str:
    """The status variable that counts statements like this one."""
    words = re.findall(r"[A-Z]+", statement.upper())
    if words[:1] == ["WITH"]:
        return "Com_select"
    shown = {
        "STATUS": "show_status",
        "PROCESSLIST": "show_processlist",
        "VARIABLES": "show_variables",
        "ERRORS": "show_errors",
    }
    kinds = [shown[word] for word in words if words[0] == "SHOW" and word in shown]
    return f"Com_{kinds[0] if kinds else words[0].lower() if words else 'empty_query'}"


def processes(user: str, statement: str) -> Result | None:
    """The answer if ``statement`` asks what runs: what asks, as the rest is done at once."""
    if not re.fullmatch(r"SHOW (FULL )?PROCESSLIST", statement, re.IGNORECASE):
        return None
    columns = ("Id", "User", "Host", "db", "Command", "Time", "State", "Info")
    return Result(columns, ((1, user, "10.0.2.2", None, "Query", 0, "", statement),), 1)


def show_status(statement: str, variables: dict[str, str]) -> Result | None:
    """The answer if ``statement`` is SHOW STATUS, of the variables that it is LIKE."""
    return _shown("STATUS", statement, variables)


def asks_variables(statement: str) -> bool:
    """Whether ``statement`` is SHOW VARIABLES."""
    return bool(re.match(r"SHOW (GLOBAL )?VARIABLES\b", statement, re.IGNORECASE))


def variables(statement: str, values: dict[str, str]) -> Result:
    """The answer to SHOW VARIABLES, of the few that there are."""
    return _shown("VARIABLES", statement, values) or Result()


def sets_read_only(statement: str) -> bool | None:
    """The value if ``statement`` sets the global variable ``read_only``."""
    found = re.fullmatch(r"SET GLOBAL read_only *= *(ON|OFF|1|0)", statement, re.IGNORECASE)
    return found[1].upper() in ("ON", "1") if found else None


def _shown(kind: str, statement: str, variables: dict[str, str]) -> Result | None:
    if not re.match(rf"SHOW (GLOBAL )?{kind}\b", statement, re.IGNORECASE):
        return None
    like = re.search(r"LIKE '(\w+)%?'", statement, re.IGNORECASE)
    start = like[1] if like else ""
    rows = tuple(pair for pair in variables.items() if pair[0].startswith(start))
    return Result(("Variable_name", "Value"), rows, len(rows))


def execute(inside: Inside, statement: str) -> Result:
    """Run ``statement``; if it changed something, it is added to the statements.

    Raises CommandFailed for what the pretended server does not understand.
    """
    if ACCOUNT.fullmatch(statement):
        inside.statements.append(statement)
        return Result()
    if statement.startswith(_OF_ACCOUNTS):
        return Result()
    if _OF_SESSION.match(statement):
        return Result()
    statement = statement.replace("EXPLAIN FORMAT=TRADITIONAL ", "EXPLAIN QUERY PLAN ")
    if found := _MEASURES.match(statement):
        return Result(("Variable_name", "Value"), ((found[0], 0),) if found[1] else ((0,),), 1)
    if statement.startswith("CHECKSUM TABLE "):
        return _checksums(inside, re.findall(r"`([^`]+)`\.`([^`]+)`", statement))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        try:
            for earlier in inside.statements:
                if not ACCOUNT.fullmatch(earlier):
                    _replay(database, earlier)
            before = database.total_changes
            cursor = _replay(database, statement)
            columns = tuple(column[0] for column in cursor.description or ())
            rows = tuple(cursor.fetchall())
            changed = database.total_changes - before
        except sqlite3.Error as error:
            raise StatementRefused(1064, str(error)) from None
    if not columns:
        inside.statements.append(statement)
    return Result(columns, rows, len(rows) if columns else changed)


def asks_system(statement: str) -> bool:
    """Whether ``statement`` is a question about what a server has, beside its state."""
    return "wsrep_" not in statement and bool(_SYSTEM.search(statement))


def information(inside: Inside, statement: str) -> Result:
    """Database, name, engine, rows and bytes of each table, if that is asked; else nothing."""
    found: list[Row] = []
    if not statement.startswith("SELECT table_schema, table_name, engine, table_rows"):
        return Result(("",))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for earlier in inside.statements:
            if not ACCOUNT.fullmatch(earlier):
                _replay(database, earlier)
        for _, schema, _ in database.execute("PRAGMA database_list").fetchall():
            named = f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'"  # noqa: S608
            for (name,) in database.execute(named).fetchall():
                counted = f'SELECT COUNT(*) FROM {schema}."{name}"'  # noqa: S608
                [(rows,)] = database.execute(counted).fetchall()
                found.append((schema, name, "InnoDB", rows, 16384))
    return Result(("", "", "", "", ""), tuple(found))


def _checksums(inside: Inside, tables: Sequence[tuple[str, str]]) -> Result:
    rows = []
    for schema, name in tables:
        found = execute(inside, f'SELECT * FROM {schema}."{name}"')  # noqa: S608
        digest = hashlib.sha256(repr(found.rows).encode()).hexdigest()
        rows.append((f"{schema}.{name}", int(digest[:8], 16)))
    return Result(("Table", "Checksum"), tuple(rows), len(rows))


def fits(password: str, kept: str, plugin: str) -> bool:
    """Whether ``kept`` is what a server has of ``password``, and ``plugin`` how it is proved."""
    if kept.startswith("0x"):
        if plugin != CACHING_SHA2:
            return False
        text = bytes.fromhex(kept[2:]).decode()
        return caching_sha2(password, text[7:27]) == text
    return plugin == NATIVE and native(password) == kept


def _replay(database: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
    if match := _DATABASE.match(statement):
        attached = [row[1] for row in database.execute("PRAGMA database_list").fetchall()]
        exists = match[2] in attached
        if " EXISTS " in statement.upper() and exists != (match[1].upper() == "DROP"):
            return database.execute("SELECT 1 WHERE 0")
        if match[1].upper() == "DROP":
            return database.execute(f"DETACH DATABASE {match[2]}")
        if exists:
            text = f"Can't create database '{match[2]}'; database exists"
            raise StatementRefused(1007, text)
        return database.execute(f"ATTACH DATABASE ':memory:' AS {match[2]}")
    return database.execute(statement)
