"""Protects data: what mariadb-dump --dir and mydumper write is loaded as it was, or refused."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lab.config.enginefile import DialectName
from lab.datasets import directory
from lab.datasets.dump import statements
from lab.datasets.source import DumpDirectory, parse
from lab.datasets.source_dialect import dialect_of_source
from lab.errors import CommandFailed, InvalidSpec
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.spool import Spool
from lab.run import run
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, client, server, unpacked

SCHEMA = r"""
CREATE DATABASE shop CHARACTER SET latin1
CREATE DATABASE crm
CREATE DATABASE `odd.db`
CREATE TABLE shop.people (id INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(50) CHARACTER SET utf8mb4,
 old VARCHAR(20), bin BLOB, bits BIT(10), place POINT, guid UUID, net INET6,
 kind ENUM('a', 'ü'), ratio DOUBLE, price DECIMAL(30,10), at TIMESTAMP(3) NULL, day DATE, doc JSON,
 next INT AS (price + 1) VIRTUAL, kept INT AS (price + 2) STORED, hidden INT INVISIBLE DEFAULT 3,
 `odd ``name` INT COMMENT 'it''s CHARACTER SET sjis')
INSERT INTO shop.people (id, text, old, bin, bits, place, guid, net, kind, ratio, price, at, day,
 doc) VALUES (1, 'tab\tnl\nbs\\q\'z\0e\r\n€😀', 'ä\\ß\\', UNHEX('00010A0D5C27090B1A225C4E'),
 b'1010101010', POINT(1, 2), 'ff1e2d47-e779-11f1-a4c1-02fc00000001', '::1', 'ü', 1e-300/3,
 123456789.0123456789, '2020-01-01 00:00:00.125', '2020-02-30', '{"a": "b\\"c"}')
INSERT INTO shop.people (id, text, old, bin) VALUES (2, NULL, '\\N', ''), (3, '\\N', 'NULL', '\''),
 (-1, '%_\\%\\_', '\t\t\n\n', '\\\t\\'), (4, ',(),;', '''),(''', '-- \n;\n/*')
INSERT INTO shop.people (id, kind) VALUES (0, '')
INSERT INTO shop.people (id, bin) WITH RECURSIVE n AS (SELECT 1000 AS i UNION ALL SELECT i + 1
 FROM n WHERE i < 1255) SELECT i, CONCAT(CHAR(i - 1000), REPEAT(CONCAT(CHAR(i - 1000), '\\',
 CHAR(i - 999), '\n'), IF(i = 1050, 400000, 9)), CHAR(92)) FROM n
CREATE TABLE shop.orders (id INT, person INT, FOREIGN KEY (person) REFERENCES people (id))
INSERT INTO shop.orders VALUES (1, 1), (2, NULL)
CREATE TABLE shop.`empty` (id INT)
CREATE TABLE shop.`a.b c` (id INT)
INSERT INTO shop.`a.b c` VALUES (7)
CREATE TABLE `odd.db`.t (id INT)
INSERT INTO `odd.db`.t VALUES (8)
CREATE TABLE crm.log (id INT AUTO_INCREMENT PRIMARY KEY, n INT)
CREATE VIEW shop.z_view AS SELECT id FROM shop.people
CREATE VIEW crm.a_view AS SELECT id FROM shop.z_view
CREATE TRIGGER shop.after_people AFTER INSERT ON shop.people FOR EACH ROW
 BEGIN INSERT INTO crm.log (n) VALUES (NEW.id); SET @x = ';'; END
"""
ROUTINES = """
CREATE PROCEDURE shop.p() BEGIN SELECT 1; SELECT ';'; END
CREATE FUNCTION shop.f() RETURNS INT DETERMINISTIC RETURN 1
CREATE EVENT shop.e ON SCHEDULE EVERY 1 DAY DO DELETE FROM crm.log
CREATE VIEW shop.b_view AS SELECT shop.f()
"""
OF_MYSQL = r"""
CREATE DATABASE shop CHARACTER SET latin1
CREATE DATABASE crm
CREATE TABLE shop.people (id INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(50) CHARACTER SET utf8mb4
 COLLATE utf8mb4_0900_as_ci, old VARCHAR(20), bin BLOB, bits BIT(10), place POINT SRID 4326,
 kind ENUM('a', 'ü'), price DECIMAL(30,10), at TIMESTAMP(3) NULL, doc JSON, note TEXT DEFAULT
 (UPPER('x')), next INT AS (price + 1) VIRTUAL, kept INT AS (price + 2) STORED, hidden INT DEFAULT 3
 INVISIBLE, KEY functional ((LENGTH(old))), KEY unseen (old) INVISIBLE, CHECK (price > -9))
