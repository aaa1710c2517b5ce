"""The guest's program ``load`` writes what a server has, and another reads it; both are real.

A file system is a directory beside the disk: tests have no right to mount one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.config.enginefile import DialectName
from lab.datasets.columns import QUERY, from_rows
from lab.datasets.mask import FORGET, LAST, plan, secret_statements
from lab.datasets.rows import reading, rows_of
from lab.datasets.rules import parse
from lab.datasets.tablespaces import (
    OTHER_INDEXES,
    TABLES,
    Tablespace,
    independent,
    rebuilding,
    tablespaces,
)
from lab.lifecycle.datasets.outside import outside
from lab.progress import Progress
from lab.run import run
from lab.wait import Deadline, attempts
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, client, server
from tests.unit.guest.test_identity_in_guest import DIALECTS, program

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a guest's programs run as root"),
    pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed"),
]

SECONDS = 120.0
ODD = "od`d"
SCHEMA = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, name VARCHAR(60), seen INT DEFAULT 0)",
    "CREATE TABLE shop.audit (id INT AUTO_INCREMENT PRIMARY KEY, old VARCHAR(60))",
    "INSERT INTO shop.t (id, name) VALUES (1, 'Ada'), (2, 'Grace')",
    "CREATE DATABASE `od``d`",
    "CREATE TABLE `od``d`.t (id INT PRIMARY KEY)",
    "CREATE TRIGGER `od``d`.`o``ne` BEFORE INSERT ON `od``d`.t FOR EACH ROW SET NEW.id = 7",
    "USE shop",
    "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
    (
        'CREATE DEFINER = "app"@"10.%" TRIGGER a_second AFTER UPDATE ON t FOR EACH ROW'
        " INSERT INTO audit (old) VALUES (OLD.name || ';' || 'second')"
    ),
    "SET sql_mode = DEFAULT",
    (
        "CREATE TRIGGER first AFTER UPDATE ON t FOR EACH ROW PRECEDES a_second"
        " BEGIN INSERT INTO audit (old) VALUES (CONCAT(OLD.name, ' first')); END"
    ),
    "CREATE VIEW names AS SELECT name FROM t",
    "CREATE FUNCTION twice (n INT) RETURNS INT DETERMINISTIC RETURN 2 * n",
    "CREATE PROCEDURE look () BEGIN SELECT twice(id) FROM t; END",
    "CREATE EVENT later ON SCHEDULE EVERY 1 DAY DISABLE DO INSERT INTO audit (old) VALUES ('x')",
)
DEFINITIONS = (
    (
        "SELECT trigger_schema, trigger_name, event_object_table, action_order, action_timing,"
        " event_manipulation, action_statement, definer, sql_mode, character_set_client,"
        " database_collation FROM information_schema.triggers WHERE trigger_schema <> 'sys'"
        " ORDER BY 1, 2"
    ),
    (
        "SELECT routine_schema, routine_name, routine_definition, definer, sql_mode"
        " FROM information_schema.routines WHERE routine_schema = 'shop' ORDER BY 1, 2"
    ),
    "SELECT event_schema, event_name, event_definition, status FROM information_schema.events",
    (
        "SELECT table_schema, table_name, view_definition FROM information_schema.views"
        " WHERE table_schema = 'shop'"
    ),
    "SELECT * FROM shop.t ORDER BY id",
)


@dataclass(frozen=True)
class Guest:
    """A directory that stands for a guest with a server."""

    top: Path
    server: Server
    env: dict[str, str]
    dialect: DialectName

    def load(self, *argv: str) -> str:
        return run([self.top / "load", *argv], timeout=SECONDS, env=self.env).stdout

    def execute(self, *sessions: Sequence[str]) -> str:
        """Statements, as sessions at the same time; what is printed at the end."""
        self.load("clear")
        for number, statements in enumerate(sessions):
            text = "".join(f"{statement};\n" for statement in statements)
            (self.top / f"run/sql.{number}.000000").write_text(text)
        return self.background("parts")

    def look(self) -> str:
        return run([self.top / "load", "look"], timeout=SECONDS, env=self.env).stdout

    def background(self, *argv: str) -> str:
        """A step that runs in the background; what it printed."""
        self.load(*argv)
        for _ in attempts(Deadline.after(SECONDS)):
            said = self.look()
            if said.startswith("done "):
                assert said.startswith("done 0"), said
                return said
        raise AssertionError(argv)


FILE_SYSTEMS = {
    "mke2fs": """for disk; do :; done
