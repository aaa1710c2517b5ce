"""Protects data: what MySQL Shell has dumped is loaded as it was, or refused with the file."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.config.enginefile import DialectName
from lab.datasets.accounts import translated
from lab.datasets.shell import Marks, normal
from lab.datasets.source import DumpDirectory, parse
from lab.errors import CommandFailed, InvalidSpec
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.spool import Spool
from lab.run import run
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, client, server
from tests.support.mysql_shell import Shell

SCHEMA = r"""
CREATE DATABASE shop CHARACTER SET latin1
CREATE DATABASE crm
CREATE DATABASE `odd/@ db`
CREATE TABLE shop.people (id INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(50) CHARACTER SET utf8mb4,
 old VARCHAR(20), kanji VARCHAR(20) CHARACTER SET sjis, bin BLOB, bits BIT(10), fixed BINARY(4),
 place POINT, kind ENUM('a', 'ü'), ratio DOUBLE, price DECIMAL(30,10), at TIMESTAMP(3) NULL,
 day DATE, doc JSON, next INT AS (price + 1) VIRTUAL, kept INT AS (price + 2) STORED,
 `odd ``name` INT COMMENT 'it''s')
INSERT INTO shop.people (id, text, old, kanji, bin, bits, fixed, place, kind, ratio, price, at, day,
 doc) VALUES (1, 'tab\tnl\nbs\\q\'z\0e\r\n€😀,"', 'äß\\', '表ソ', UNHEX('00010A0D5C27090B1A225C4E'),
 b'1010101010', 'ab', POINT(1, 2), 'ü', 1e-300/3, 123456789.0123456789,
 '2020-01-01 00:00:00.125', '2020-02-30', '{"a": "b\\"c"}')
INSERT INTO shop.people (id, text, old, bin) VALUES (2, NULL, '\\N', ''), (3, '\\N', 'NULL', '\''),
 (-1, '%_\\%\\_', '\t\t\n\n', '\\\t\\'), (4, ',(),;', '''),(''', '-- \n;\n/*')
INSERT INTO shop.people (id, kind) VALUES (0, '')
INSERT INTO shop.people (id, bin) WITH RECURSIVE n AS (SELECT 1000 AS i UNION ALL SELECT i + 1
 FROM n WHERE i < 1255) SELECT i, CONCAT(CHAR(i - 1000), REPEAT(CONCAT(CHAR(i - 1000), '\\',
 CHAR(i - 999), '\n'), IF(i = 1050, 400000, 9)), CHAR(92)) FROM n
CREATE TABLE shop.orders (id INT, person INT, FOREIGN KEY (person) REFERENCES people (id))
INSERT INTO shop.orders VALUES (1, 1), (2, NULL)
CREATE TABLE shop.`empty` (id INT)
CREATE TABLE shop.`a.b@c/` (id INT)
INSERT INTO shop.`a.b@c/` VALUES (7)
CREATE TABLE shop.parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3
INSERT INTO shop.parts VALUES (1), (2), (3), (4)
CREATE TABLE `odd/@ db`.t (id INT)
INSERT INTO `odd/@ db`.t VALUES (8)
CREATE TABLE crm.log (id INT AUTO_INCREMENT PRIMARY KEY, n INT)
CREATE FUNCTION shop.f() RETURNS INT DETERMINISTIC RETURN 1
CREATE PROCEDURE shop.p() BEGIN SELECT 1; SELECT ';'; END
CREATE VIEW shop.z_view AS SELECT id, shop.f() FROM shop.people
CREATE VIEW crm.a_view AS SELECT id FROM shop.z_view
CREATE TRIGGER shop.after_people AFTER INSERT ON shop.people FOR EACH ROW
 BEGIN INSERT INTO crm.log (n) VALUES (NEW.id); SET @x = ';'; END
"""
DATABASES = ("shop", "crm", "odd/@ db")
SESSION = "SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+03:00'"
USERS = """\
--
-- Dumping user accounts
--

-- begin user 'app'@'%'
CREATE USER IF NOT EXISTS `app`@`%` IDENTIFIED WITH 'mysql_native_password' AS\
 '*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29' REQUIRE NONE PASSWORD\
 EXPIRE DEFAULT ACCOUNT UNLOCK PASSWORD HISTORY DEFAULT PASSWORD REQUIRE CURRENT DEFAULT;