INSERT INTO shop.people (id, text, old, bin, bits, place, kind, price, at, doc) VALUES (1,
 'tab\tnl\nbs\\q\'z\0e\r\n€😀', 'ä\\ß\\', UNHEX('00010A0D5C27090B1A225C4E'), b'1010101010',
 ST_SRID(POINT(1, 2), 4326), 'ü', 123456789.0123456789, '2020-01-01 00:00:00.125',
 '{"a": "b\\"c", "n": 1.50}'), (-1, '%_\\%\\_', '\t\t\n\n', '\\\t\\', NULL, NULL, 'a', 0, NULL,
 'null'), (2, NULL, '\\N', '', NULL, NULL, NULL, NULL, NULL, '[]')
INSERT INTO shop.people (id, bin) WITH RECURSIVE n AS (SELECT 1000 AS i UNION ALL SELECT i + 1
 FROM n WHERE i < 1255) SELECT i, CONCAT(CHAR(i - 1000), REPEAT('\\\n', 9), CHAR(92)) FROM n
CREATE TABLE crm.log (id INT AUTO_INCREMENT PRIMARY KEY, n INT)
CREATE VIEW crm.a_view AS SELECT id FROM shop.people
CREATE TRIGGER shop.after_people AFTER INSERT ON shop.people FOR EACH ROW
 BEGIN INSERT INTO crm.log (n) VALUES (NEW.id); SET @x = ';'; END