mkdir "$(readlink -f "$disk").fs"
""",
    "mount": """for place; do disk=${next-} next=$place; done
rmdir "$place"
ln -s "$(readlink -f "$disk").fs" "$place"
""",
    "umount": """rm "$1"
mkdir "$1"
""",
}


def moved_by(guest: Guest) -> tuple[Tablespace, ...]:
    """The tables of its server that go as files."""
    ask = guest.server.ask
    tables = [[str(value) for value in row] for row in ask(TABLES)]
    return tablespaces(tables, ask(OTHER_INDEXES), from_rows(ask(QUERY)))


def carried(one: Guest, other: Guest, *databases: str, accounts: str = "no") -> None:
    """Bring databases from one server to the other, as ``lab.lifecycle.datasets.transfer``."""
    moved = moved_by(one)
    one.execute([*rebuilding(), *(table.rebuilt() for table in moved)])
    one.background("dump", "lab-masked", accounts, *databases)

    def rows(guest: Guest) -> list[Any]:
        columns = from_rows(one.server.ask(QUERY))
        return list(rows_of(columns, f"{guest.top}/files/rows", [t.table_name for t in moved]))

    parts = [table.written() for table in rows(one)]
    one.execute([s for part in parts[::2] for s in part], [s for part in parts[1::2] for s in part])
    if moved:
        one.background("export", *(table.path for table in moved))
    files = {line.split()[1] for line in one.load("close").splitlines()}
    assert files == {table.file for table in rows(one)}
    other.load("open", "lab-masked")
    other.background("file", "first.sql")
    other.background("import")
    parts = [table.read() for table in rows(other)]
    other.execute(*([*reading(), *part] for part in parts))
    other.background("file", "last.sql")
    other.load("close")


def _programs(dialect: DialectName, into: Path) -> dict[str, str]:
    """Put a server's client programs into a directory; the environment that they need."""
    if dialect == "mysql":
        mysql_server.clients(mysql_server.kept_root(), into)
        return dict(os.environ)
    programs = [
        client("mariadb", "mariadb-client-core"),
        client("mariadb-dump", "mariadb-client"),
    ]
    for where, _ in programs:
        (into / where.name).symlink_to(where)
    return programs[0][1]


SERVERS = {"mariadb": server, "mysql": mysql_server.server}


@pytest.fixture
def dialect() -> DialectName:
    """Of both servers; a test may have another one, or both."""
    return "mariadb"


of_both = pytest.mark.parametrize("dialect", list(SERVERS))