-- end user 'app'@'%'

-- begin user 'new'@'10.%'
CREATE USER IF NOT EXISTS `new`@`10.%` IDENTIFIED WITH 'caching_sha2_password' AS\
 '$A$005$\\'x;\ty' REQUIRE SSL WITH MAX_QUERIES_PER_HOUR 7 PASSWORD EXPIRE NEVER ACCOUNT UNLOCK\
 ATTRIBUTE '{"comment": "it''s"}';
-- end user 'new'@'10.%'

CREATE USER IF NOT EXISTS `reader`@`%` IDENTIFIED WITH 'caching_sha2_password' REQUIRE NONE\
 PASSWORD EXPIRE ACCOUNT LOCK PASSWORD HISTORY DEFAULT;
CREATE USER IF NOT EXISTS `root`@`localhost` IDENTIFIED WITH 'caching_sha2_password' AS 'x'\
 REQUIRE NONE;
CREATE USER IF NOT EXISTS 'lab'@'10.0.0.1' IDENTIFIED WITH 'mysql_native_password';
-- begin grants 'app'@'%'
GRANT SELECT, BACKUP_ADMIN, UPDATE (`odd ``name`) ON `shop`.`people` TO `app`@`%`\
 WITH GRANT OPTION;
GRANT `reader`@`%` TO `app`@`%`;
GRANT APPLICATION_PASSWORD_ADMIN,ROLE_ADMIN ON *.* TO `app`@`%`;
GRANT SELECT ON `mysql`.`user` TO `app`@`%`;
GRANT EXECUTE ON PROCEDURE `shop`.`p` TO `app`@`%`;
-- end grants 'app'@'%'
GRANT SELECT ON `shop`.* TO `reader`@`%`;
GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION;
GRANT SELECT ON *.* TO `new`@`10.%`;
REVOKE SELECT ON `crm`.* FROM `new`@`10.%`;
SET DEFAULT ROLE `reader`@`%` TO `app`@`%`;
"""


@pytest.fixture(scope="module")
def db() -> Iterator[Server]:
    try:
        with server() as found:
            yield found
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def full(db: Server) -> Iterator[Server]:
    drop(db)
    db.ask(SESSION, *SCHEMA.strip().replace("\n ", " ").split("\n"))
    yield db
    drop(db)


def drop(db: Server) -> None:
    for name in DATABASES:
        db.ask(f"DROP DATABASE IF EXISTS `{name}`")


def facts(db: Server) -> dict[str, Any]:
    """All that a dump must keep."""
    tables = db.ask(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE"
        " table_schema IN ('shop', 'crm', 'odd/@ db') ORDER BY 1, 2"
    )
    found: dict[str, Any] = {}
    for schema, name, kind in tables:
        full = f"`{schema}`.`{name}`"
        if kind == "BASE TABLE":
            found[full] = db.ask(f"CHECKSUM TABLE {full} EXTENDED")
        made = db.ask("SET NAMES utf8mb4", f"SHOW CREATE TABLE {full}")
        # Not the fourth column of a view: the collation of the session that made it, which is the
        # client's default.
        found[f"{full}: definition"] = [row[:3] for row in made]
    for what in ("trigger", "routine"):
        columns = "trigger_name, action_statement" if what == "trigger" else "routine_name"
        found[what] = db.ask(
            f"SELECT {columns} FROM information_schema.{what}s WHERE {what}_schema = 'shop'"
            " ORDER BY 1"
        )
    return found


def written(top: Path, to: Path, dialect: DialectName = "mariadb") -> Spool:
    return spools.write(parse(str(top)), [], to, "shop", lambda _: None, dialect=dialect)


def loaded(db: Server, spool: Spool) -> None:
    drop(db)
    found, env = client("mariadb", "mariadb-client-core")
    argv = [str(found), "--no-defaults", "--skip-ssl", f"--socket={db.socket}", "-uroot", "--batch"]
    argv += ["--binary-mode", "--default-character-set=utf8mb4"]
    try:
        run(argv, timeout=60, env=env, stdin=spool.path.read_bytes())
    except CommandFailed as error:
        raise AssertionError(error.stderr[-400:]) from None


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(Shell(), id="whole", marks=pytest.mark.rare),
        pytest.param(Shell(chunk=50, base64=False), id="chunks"),
        pytest.param(
            Shell(compression="gzip", chunk=1, partitions=False), id="gzip", marks=pytest.mark.rare
        ),
        pytest.param(
            Shell(compression="none", version="1.0.0"), id="plain", marks=pytest.mark.rare
        ),
        pytest.param(
            Shell(value=",", enclosing='"', row="\r\n", chunk=100), id="csv", marks=pytest.mark.rare
        ),
        pytest.param(Shell(value="|:", escape="~", row="%%"), id="other", marks=pytest.mark.rare),
    ],
)
def test_what_mysql_shell_writes_is_loaded_as_it_was(
    full: Server, tmp_path: Path, shell: Shell
) -> None:
    before = facts(full)
    top = shell.dump(full, tmp_path / "dump", DATABASES)
    spool = written(top, tmp_path / "spool")
    loaded(full, spool)
    assert facts(full) == before
    assert full.ask("SELECT COUNT(*) FROM crm.log") == [(0,)], "triggers are made after rows"
    assert set(spool.found.databases) == set(DATABASES)
    assert (spool.found.dialect, spool.found.version) == ("mysql", "8.4.7")


def test_accounts_become_those_of_mariadb(full: Server, tmp_path: Path) -> None:
    top = Shell(users=USERS).dump(full, tmp_path / "dump", DATABASES)
    spool = written(top, tmp_path / "spool")
    try:
        loaded(full, spool)
        users = full.ask(
            "SELECT user, host, is_role, authentication_string FROM mysql.user WHERE user IN"
            " ('app', 'new', 'reader', 'lab') ORDER BY 1"
        )
        native = "*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29"
        assert users == [
            ("app", "%", "N", native), ("new", "10.%", "N", "invalid"), ("reader", "", "Y", ""),
        ]  # fmt: skip
        assert {text for (text,) in full.ask("SHOW GRANTS FOR app@'%'")} == {
            f"GRANT USAGE ON *.* TO `app`@`%` IDENTIFIED BY PASSWORD '{native}'",
            "GRANT SELECT, UPDATE (`odd ``name`) ON `shop`.`people` TO `app`@`%` WITH GRANT OPTION",
            "GRANT EXECUTE ON PROCEDURE `shop`.`p` TO `app`@`%`",
            "GRANT `reader` TO `app`@`%`",
            "SET DEFAULT ROLE `reader` FOR `app`@`%`",
        }
        [(create,)] = full.ask("SHOW CREATE USER new@'10.%'")
        for part in ("REQUIRE SSL", "MAX_QUERIES_PER_HOUR 7", "ACCOUNT LOCK"):
            assert part in create
        assert ("GRANT SELECT ON `shop`.* TO `reader`",) in full.ask("SHOW GRANTS FOR reader")
    finally:
        for name in ("USER IF EXISTS app@'%', new@'10.%'", "ROLE IF EXISTS reader"):
            full.ask(f"DROP {name}")
    notes = "\n".join(spool.found.notes)
    assert "new@10.% (caching_sha2_password)" in notes
    assert "BACKUP_ADMIN, APPLICATION_PASSWORD_ADMIN, ROLE_ADMIN" in notes
    assert "no partial revokes: new@10.%" in notes
    assert "1 statements" in notes


def test_accounts_stay_for_mysql_in_their_lines() -> None:
    script = translated(USERS.encode(), "x", "mysql")
    lines, before = script.text.decode().splitlines(), USERS.splitlines()
    assert not script.notes
    for line, was in zip(lines, before, strict=False):
        ours = was.startswith(("CREATE", "GRANT", "REVOKE", "SET"))
        if not ours:
            assert not line.strip()
        elif "root" in was or "lab" in was:
            assert line == "DO 0; "
        else:
            assert line.rstrip() == was


@pytest.mark.parametrize(
    ("version", "is_locked"), [("8.0.40", False), ("8.4.5", True), ("", False)]
)
def test_accounts_whose_plugin_mysql_has_removed_are_locked(version: str, is_locked: bool) -> None:
    """Protects loads of dumps of older servers: the server would refuse the plugin."""
    script = translated(USERS.encode(), "x", "mysql", version)
    (line,) = [one for one in script.text.splitlines() if b"CREATE USER" in one and b"app" in one]
    assert (b"mysql_native_password" in line) is not is_locked
    assert line.endswith(b" PASSWORD HISTORY DEFAULT PASSWORD REQUIRE CURRENT DEFAULT; ")
    assert (b" BY RANDOM PASSWORD " in line) is is_locked
    assert (b" ACCOUNT LOCK PASSWORD HISTORY" in line) is is_locked
    assert b"'caching_sha2_password' AS" in script.text, "others stay"
    assert bool(script.notes) is is_locked


def test_many_accounts_take_as_long_each_as_few() -> None:
    """Protects the host from a script of short statements, each of which went through all."""

    def seconds(statements: int) -> float:
        began = time.thread_time()
        script = translated(b"DROP USER x;\n" * statements, "x", "mysql")
        assert script.text.count(b"\n") == statements
        return time.thread_time() - began

    few = min(seconds(2_000) for _ in range(3))
    assert seconds(40_000) < 20 * 5 * few


OF_OLDER = """\
CREATE USER IF NOT EXISTS `all`@`%` IDENTIFIED WITH 'caching_sha2_password' REQUIRE NONE;
CREATE USER IF NOT EXISTS `ldap`@`%` IDENTIFIED WITH 'authentication_ldap_simple' AS 'cn=x'\
 REQUIRE NONE PASSWORD EXPIRE DEFAULT ACCOUNT UNLOCK PASSWORD HISTORY DEFAULT;