"""
DATABASES = ("shop", "crm", "odd.db")
SESSION = "SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+03:00'"


def made(db: Server, text: str) -> None:
    statements = text.strip().replace("\n ", " ").split("\n")
    db.ask(SESSION, *statements)


def facts(db: Server) -> dict[str, Any]:
    """All that a dump must keep."""
    tables = db.ask(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE"
        " table_schema IN ('shop', 'crm', 'odd.db') ORDER BY 1, 2"
    )
    found: dict[str, Any] = {}
    for schema, name, kind in tables:
        full = f"`{schema}`.`{name}`"
        if kind == "BASE TABLE":
            found[full] = db.ask(f"CHECKSUM TABLE {full} EXTENDED")
        found[f"{full}: definition"] = db.ask("SET NAMES utf8mb4", f"SHOW CREATE TABLE {full}")
    for what in ("triggers", "routines", "events"):
        name = "event_object_schema" if what == "triggers" else f"{what[:-1]}_schema"
        column = "action_statement" if what == "triggers" else f"{what[:-1]}_definition"
        found[what] = db.ask(
            f"SELECT {name}, {column} FROM information_schema.{what} WHERE {name} = 'shop'"
            " ORDER BY 1, 2"
        )
    return found


@pytest.fixture(scope="module")
def db() -> Iterator[Server]:
    try:
        with server() as found:
            yield found
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def empty(db: Server) -> Iterator[Server]:
    yield db
    drop(db)


def drop(db: Server) -> None:
    for name in DATABASES:
        db.ask(f"DROP DATABASE IF EXISTS `{name}`")


Program = Callable[..., None]


def program(name: str, package: str) -> Program:
    try:
        found, env = client(name, package)
    except NoServer as error:
        pytest.skip(str(error))

    def started(*argv: str, stdin: bytes = b"") -> None:
        try:
            run([found, *argv], timeout=60, env=env, stdin=stdin)
        except CommandFailed as error:
            raise AssertionError(error.stderr[-400:]) from None

    return started


def dumped(db: Server, top: Path, *databases: str) -> Path:
    """What mariadb-dump --dir writes; before 11.5 its --tab does, one database at a time."""
    start = program("mariadb-dump", "mariadb-client")
    common = ["--no-defaults", "--skip-ssl", f"--socket={db.socket}", "-uroot"]
    top.mkdir()
    if "--dir=" in run([*_argv("mariadb-dump", "mariadb-client"), "--help"], timeout=60).stdout:
        start(*common, f"--dir={top}", "--databases", *databases)
        return top
    for name in databases:
        place = top / name.replace(".", "@002e")
        place.mkdir()
        start(*common, f"--tab={place}", name)
    return top


def _argv(name: str, package: str) -> list[str]:
    return [str(client(name, package)[0])]


def written(top: Path, to: Path, dialect: DialectName = "mariadb") -> Spool:
    return spools.write(parse(str(top)), [], to, "shop", lambda _: None, dialect=dialect)


def loaded(db: Server, spool: Spool) -> None:
    drop(db)
    argv = ["--no-defaults", "--skip-ssl", f"--socket={db.socket}", "-uroot", "--batch"]
    argv += ["--binary-mode", "--default-character-set=utf8mb4"]
    program("mariadb", "mariadb-client-core")(*argv, stdin=spool.path.read_bytes())


def test_what_mariadb_dump_writes_is_loaded_as_it_was(empty: Server, tmp_path: Path) -> None:
    made(empty, SCHEMA)
    before = facts(empty)
    top = dumped(empty, tmp_path / "dump", *DATABASES)
    spool = written(top, tmp_path / "spool")
    loaded(empty, spool)
    after = facts(empty)
    assert after == before
    assert empty.ask("SELECT COUNT(*) FROM crm.log") == [(0,)], "triggers are made after rows"
    assert set(spool.found.databases) == set(DATABASES)
    assert spool.found.dialect == "mariadb"
    assert "dump/shop/people.txt" in [part.name for part in spool.parts]


@pytest.mark.parametrize(
    "way",
    [
        "plain",
        pytest.param("gz", marks=pytest.mark.rare),
        pytest.param("zst", marks=pytest.mark.rare),
    ],
)
def test_what_mydumper_writes_is_loaded_as_it_was(empty: Server, tmp_path: Path, way: str) -> None:
    start = program("mydumper", "mydumper")
    made(empty, SCHEMA.replace("odd ``", "odd ;") + ROUTINES.strip())  # it refuses backticks
    empty.ask("ALTER TABLE shop.people DROP guid, DROP net")
    before = facts(empty)
    top = tmp_path / "dump"
    more = {"plain": ["-r", "100"], "gz": ["--compress"], "zst": []}[way]
    start(
        "-S", str(empty.socket), "-u", "root", "-o", str(top), "-G", "-E", "-R", "-k",
        "-x", r"^(shop|crm|odd\.db)\.", *more,
    )  # fmt: skip
    if way == "zst":
        zstandard = pytest.importorskip("zstandard", reason="needs the package zstandard")
        for path in top.glob("*.sql"):
            packed = zstandard.ZstdCompressor().compress(path.read_bytes())
            path.with_name(f"{path.name}.zst").write_bytes(packed)
            path.unlink()
    loaded(empty, written(top, tmp_path / "spool"))
    assert facts(empty) == before


@pytest.mark.rare  # what it writes of MariaDB's servers is read above
def test_what_mydumper_writes_of_mysql_is_loaded_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words and types of MySQL's own, in chunks, between servers of MySQL.

    Also with routines, for which mydumper 0.10 writes `SET character_set_client = ;`.
    """
    sets = (
        "SELECT routine_name, character_set_client FROM information_schema.routines"
        " WHERE routine_schema = 'shop' ORDER BY 1"
    )
    top = tmp_path / "dump"
    try:
        # The plugin of MySQL's accounts, where the library is not installed.
        [plugin] = unpacked("libmariadb3").rglob("caching_sha2_password.so")
        monkeypatch.setenv("MARIADB_PLUGIN_DIR", str(plugin.parent))
        start = program("mydumper", "mydumper")
        with mysql_server.server() as db:
            # The library has no plugin for root's account.
            db.ask("CREATE USER dumper IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO dumper")
            made(db, OF_MYSQL + ROUTINES.strip())
            db.ask("SET NAMES latin1", "CREATE PROCEDURE shop.q() COMMENT 'it''s; x' SELECT 'x'")
            before = facts(db), db.ask(sets)
            start(
                "-S", str(db.socket), "-u", "dumper", "-p", "x", "-o", str(top), "-G", "-E", "-R",
                "-k", "-x", r"^(shop|crm)\.", "-r", "100",
            )  # fmt: skip
            assert dialect_of_source(parse(str(top))) == "mysql"
            spool = written(top, tmp_path / "spool", "mysql")
            [note] = spool.found.notes
            assert "3 routines were made" in note
            drop(db)
            argv = mysql_server.program(mysql_server.kept_root(), "usr/bin/mysql")
            argv += ["--no-defaults", f"--socket={db.socket}", "-uroot", "--batch", "--binary-mode"]
            argv.append("--default-character-set=utf8mb4")
            run(argv, timeout=60, stdin=spool.path.read_bytes())
            assert (facts(db), db.ask(sets)) == before
    except NoServer as error:
        pytest.skip(str(error))