@pytest.fixture
def guests(dialect: DialectName) -> Iterator[tuple[Guest, Guest]]:
    """Two, which have the same disk."""
    try:
        with tempfile.TemporaryDirectory(prefix="lab-gm-", dir="/tmp") as path:
            disk = Path(path, "disk")
            disk.touch()
            with SERVERS[dialect]() as one, SERVERS[dialect]() as other:
                found = []
                for number, db in enumerate((one, other)):
                    top = Path(path, str(number))
                    for name in ("run", "dev", "sys/vdb", "bin", "data"):
                        (top / name).mkdir(parents=True)
                    (top / "sys/vdb/serial").write_text("lab-masked")
                    (top / "dev/vdb").symlink_to(disk)
                    here = (
                        ("/run/lab-load", f"{top}/run"),
                        ("/sys/block/", f"{top}/sys/"),
                        ("disk=/dev/", f"disk={top}/dev/"),
                        ("/run/lab-rows", f"{top}/files"),
                        ("/run/mysqld/mysqld.pid", f"{db.directory}/pid"),
                        ("/var/lib/mysql", f"{top}/data"),
                    )
                    for name, text in FILE_SYSTEMS.items():
                        (top / "bin" / name).write_text(f"#!/bin/sh -eu\n{text}")
                        (top / "bin" / name).chmod(0o755)
                    for name in ("load", "sql", "tables", "mysql.pl"):
                        program(name, top, db.socket, *here).chmod(0o755)
                    program("dialect", top, db.socket, *here, source=DIALECTS[dialect])
                    env = _programs(dialect, top / "bin")
                    env |= {"PATH": f"{top}/bin:{os.environ['PATH']}"}
                    found.append(Guest(top, db, env, dialect))
                yield found[0], found[1]
    except NoServer as error:
        pytest.skip(str(error))


@pytest.mark.rare
@of_both
def test_triggers_see_nothing_of_the_masking(guests: tuple[Guest, Guest]) -> None:
    """Protects rows from triggers while they are masked, and all definitions from the way."""
    one, other = guests
    one.server.ask(*SCHEMA)
    before = [one.server.ask(question) for question in DEFINITIONS]
    assert [len(rows) for rows in before] == [3, 2, 1, 1, 2]
    one.load("triggers", "shop", ODD)
    assert one.server.ask(DEFINITIONS[0]) == []
    one.server.ask("UPDATE shop.t SET name = CONCAT('masked', id)")
    assert one.server.ask("SELECT COUNT(*) FROM shop.audit") == [(0,)]
    carried(one, other, "shop", ODD)
    after = [other.server.ask(question) for question in DEFINITIONS]
    assert after[:-1] == before[:-1]
    assert [row[1] for row in after[-1]] == ["masked1", "masked2"]
    # They work, in their order.
    other.server.ask("CREATE USER app@'10.%'", "GRANT ALL ON shop.* TO app@'10.%'")
    other.server.ask("UPDATE shop.t SET name = 'x' WHERE id = 1")
    assert other.server.ask("SELECT old FROM shop.audit ORDER BY id") == [
        ("masked1 first",), ("masked1;second",)]  # fmt: skip


_FILL = (
    "FROM (WITH RECURSIVE n AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < 9000)"
    " SELECT seq FROM n) filled"
)
_DEEP = {
    "mariadb": "SET SESSION max_recursive_iterations = 10000",
    "mysql": "SET SESSION cte_max_recursion_depth = 10000",
}
LARGE = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "USE shop",
    "CREATE TABLE shop.a (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(200), KEY (name))",
    f"INSERT INTO shop.a (name) SELECT CONCAT('planted', seq, REPEAT('x', 100)) {_FILL}",
    "CREATE TABLE shop.z (id INT PRIMARY KEY, a INT REFERENCES a (id), t TEXT) ROW_FORMAT=COMPACT",
    f"INSERT INTO shop.z SELECT seq, seq % 8000 + 1, REPEAT('y', 150) {_FILL}",
    "ALTER TABLE shop.z ADD late INT DEFAULT 7",
    "CREATE TABLE shop.words (id INT PRIMARY KEY, w TEXT, FULLTEXT (w))",
    f"INSERT INTO shop.words SELECT seq, REPEAT('w', 150) {_FILL}",
    "CREATE TABLE shop.`o-d` (w TEXT)",
    f"INSERT INTO shop.`o-d` SELECT REPEAT('w', 150) {_FILL}",
    "CREATE TABLE shop.v (id INT, w TEXT, l INT AS (LENGTH(w)), KEY (l))",
    f"INSERT INTO shop.v (id, w) SELECT seq, REPEAT('w', 150) {_FILL}",
    "CREATE TABLE shop.e (id INT PRIMARY KEY, w TEXT /*!80013 , KEY ((LENGTH(w)))*/)",
    f"INSERT INTO shop.e SELECT seq, REPEAT('w', 150) {_FILL}",
    "CREATE TABLE shop.p (id INT PRIMARY KEY, w TEXT) PARTITION BY HASH (id) PARTITIONS 2",
    f"INSERT INTO shop.p SELECT seq, REPEAT('w', 300) {_FILL}",
    "CREATE TABLE shop.small (id INT)",
    "INSERT INTO shop.small VALUES (4)",
    "DELETE FROM shop.a WHERE id > 8000",
    "ANALYZE TABLE shop.a, shop.z, shop.words, shop.`o-d`, shop.v, shop.e, shop.p, shop.small",
)