CREATE USER IF NOT EXISTS `two`@`%` IDENTIFIED WITH 'caching_sha2_password' AS 'x' AND\
 IDENTIFIED WITH 'authentication_fido' REQUIRE NONE PASSWORD EXPIRE DEFAULT ACCOUNT UNLOCK;
GRANT SELECT, INSERT ON *.* TO `all`@`%` WITH GRANT OPTION;
GRANT BACKUP_ADMIN,SET_USER_ID,VERSION_TOKEN_ADMIN ON *.* TO `all`@`%` WITH GRANT OPTION;
GRANT FIREWALL_USER ON *.* TO `ldap`@`%`;
GRANT SELECT (`a_b`) ON `shop`.`t` TO `all`@`%`;
REVOKE INSERT ON `crm`.* FROM `all`@`%`;
"""


def test_accounts_of_older_and_of_enterprise_servers() -> None:
    """Protects loads: MySQL refuses privileges and plugins that it does not have."""
    script = translated(OF_OLDER.encode(), "x", "mysql", "9.7.4")
    locked, privileges = script.notes
    assert "ldap@% (authentication_ldap_simple), two@% (caching_sha2_password)" in locked
    assert privileges.endswith("not granted: VERSION_TOKEN_ADMIN, FIREWALL_USER")
    try:
        with mysql_server.server() as server:
            create = "CREATE TABLE shop.t (a_b INT)"
            server.ask("CREATE DATABASE shop", create, *script.text.decode().split("; ")[:-1])
            granted = {row[0] for row in server.ask("SHOW GRANTS FOR `all`@`%`")}
            locks = "SELECT user FROM mysql.user WHERE account_locked = 'Y' AND host = '%'"
            assert [row[0] for row in server.ask(f"{locks} ORDER BY 1")] == ["lab", "ldap", "two"]
    except NoServer as reason:
        pytest.skip(str(reason))
    dynamic = "ALLOW_NONEXISTENT_DEFINER,BACKUP_ADMIN,SET_ANY_DEFINER"
    assert f"GRANT {dynamic} ON *.* TO `all`@`%` WITH GRANT OPTION" in granted
    assert "REVOKE INSERT ON `crm`.* FROM `all`@`%`" in granted
    older = translated(OF_OLDER.encode(), "x", "mysql", "8.0.36").text
    assert b"GRANT BACKUP_ADMIN, SET_USER_ID ON" in older


def test_names_that_are_too_long_for_a_file(db: Server, tmp_path: Path) -> None:
    schema, tables = "'" * 40, ["'" * 48 + end for end in "ab"]
    try:
        db.ask(f"CREATE DATABASE `{schema}`")
        for number, table in enumerate(tables):
            db.ask(f"CREATE TABLE `{schema}`.`{table}` (i INT)")
            db.ask(f"INSERT INTO `{schema}`.`{table}` VALUES ({number})")
        top = Shell().dump(db, tmp_path / "dump", [schema])
        assert max(len(path.name) for path in top.iterdir()) < 255
        spool = written(top, tmp_path / "spool")
        db.ask(f"DROP DATABASE `{schema}`")
        loaded(db, spool)
        assert db.ask(f"SELECT i FROM `{schema}`.`{tables[1]}`") == [(1,)]
    finally:
        db.ask(f"DROP DATABASE IF EXISTS `{schema}`")


# Directories that are made by hand

FORMAT = {
    "columns": ["a", "b"], "fieldsTerminatedBy": "\t", "fieldsEnclosedBy": "",
    "fieldsEscapedBy": "\\", "linesTerminatedBy": "\n", "defaultCharacterSet": "utf8mb4",
}  # fmt: skip
CREATE = "CREATE TABLE IF NOT EXISTS `t` (\n  `a` int,\n  `b` text\n);\n"


def of_shell(top: Path, rows: bytes = b"1\tx\n2\ty\n") -> Path:
    """A directory of one table."""
    top.mkdir()
    table = {"options": FORMAT, "extension": "tsv", "chunking": False, "compression": "none"}
    for name, text in {
        "@.json": json.dumps({"schemas": ["shop"], "basenames": {"shop": "shop"}}),
        "@.done.json": json.dumps({"chunkFileBytes": {"shop@t.tsv": len(rows)}}),
        "shop.json": json.dumps({"schema": "shop", "tables": ["t"], "basenames": {"t": "shop@t"}}),
        "shop.sql": "CREATE DATABASE `shop`;\nUSE shop;\n",
        "shop@t.json": json.dumps(table),
        "shop@t.sql": CREATE,
    }.items():
        (top / name).write_text(text)
    (top / "shop@t.tsv").write_bytes(rows)
    return top


def changed(path: Path, **values: object) -> None:
    """Change keys of a description."""
    found = json.loads(path.read_text())
    for key, value in values.items():
        inner = found["options"] if key in FORMAT or key == "decodeColumns" else found
        inner[key] = value
    path.write_text(json.dumps(found))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "unfinished": (lambda top: (top / "@.done.json").unlink(), "has not finished", ""),
    "no rows": (lambda top: (top / "shop@t.tsv").unlink(), "is missing", "shop@t.tsv"),
    "no table": (lambda top: (top / "shop@t.sql").unlink(), "is missing", "shop@t.sql"),
    "no schema": (lambda top: (top / "shop.sql").unlink(), "is missing", "shop.sql"),
    "no format": (lambda top: (top / "shop@t.json").unlink(), "is missing", "shop@t.json"),
    "cut rows": (lambda top: truncate(top / "shop@t.tsv"), "the dump says 8", "shop@t.tsv"),
    "cut script": (lambda top: truncate(top / "shop@t.sql"), "truncated", "shop@t.sql"),
    "cut description": (lambda top: truncate(top / "shop.json"), "truncated", "shop.json"),
    "deep": (lambda top: (top / "shop.json").write_text("[" * 99999), "no desc", "shop.json"),
    "chunks": (
        lambda top: changed(top / "shop@t.json", extension="txt", chunking=True),
        "is missing", "shop@t@@0.txt",
    ),
    "outside": (
        lambda top: changed(top / "@.json", basenames={"shop": "../shop"}),
        "cannot be the name of a file", "@.json",
    ),
    "own": (lambda top: changed(top / "@.json", schemas=["mysql"]), "mysql.json is missing", ""),
    "a name": (lambda top: changed(top / "@.json", schemas=["x" * 65]), "cannot be a name", ""),
    "extension": (
        lambda top: changed(top / "shop@t.json", extension="/etc/passwd"), "extension", "t.json"
    ),
    "compression": (lambda top: changed(top / "shop@t.json", compression="lz4"), "lz4", "t.j"),
    "decoding": (
        lambda top: changed(top / "shop@t.json", decodeColumns={"b": "LOAD_FILE(@b)"}),
        "LOAD_FILE", "shop@t.json",
    ),
    "charset": (
        lambda top: changed(top / "shop@t.json", defaultCharacterSet="sjis"), "sjis", "shop@t.json"
    ),
    "marks": (
        lambda top: changed(top / "shop@t.json", fieldsEscapedBy=""), "distinguished", "t.json"
    ),
    "columns": (lambda top: changed(top / "shop@t.json", columns=[]), "columns", "shop@t.json"),
    "data only": (lambda top: changed(top / "shop.json", includesDdl=False), "definitions", "shop"),
    "triggers": (
        lambda top: changed(top / "shop@t.json", triggers=["x"]), "missing", "shop@t.triggers.sql"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_directory_is_refused_with_the_file(tmp_path: Path, case: str) -> None:
    top = of_shell(tmp_path / "dump")
    broken, said, file = BROKEN[case]
    broken(top)
    with pytest.raises(InvalidSpec, match=said) as failure:
        written(top, tmp_path / "spool")
    assert file in failure.value.what


def test_a_database_of_the_server_is_refused(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    changed(top / "@.json", schemas=["mysql"], basenames={"mysql": "shop"})
    with pytest.raises(InvalidSpec, match="the server's own database mysql"):
        written(top, tmp_path / "spool")


def test_a_row_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump", b"1\tx\n2\n")
    with pytest.raises(InvalidSpec, match=r"dump/shop@t.tsv: line 2 has 1 values"):
        written(top, tmp_path / "spool")


def test_a_chunk_that_is_missing_is_refused(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    changed(top / "shop@t.json", chunking=True)
    (top / "shop@t.tsv").rename(top / "shop@t@0.tsv")
    (top / "shop@t@@2.tsv").write_bytes(b"")
    with pytest.raises(InvalidSpec, match=r"shop@t@@1.tsv is missing"):
        written(top, tmp_path / "spool")


def test_a_damaged_chunk_is_refused(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    changed(top / "shop@t.json", extension="tsv.gz", compression="gzip")
    (top / "shop@t.tsv.gz").write_bytes(gzip.compress(b"1\tx\n")[:-4])
    with pytest.raises(InvalidSpec, match=r"shop@t.tsv.gz is truncated"):
        written(top, tmp_path / "spool")


def test_a_refused_statement_is_of_a_file_and_line(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    (top / "@.users.sql").write_text(USERS)
    spool = written(top, tmp_path / "spool")
    data = spool.path.read_bytes()
    for text, said, secret in (
        (b"CREATE TABLE", "dump/shop@t.sql: statement 1, at line 1", False),
        (b"INSERT", "dump/shop@t.tsv: statement 1, at line 1", False),
        (b"CREATE USER", "dump/@.users.sql: statement 1, at line 6", True),
    ):
        line = data.count(b"\n", 0, data.index(text)) + 1
        assert spool.blame([data], line) == (said, secret)


def test_tables_alone_make_their_database(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    (top / "shop.sql").unlink()
    changed(top / "@.json", origin="dumpTables")
    spool = written(top, tmp_path / "spool")
    assert spool.path.read_bytes().count(b"CREATE DATABASE IF NOT EXISTS `shop`") == 1


def test_gtids_are_not_taken_over_without_a_word(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    (top / "@.sql").write_text("-- MySQLShell dump\n")
    changed(top / "@.json", gtidExecuted="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,\na:7")
    (note,) = written(top, tmp_path / "spool").found.notes
    assert "GTIDs are not taken over: '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,a:7'" in note


def test_a_directory_is_known(tmp_path: Path) -> None:
    top = of_shell(tmp_path / "dump")
    assert parse(str(top)) == DumpDirectory(top, "mysqlsh")
    shutil.rmtree(top)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_values_of_other_formats(size: int) -> None:
    text = b'"a\\,b","c\\"d\te","\\0\\Z\\n"\r\n\\N,"\\N","x\\\\"\r\n"",y,\\Nx\r\n'
    marks = Marks(b",", b'"', b"\\", b"\r\n")
    data = (text[at : at + size] for at in range(0, len(text), size))
    assert b"".join(normal(data, marks, "x")).split(b"\n") == [
        b'a,b\tc"d\\te\t\\0\x1a\\n', b"\\N\tN\tx\\\\", b"\ty\tNx", b"",
    ]  # fmt: skip
    with pytest.raises(InvalidSpec, match="no end"):
        list(normal([b'"a'], marks, "x"))