MADE = """\
SET @PREV_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT;
SET @PREV_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS;
SET @PREV_COLLATION_CONNECTION=@@COLLATION_CONNECTION;
SET character_set_client = {client};
SET character_set_results = {client};
SET collation_connection = {collation};
DROP PROCEDURE IF EXISTS `{name}`;
CREATE DEFINER=`root`@`localhost` PROCEDURE `{name}`()
BEGIN SELECT 1; \nSELECT ';'; END;
SET character_set_client = @PREV_CHARACTER_SET_CLIENT;
SET character_set_results = @PREV_CHARACTER_SET_RESULTS;
SET collation_connection = @PREV_COLLATION_CONNECTION;
"""
"""A routine in a file ``-schema-post.sql`` of mydumper 0.10 (mydumper.c, ``set_charset``)."""


def test_routines_of_newer_mysql_get_the_character_set_that_mydumper_misplaces(
    tmp_path: Path,
) -> None:
    """Protects routines: the server would refuse an empty value, and a comment in its place."""
    top = of_mydumper(tmp_path / "dump")
    post = top / "shop-schema-post.sql"
    right = MADE.format(name="a", client="latin1", collation="latin1_german1_ci")
    wrong = {
        "b": ("", "utf8mb4"),
        "c": ("it's; a\ncomment;\nof lines", "latin1"),
        "d": ("", ""),
    }
    post.write_text(
        right
        + "".join(
            MADE.format(name=name, client=client, collation=collation)
            for name, (client, collation) in wrong.items()
        )
    )
    spool = written(top, tmp_path / "spool", "mysql")
    [part] = [one for one in spool.parts if one.name == "dump/shop-schema-post.sql"]
    text = spool.path.read_bytes()[part.offset : part.offset + part.size].decode()
    found = [one.text.decode() for one in statements([text.encode()])]
    values = [one for one in found if one.startswith("SET c") and "@PREV" not in one]
    assert values == [
        "SET character_set_client = latin1",
        "SET character_set_results = latin1",
        "SET collation_connection = latin1_german1_ci",
        "SET character_set_client = utf8mb4",
        "SET character_set_results = utf8mb4",
        "SET character_set_connection = utf8mb4",
        "SET character_set_client = latin1",
        "SET character_set_results = latin1",
        "SET character_set_connection = latin1",
        "SET character_set_client = @@character_set_client",
        "SET character_set_results = @@character_set_results",
        "SET character_set_connection = @@character_set_connection",
    ]
    [note] = spool.found.notes
    assert note.startswith(f"{post}: mydumper has written no collation")
    assert "3 routines were made" in note
    # Errors are found at the lines of the file.
    data, drop = spool.path.read_bytes(), "DROP PROCEDURE IF EXISTS `d`"
    where, _ = spool.blame([data], data.count(b"\n", 0, data.index(drop.encode())) + 1)
    assert where.endswith(f"at line {post.read_text().split(drop)[0].count(chr(10)) + 1}")


def test_routines_with_their_character_sets_stay_as_they_are(tmp_path: Path) -> None:
    top = of_mydumper(tmp_path / "dump")
    text = MADE.format(name="a", client="utf8mb4", collation="utf8mb4_uca1400_ai_ci")
    text += MADE.format(name="b", client="binary", collation="binary")
    (top / "shop-schema-post.sql").write_text(text)
    spool = written(top, tmp_path / "spool")
    assert spool.found.notes == ()
    for line in ("utf8mb4_uca1400_ai_ci", "binary"):
        assert f"SET collation_connection = {line};".encode() in spool.path.read_bytes()