@pytest.mark.rare
@of_both
def test_large_tables_go_as_files(guests: tuple[Guest, Guest]) -> None:
    """Protects masked data from loss, and from what rows were before, which pages keep."""
    one, other = guests
    one.server.ask(_DEEP[one.dialect], *LARGE)
    moved = moved_by(one)
    # That of an index on an expression has a column that nobody sees.
    others = [] if one.dialect == "mysql" else ["shop/e"]
    assert [table.path for table in moved] == ["shop/a", *others, "shop/z"]
    last = len(moved) - 1
    assert [0, last] in independent(moved, from_rows(one.server.ask(QUERY)))
    one.server.ask("UPDATE shop.a SET name = CONCAT('masked', id)")
    one.load("triggers", "shop")
    carried(one, other, "shop")
    table = other.top / "files.seen"
    shutil.copytree(f"{(one.top / 'dev/vdb').resolve()}.fs/tables", table)
    data = (table / "shop/a.ibd").read_bytes()
    assert b"masked8000" in data
    assert b"planted" not in data
    names = ("a", "z", "words", "`o-d`", "v", "e", "p", "small")
    sums = "CHECKSUM TABLE " + ", ".join(f"shop.{name}" for name in names) + " EXTENDED"
    assert other.server.ask(sums) == one.server.ask(sums)
    assert {row[-1] for row in other.server.ask("CHECK TABLE shop.a, shop.z EXTENDED")} == {"OK"}
    assert other.server.ask("SELECT id FROM shop.a WHERE name = 'masked77'") == [(77,)]
    following = ("INSERT INTO shop.a (name) VALUES ('next')", "SELECT MAX(id) FROM shop.a")
    assert other.server.ask(*following) == one.server.ask(*following)
    with pytest.raises(Exception, match="foreign key constraint fails"):
        other.server.ask("INSERT INTO shop.z VALUES (9001, 8500, '', 1)")
    datadir = Path(other.server.ask("SELECT @@datadir")[0][0])
    assert list(datadir.glob("shop/*.cfg")) == []