def test_what_mydumper_writes_is_looked_for_once(tmp_path: Path) -> None:
    """Protects the host: no file that somebody sends is read again from each of its places."""
    beginning = (
        b"\nSET @PREV_COLLATION_CONNECTION=@@COLLATION_CONNECTION;\nSET character_set_client = "
    )
    began = time.process_time()
    for body in (b'\\"', b"\\'", b'"\\', b"`\\", b"''"):
        for text in (b"/* %s */", b"%s", b"'%s", b"%s\\"):
            shown = b"CREATE TABLE t (a int) " + text % (body * 30_000)
            (tmp_path / "s.t-schema.sql").write_bytes(shown + b";\n")
            dialect_of_source(DumpDirectory(tmp_path, "mydumper"))
    directory._with_character_sets(beginning * (1 << 14))
    assert time.process_time() - began < 3.0


def test_values_that_mydumper_has_spoilt_are_refused(empty: Server, tmp_path: Path) -> None:
    """A server that is not strict would load NULL."""
    start = program("mydumper", "mydumper")
    made(
        empty, "CREATE DATABASE crm\nCREATE TABLE crm.t (a UUID)\nINSERT INTO crm.t VALUES (UUID())"
    )
    top = tmp_path / "dump"
    start("-S", str(empty.socket), "-u", "root", "-o", str(top), "-B", "crm", "-k")
    with pytest.raises(InvalidSpec, match="UUID") as failure:
        written(top, tmp_path / "spool")
    assert f"{top}/crm.t.sql" in failure.value.what


ROWS = b"CREATE TABLE `t` (\n  `a` int(11),\n  `b` text\n) ENGINE=InnoDB DEFAULT CHARSET=%s;\n"


def of_tab(top: Path, rows: bytes | None, create: bytes = ROWS % b"utf8mb4") -> Path:
    """A directory of one table, as mariadb-dump --dir writes it."""
    (top / "shop").mkdir(parents=True)
    head = b"-- MariaDB dump 10.19-11.8.2-MariaDB, for x\n-- Host: h    Database: shop\n"
    (top / "shop/t.sql").write_bytes(head + create + b"-- Dump completed on 2026-11-20 12:00:00\n")
    if rows is not None:
        (top / "shop/t.txt").write_bytes(rows)
    return top


def of_mydumper(top: Path) -> Path:
    """A directory of one table, as mydumper writes it."""
    top.mkdir()
    for name, text in {
        "metadata": "Started dump at: x\nFinished dump at: x\n",
        "shop-schema-create.sql": "CREATE DATABASE `shop`;\n",
        "shop.t-schema.sql": "CREATE TABLE `t` (\n  `a` int\n);\n",
        "shop.t.00000.sql": "INSERT INTO `t` VALUES\n(1),\n(2);\n",
        "shop.t-schema-triggers.sql": "CREATE TRIGGER x ... BEGIN\nSET @a=1; \nEND;\n",
    }.items():
        (top / name).write_text(text)
    return top


@pytest.mark.parametrize(
    ("rows", "said", "named"),
    [
        (b"1\tx\n2\ty", "truncated", "t.txt"),
        (b"1\tx\n2\n", "line 2 has 1 values", "t.txt"),
        (b"1\tx\\\n\n2\tx\ty\n", "line 3 has 3 values", "t.txt"),
        (None, "is missing", "t.txt"),
    ],
)
def test_broken_rows(tmp_path: Path, rows: bytes | None, said: str, named: str) -> None:
    with pytest.raises(InvalidSpec, match=said) as failure:
        written(of_tab(tmp_path / "dump", rows), tmp_path / "spool")
    assert f"dump/shop/{named}" in failure.value.what


def test_broken_directories_of_mariadb_dump(tmp_path: Path) -> None:
    def refused(match: str, name: str) -> None:
        with pytest.raises(InvalidSpec, match=match) as failure:
            written(top, tmp_path / "spool")
        assert name in failure.value.what
        (tmp_path / "spool").unlink(missing_ok=True)

    top = of_tab(tmp_path / "a", b"", ROWS % b"sjis")
    refused("character set sjis", "a/shop/t.txt")
    top = of_tab(tmp_path / "b", b"")
    path = top / "shop/t.sql"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"-- Dump")])
    refused("truncated", "b/shop/t.sql")
    path.write_bytes(whole[:100])
    refused("truncated", "b/shop/t.sql")
    path.write_bytes(whole)
    (top / "shop/other.txt").write_bytes(b"1\n")
    refused("other.sql is missing", "b/shop/other.sql")
    (top / "shop/other.txt").rename(top / "shop/t.txt.gz")
    refused("is not a file of mariadb-dump", "t.txt.gz")