ACCOUNTS = (
    "CREATE USER app@'10.%' IDENTIFIED BY 'x' REQUIRE SSL",
    "CREATE USER o@localhost ACCOUNT LOCK",
    "CREATE ROLE boss, other",
    "GRANT SELECT ON shop.* TO boss",
    "GRANT boss TO app@'10.%'",
    "GRANT EXECUTE ON PROCEDURE shop.look TO app@'10.%'",
    "GRANT SELECT (id) ON shop.t TO o@localhost",
)
MORE_ACCOUNTS = {
    "mariadb": ("SET DEFAULT ROLE boss FOR app@'10.%'",),
    "mysql": (
        "GRANT other TO app@'10.%' WITH ADMIN OPTION",
        "ALTER USER app@'10.%' DEFAULT ROLE boss, other",
        "ALTER USER app@'10.%' COMMENT 'its DEFAULT ROLE `a`@`b`'",
        "SET GLOBAL partial_revokes = ON",
        "GRANT SELECT ON *.* TO o@localhost",
        "REVOKE SELECT ON shop.* FROM o@localhost",
        "GRANT XA_RECOVER_ADMIN ON *.* TO o@localhost WITH GRANT OPTION",
    ),
}
OWN = (
    "CREATE USER IF NOT EXISTS lab@'%' IDENTIFIED VIA mysql_native_password USING 'invalid'"
    " ACCOUNT LOCK"
)
_GRANTS = ("SHOW GRANTS FOR app@'10.%'", "SHOW GRANTS FOR o@localhost", "SHOW GRANTS FOR boss")
GRANTS = {
    "mariadb": (
        (
            "SELECT user, host, is_role, authentication_string, default_role, ssl_type"
            " FROM mysql.user"
            " WHERE user NOT IN ('root', 'mysql', 'lab', 'mariadb.sys') ORDER BY 1, 2"
        ),
        *_GRANTS,
        (  # its date is that of its server
            "SELECT JSON_REMOVE(priv, '$.password_last_changed') FROM mysql.global_priv"
            " WHERE user = 'lab' AND host = '%'"
        ),
    ),
    "mysql": (
        "SHOW CREATE USER app@'10.%'",
        "SHOW CREATE USER o@localhost",
        "SHOW CREATE USER boss",
        *_GRANTS,
        "SELECT * FROM mysql.default_roles ORDER BY 1, 2, 3, 4",
        (
            "SELECT user, host, plugin, authentication_string, account_locked FROM mysql.user"
            " ORDER BY 1, 2"
        ),
    ),
}


@pytest.mark.rare
@of_both
def test_accounts_are_carried_and_definers_may_be_missing(guests: tuple[Guest, Guest]) -> None:
    """Protects masked data from losing accounts, and their dump from error 1449."""
    one, other = guests
    odd = "CREATE DEFINER = gone@'10.20.%' VIEW shop.plates AS SELECT id FROM shop.t"
    if one.dialect == "mariadb":  # the other server has an image's accounts
        one.server.ask(OWN)
        other.server.ask(OWN)
    one.server.ask(*SCHEMA, odd, *ACCOUNTS, *MORE_ACCOUNTS[one.dialect])
    one.load("triggers", "shop", ODD)
    carried(one, other, "shop", ODD, accounts="yes")
    for question in GRANTS[one.dialect]:
        assert other.server.ask(question) == one.server.ask(question), question
    assert other.server.ask(
        "SELECT definer FROM information_schema.views WHERE table_name = 'plates'"
    ) == [("gone@10.20.%",)]
    # No role that the program needs meanwhile is left.
    assert ("mariadb_dump_import_role",) not in other.server.ask("SELECT user FROM mysql.user")


def test_what_a_server_was_to_others_is_removed(guests: tuple[Guest, Guest]) -> None:
    """Protects labs from servers that connect to the one that was dumped."""
    one, _ = guests
    one.server.ask(
        "CHANGE MASTER 'o''ne' TO MASTER_HOST = 'db.example', MASTER_USER = 'x'",
        "CHANGE MASTER TO MASTER_HOST = 'db2.example', MASTER_LOG_FILE = 'b.1', MASTER_LOG_POS = 4",
        "SET GLOBAL gtid_slave_pos = '0-7-42'",
    )
    run_links = run([one.top / "load", "links"], timeout=SECONDS, env=one.env)
    assert sorted(run_links.stdout.splitlines()) == ["link ", "link o'ne", "position 0-7-42"]
    assert one.server.ask("SHOW ALL SLAVES STATUS") == []
    assert one.server.ask("SELECT @@gtid_slave_pos") == [("",)]


@pytest.mark.rare
@pytest.mark.parametrize("dialect", ["mysql"])
def test_what_a_server_of_mysql_was_to_others_is_removed(guests: tuple[Guest, Guest]) -> None:
    """Protects labs: their servers would connect elsewhere, and count what a dump has executed."""
    one, _ = guests
    executed = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,4e11fa47-71ca-11e1-9e33-c80aa9429562:7"
    one.server.ask(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'db2.example', SOURCE_LOG_FILE = 'b.1',"
        " SOURCE_LOG_POS = 4",
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'db.example' FOR CHANNEL 'o''ne'",
        f"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '{executed}'",
    )
    said = one.load("links")
    assert sorted(said.splitlines()) == ["link ", "link o'ne", f"position {executed}"]
    assert one.server.ask("SHOW REPLICA STATUS") == []
    assert one.server.ask("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged") == [("", "")]
    assert one.load("links") == ""


@dataclass(frozen=True)
class _Asked:
    """What asks a server in a guest."""

    server: Server
    said: list[str]
    dialect: DialectName

    @property
    def engine(self) -> Any:
        return SimpleNamespace(name=self.dialect)

    @property
    def ctx(self) -> Any:
        hear = Progress(lambda event: self.said.append(event.text))
        return SimpleNamespace(progress=hear)

    def rows(self, question: str) -> list[list[str]]:
        return [[str(value) for value in row] for row in self.server.ask(question)]

    def forget_links(self) -> list[str]:
        return ["link ", "position 0-7-42"]


@pytest.mark.rare
@of_both
def test_what_is_outside_of_databases_is_said(guests: tuple[Guest, Guest]) -> None:
    """Protects whoever makes a dataset from what is lost, changed or kept without a word."""
    one, _ = guests
    said: list[str] = []
    asked: Any = _Asked(one.server, said, one.dialect)
    before = outside(asked, masked=True)
    assert not before.definers
    said.clear()
    one.server.ask(
        *SCHEMA,
        *ACCOUNTS,
        *MORE_ACCOUNTS[one.dialect],
        "CREATE DEFINER = gone@'10.20.%' VIEW shop.plates AS SELECT id FROM shop.t",
        "CREATE DEFINER = boss VIEW shop.roles AS SELECT id FROM shop.t",
        "CREATE DEFINER = no@where SQL SECURITY INVOKER VIEW shop.mine AS SELECT id FROM shop.t",
        "CREATE SERVER far FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'h')",
        "SET GLOBAL event_scheduler = ON",
    )
    found = outside(asked, masked=True)
    roles = {"mariadb": {"boss", "other"}, "mysql": {"'boss'@'%'", "'other'@'%'"}}
    assert set(found.accounts) - set(before.accounts) == {
        "'app'@'10.%'", "'o'@'localhost'", *roles[one.dialect]}  # fmt: skip
    assert found.definers == ("gone@10.20.%",)
    assert [re.split(r"[:;] ", text)[0] for text in said] == [
        "removed what the source's server was to others",
        "removed what the source's server was to others",
        "the SQL sets global variables, which end with the server that loads it",
        "masked data have neither plugins nor foreign servers of the source",
        "accounts of the source are in the dataset",
        said[-1].split(":")[0],
    ]
    assert "no account, and fail with error 1449: gone@10.20.%; give a file" in said[-1]
    assert "event_scheduler" in said[2]
    assert "far" in said[3]


OWN_DEFAULTS = (
    "autocommit = 0",
    "sql_mode = 'ANSI_QUOTES'",
    "sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "sql_mode = 'ORACLE'",
)
PEOPLE = """[tables."shop.people"]
id = "keep"
name = "shuffle"
mail = "email"
born = "null"
"""