def test_a_table_is_of_no_other_database(tmp_path: Path) -> None:
    """Protects from tables in a database whose name theirs begins with."""
    top = of_mydumper(tmp_path / "dump")
    (top / "shop-old.t-schema.sql").write_text("CREATE TABLE `t` (`id` int);\n")
    with pytest.raises(InvalidSpec, match="there is no file that creates its database") as failure:
        written(top, tmp_path / "spool")
    assert "shop-old-schema-create.sql is missing" in failure.value.hint


def test_broken_directories_of_mydumper(tmp_path: Path) -> None:
    def refused(match: str, name: str) -> None:
        with pytest.raises(InvalidSpec, match=match) as failure:
            written(top, tmp_path / "spool")
        assert name in failure.value.what
        (tmp_path / "spool").unlink(missing_ok=True)
        shutil.rmtree(top)

    top = of_mydumper(tmp_path / "dump")
    (top / "metadata").rename(top / "metadata.partial")
    refused("not finished", "metadata.partial")
    of_mydumper(top)
    (top / "metadata").write_text("Started dump at: x\n")
    refused("truncated", "metadata")
    of_mydumper(top)
    (top / "shop.t-schema.sql").unlink()
    refused("no file with its table", "shop.t.00000.sql")
    of_mydumper(top)
    (top / "shop-schema-create.sql").unlink()
    refused("creates its database", "shop.t")
    of_mydumper(top)
    (top / "shop.t.00000.sql").write_text("INSERT INTO `t` VALUES\n(1),\n")
    refused("truncated", "shop.t.00000.sql")
    of_mydumper(top)
    (top / "shop.t.00000.dat").write_text("1\n")
    refused("as SQL only", "shop.t.00000.dat")
    of_mydumper(top)
    (top / "shop.t.00000.sql").unlink()
    (top / "shop.t.00000.sql.gz").write_bytes(gzip.compress(b"INSERT")[:-4])
    refused("truncated", "shop.t.00000.sql.gz")


def test_a_directory_that_changes_is_refused(tmp_path: Path) -> None:
    for name in ("shop.t.00000.sql", "shop.t.00001.sql"):
        top = of_mydumper(tmp_path / name)
        source = parse(str(top))
        assert isinstance(source, DumpDirectory)
        assert directory.size(source) == sum(path.stat().st_size for path in top.iterdir())
        pieces = directory.pieces(source, "mariadb")
        list(next(pieces).data)
        (top / name).write_text("INSERT INTO `t` VALUES\n(3);\n")
        with pytest.raises(InvalidSpec, match="changed while it was read") as failure:
            list(chain.from_iterable(piece.data for piece in pieces))
        assert f"{top}/{name}" in failure.value.what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"INSERT", "dump/shop.t.00000.sql: statement 1, at line 1"),
        (b"CREATE TRIGGER", "dump/shop.t-schema-triggers.sql: statement 1, at line 1"),
    ],
)
def test_a_refused_statement_is_of_a_file(tmp_path: Path, text: bytes, said: str) -> None:
    spool = written(of_mydumper(tmp_path / "dump"), tmp_path / "spool")
    data = spool.path.read_bytes()
    line = data.count(b"\n", 0, data.index(text)) + 1
    assert spool.blame([data], line) == (said, False)


def test_values_that_look_like_something_else(tmp_path: Path) -> None:
    """As LOAD DATA reads them, also if another program has written them."""
    rows = [b"1\t\\N", b"2\t\\Nx", b"3\ta\\'b\\%c\\_d", b"4\t'\\\\", b"5\t\0\\\0\\\t\\\n\\r", b""]
    spool = written(of_tab(tmp_path / "dump", b"\n".join(rows)), tmp_path / "spool")
    lines = spool.path.read_bytes().split(b"\n")
    at = next(at for at, line in enumerate(lines) if line.startswith(b"INSERT"))
    assert lines[at : at + 5] == [
        rb"INSERT INTO `t` (`a`,`b`) VALUES ('1',NULL),",
        rb"('2',_binary'\Nx'),",
        rb"('3',_binary'a''b%c_d'),",
        rb"('4',_binary'''\\'),",
        rb"('5',_binary'\0\0\t\n\r');",
    ]