@pytest.mark.parametrize(
    "default",
    [pytest.param(one, marks=[] if "auto" in one else pytest.mark.rare) for one in OWN_DEFAULTS],
)
def test_masking_on_a_server_with_defaults_of_its_own(
    guests: tuple[Guest, Guest], default: str
) -> None:
    """Protects real values from being in the masked data: options of servers are users'.

    Without autocommit what a session has masked, or loaded, would go with the session.
    """
    for guest in guests:
        guest.server.ask(f"SET GLOBAL {default}")
    one, other = guests
    one.server.ask(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.people"
        " (id INT PRIMARY KEY, name VARCHAR(60), mail VARCHAR(90), born DATE)",
        "INSERT INTO shop.people VALUES (1, 'A\"da', 'ada@real.test', '1980-01-01'),"
        " (2, 'Gr`ace', 'grace@real.test', NULL), (3, 'Back/slash', 'back@real.test', NULL)",
        "UPDATE shop.people SET name = REPLACE(name, '/', CHAR(92))",
    )
    secret = b"a secret of a dataset"
    masking = plan(from_rows(one.server.ask(QUERY)), parse(PEOPLE.encode(), "r.toml"), binds=False)
    own = secret_statements(secret)
    created = {"shop.people": one.server.ask("SHOW CREATE TABLE shop.people")[0][1]}
    one.execute([*own, *masking.first(secret), FORGET])
    one.execute([*own, *masking.masked(range(len(masking.tables)), created), FORGET])
    one.execute([LAST])
    carried(one, other, "shop")
    rows = other.server.ask("SELECT id, name, mail, born FROM shop.people ORDER BY id")
    assert [row[0] for row in rows] == [1, 2, 3]
    assert {row[1] for row in rows} == {'A"da', "Gr`ace", "Back\\slash"}
    assert {row[3] for row in rows} == {None}
    assert not [row[2] for row in rows if "real" in row[2] or "@example." not in row[2]]


def test_masking_says_how_far_it_is(guests: tuple[Guest, Guest]) -> None:
    """Protects who waits for a large table: what a statement selected is seen while it runs."""
    one, _ = guests
    one.load("clear")
    (one.top / "run/sql.0.000000").write_text("SELECT 1;\nSELECT 2;\nDO GET_LOCK('lab', 60);\n")
    (one.top / "run/sql.1.000000").write_text("SELECT 3;\n")
    with one.server.connect() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('lab', 0)")
        one.load("parts")
        for _ in attempts(Deadline.after(SECONDS)):
            if one.look() == "read 5\n":
                break
        else:
            raise AssertionError(one.look())
    for _ in attempts(Deadline.after(SECONDS)):
        if one.look().startswith("done 0"):
            return
    raise AssertionError(one.look())


def test_how_far_rows_are_read(guests: tuple[Guest, Guest]) -> None:
    """Protects who waits for one large table: bytes are counted while its statement runs."""
    one, other = guests
    one.background("dump", "lab-masked", "no")
    one.load("close")
    other.load("open", "lab-masked")
    rows = other.top / "files/rows/000000"
    rows.write_text("1\n22\n333\n")
    other.server.ask(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT)",
        "CREATE TRIGGER shop.wait BEFORE INSERT ON shop.t FOR EACH ROW DO GET_LOCK('lab', 60)",
    )
    other.load("clear")
    part = other.top / "run/sql.0.000000"
    part.write_text(f"SELECT 1000;\nLOAD DATA INFILE '{rows}' INTO TABLE shop.t;\n")
    with other.server.connect() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('lab', 0)")
        other.load("parts")
        for _ in attempts(Deadline.after(SECONDS)):
            if (said := other.look()) == "read 1009\n":
                break
        else:
            raise AssertionError(said)
    for _ in attempts(Deadline.after(SECONDS)):
        if (said := other.look()).startswith("done 0"):
            return
    raise AssertionError(said)


def test_the_first_session_that_fails_is_the_end(guests: tuple[Guest, Guest]) -> None:
    one, _ = guests
    one.load("clear")
    (one.top / "run/sql.0.000000").write_text("DO SLEEP(3600);\n")
    (one.top / "run/sql.1.000000").write_text("SELECT no_such_thing;\n")
    one.load("parts")
    for _ in attempts(Deadline.after(SECONDS)):
        if (said := one.look()).startswith("done 1\n"):
            assert "ERROR 1054" in said
            assert "no_such_thing" in said
            return
    raise AssertionError(said)
