"""Protects moves between MySQL and MariaDB: what a dump has that the other lacks is answered."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.config.enginefile import DialectName
from lab.datasets.collations import LANGUAGES, OTHERS, nearest
from lab.datasets.source import parse
from lab.datasets.survey import suits
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.spool import Spool
from lab.run import run
from tests.support import mariadb_server, mysql_server
from tests.support.mariadb_server import NoServer, Server, client
from tests.unit.datasets.test_loaded_by_mysql import load
from tests.unit.datasets.test_shell import CREATE, of_shell

SECONDS = 120.0
NATIVE = "*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29"
OF_MYSQL = (
    "CREATE DATABASE shop",
    (
        "CREATE TABLE shop.t (id INT PRIMARY KEY, j JSON, k VARCHAR(9) GENERATED ALWAYS AS"
        " (j->>'$.a') VIRTUAL, hidden INT DEFAULT 3 INVISIBLE, g GEOMCOLLECTION, KEY (k),"
        " KEY x (hidden) INVISIBLE, c INT CHECK (c > 0) NOT ENFORCED,"
        " d VARCHAR(40) DEFAULT 'utf8mb4_0900_ai_ci' COMMENT 'geomcollection')"
    ),
    (
        "INSERT INTO shop.t (id, j, g, c) VALUES"
        " (1, '{\"a\": \"x\"}', ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))'), 1)"
    ),
    (
        "CREATE VIEW shop.v AS SELECT j->>'$.a' AS x, _utf8mb4'a' COLLATE utf8mb4_0900_as_cs AS y"
        " FROM shop.t"
    ),
    (
        "CREATE TABLE shop.more (id INT PRIMARY KEY, txt TEXT, g POINT NOT NULL SRID 0, n INT"
        " GENERATED ALWAYS AS (id + 1) STORED NOT NULL, m INT GENERATED ALWAYS AS (id) VIRTUAL NOT"
        " NULL, FULLTEXT KEY f (txt) WITH PARSER ngram) COMPRESSION='zlib' SECONDARY_ENGINE=rapid"
    ),
    "INSERT INTO shop.more (id, txt, g) VALUES (1, 'COMPRESSION=''zlib''', POINT(1, 2))",
    "SET sql_mode = 'STRICT_TRANS_TABLES,TIME_TRUNCATE_FRACTIONAL'",
    "CREATE PROCEDURE shop.q() SELECT @@sql_mode",
    "SET sql_mode = DEFAULT",
    (
        "CREATE PROCEDURE shop.r() BEGIN -- don't ask\n"
        " DECLARE x VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci DEFAULT 'y';\n"
        "# it's here\n"
        " /* or isn't */ SELECT CONCAT(x, 'utf8mb4_0900_ai_ci', '@@GLOBAL.GTID_PURGED') AS y; END"
    ),
    (
        "CREATE PROCEDURE shop.p() BEGIN DECLARE x VARCHAR(99) CHARACTER SET utf8mb4 COLLATE"
        " utf8mb4_sv_0900_ai_ci DEFAULT 'utf8mb4_0900_ai_ci'; SELECT x; END"
    ),
)
OF_MARIADB = (
    "CREATE DATABASE shop COLLATE utf8mb4_uca1400_ai_ci",
    (
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(9) COLLATE utf8mb4_uca1400_ai_ci,"
        " b VARCHAR(9) COLLATE utf8mb4_uca1400_swedish_nopad_as_ci, c VARCHAR(9) COLLATE"
        " utf8mb3_uca1400_ai_ci, d VARCHAR(9) COLLATE utf8mb4_general_nopad_ci, e VARCHAR(9)"
        " COLLATE ucs2_uca1400_as_cs, f VARCHAR(9) COLLATE latin1_swedish_nopad_ci, g VARCHAR(9)"
        " COLLATE utf8mb4_nopad_bin, j JSON, i INT INVISIBLE DEFAULT 3, u VARCHAR(60) DEFAULT"
        " CONCAT('uca1400_ai_ci (', UUID()), o POINT NOT NULL, KEY x (i) IGNORED, SPATIAL KEY (o))"
        " PAGE_COMPRESSED=1"
    ),
    (
        "CREATE TABLE shop.defaults (id INT, a TEXT NOT NULL DEFAULT '', b JSON DEFAULT"
        " '{\"it''s\": 1}', c BLOB DEFAULT 'x''y' COMMENT 'DEFAULT ''z''', d DATE DEFAULT"
        " CURRENT_TIMESTAMP, e TIMESTAMP(3) DEFAULT NOW(3), f LONGTEXT DEFAULT 5, encrypted INT,"
        " CHECK (id = 1 OR encrypted = 1))"
    ),
    (
        "CREATE PROCEDURE shop.p(n INT) BEGIN DECLARE encrypted, x INT DEFAULT FLOOR(3.5);"
        " SET encrypted = 1; UPDATE shop.defaults SET encrypted = 1, id = n WHERE encrypted = 0;"
        " SELECT encrypted + x AS y; END"
    ),
    "SET sql_mode = 'STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT'",
    "CREATE PROCEDURE shop.q() SELECT @@sql_mode",
    "SET sql_mode = DEFAULT",
    "INSERT INTO shop.t (id, a, j, o) VALUES (1, '\u00c4da', '{}', POINT(1, 2))",
    "CREATE VIEW shop.v AS SELECT a FROM shop.t WHERE a = 'x' COLLATE utf8mb4_uca1400_as_cs",
)


@pytest.fixture(scope="module")
def mysql() -> Iterator[Server]:
    try:
        with mysql_server.server() as server:
            yield server
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Server]:
    try:
        with mariadb_server.server() as server:
            yield server
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("mysql", "mariadb"):
        if name in request.fixturenames:
            request.getfixturevalue(name).ask("DROP DATABASE IF EXISTS shop")


def dump_of_mysql(server: Server, path: Path, *options: str) -> Path:
    with tempfile.TemporaryDirectory() as programs:
        mysql_server.clients(mysql_server.kept_root(), Path(programs))
        argv = [f"{programs}/mysqldump", "--no-defaults", f"--socket={server.socket}", "-uroot",
                "--hex-blob", "--routines", *options, "--databases", "shop"]  # fmt: skip
        path.write_text(run(argv, timeout=SECONDS).stdout)
    return path


def written(source: Path, work: Path, dialect: DialectName, version: str) -> tuple[Spool, bytes]:
    spool = spools.write(
        parse(str(source)), [], work / "spool", "shop", lambda _: None, dialect=dialect,
        version=version,
    )  # fmt: skip
    return spool, spool.path.read_bytes()


def load_mariadb(server: Server, sql: bytes) -> None:
    program, env = client("mariadb", "mariadb-client-core")
    argv = [str(program), "--no-defaults", "--skip-ssl", f"--socket={server.socket}", "-uroot",
            "--batch", "--comments", "--binary-mode",
            "--default-character-set=utf8mb4"]  # fmt: skip
    done = subprocess.run(
        argv, check=False, input=sql, capture_output=True, env=env, timeout=SECONDS
    )
    assert done.stderr[-300:] == b""
    assert done.returncode == 0


def test_from_mysql(mysql: Server, mariadb: Server, tmp_path: Path) -> None:
    mysql.ask(*OF_MYSQL)
    path = dump_of_mysql(mysql, tmp_path / "shop.sql", "--set-gtid-purged=COMMENTED")
    path.write_text("SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'a:1-5';\n" + path.read_text())
    version = mariadb.ask("SELECT VERSION()")[0][0]
    spool, sql = written(path, tmp_path, "mariadb", version)
    said = "\n".join(one.what for one in suits(spool.found, "mariadb", version) if not one.fatal)
    for what in (
        "columns of the type JSON", "GTID_PURGED", "invisible columns", "invisible indexes",
        "checks that are not enforced", "it is called geometrycollection (1 statement)",
        "utf8mb4_uca1400_nopad_ai_ci for utf8mb4_0900_ai_ci", "(SRID)", "(ngram, mecab)",
        "generated columns that are NOT NULL", "COMPRESSION, SECONDARY_ENGINE",
        "TIME_TRUNCATE_FRACTIONAL",
    ):  # fmt: skip
        assert what in said
    assert not [one for one in suits(spool.found, "mariadb", version) if one.fatal]
    load_mariadb(mariadb, sql)
    question = "SELECT id, k, hidden, ST_AsText(g), d FROM shop.t"
    geometry = "GEOMETRYCOLLECTION(POINT(1 2))"
    assert mariadb.ask(question) == [(1, "x", 3, geometry, "utf8mb4_0900_ai_ci")]
    assert mariadb.ask("SELECT x, y, COLLATION(y) FROM shop.v") == [
        ("x", "a", "utf8mb4_uca1400_nopad_as_cs")
    ]
    assert mariadb.ask("CALL shop.p()") == [("utf8mb4_0900_ai_ci",)]
    assert mariadb.ask("CALL shop.q()") == [("STRICT_TRANS_TABLES",)]
    assert mariadb.ask("CALL shop.r()") == [("yutf8mb4_0900_ai_ci@@GLOBAL.GTID_PURGED",)]
    question = "SELECT n, m, txt, ST_AsText(g) FROM shop.more"
    assert mariadb.ask(question) == [(2, 1, "COMPRESSION='zlib'", "POINT(1 2)")]
    (comment,) = mariadb.ask(
        "SELECT column_comment FROM information_schema.columns WHERE table_schema = 'shop' AND"
        " table_name = 't' AND column_name = 'd'"
    )
    assert comment == ("geomcollection",), "texts stay as they are"


def test_all_collations_of_mysql(mysql: Server, mariadb: Server, tmp_path: Path) -> None:
    """Each becomes one that the server has, of its language if that is there."""
    names = [row[0] for row in mysql.ask("SHOW COLLATION LIKE '%0900%'")]
    columns = ", ".join(f"{name} VARCHAR(3) COLLATE {name}" for name in names)
    mysql.ask("CREATE DATABASE shop", f"CREATE TABLE shop.t ({columns})")
    path = dump_of_mysql(mysql, tmp_path / "shop.sql", "--set-gtid-purged=OFF")
    version = mariadb.ask("SELECT VERSION()")[0][0]
    _, sql = written(path, tmp_path, "mariadb", version)
    load_mariadb(mariadb, sql)
    made = mariadb.ask(
        "SELECT column_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = 'shop'"
    )
    assert dict(made) == {name: nearest(name, "mariadb", (10, 11)) for name in names}
    languages = {name.split("_0900")[0][len("utf8mb4_") :] for name in names}
    assert languages == (LANGUAGES.keys() | OTHERS.keys())
    known = {row[0] for row in mariadb.ask("SHOW COLLATION")}
    assert {nearest(name, "mariadb", (10, 6)) for name in names} <= known


def test_from_mariadb(mysql: Server, mariadb: Server, tmp_path: Path) -> None:
    mariadb.ask(*OF_MARIADB)
    program, env = client("mariadb-dump", "mariadb-client")
    argv = [str(program), "--no-defaults", "--skip-ssl", f"--socket={mariadb.socket}", "-uroot",
            "--hex-blob", "--routines", "--databases", "shop"]  # fmt: skip
    path = tmp_path / "shop.sql"
    path.write_text(run(argv, timeout=SECONDS, env=os.environ | env).stdout)
    spool, sql = written(path, tmp_path, "mysql", "9.7.4")
    assert set(spool.found.signs) == {
        "uca1400", "nopad", "defaults", "ignored indexes", "options of tables", "defaults of texts",
        "times in defaults", "modes of MariaDB", "removed mode",
    }  # fmt: skip
    assert not [one for one in suits(spool.found, "mysql", "9.7.4") if one.fatal]
    load(mysql, [sql])
    assert mysql.ask("SELECT id, a, i, ST_AsText(o) FROM shop.t") == [
        (1, "\u00c4da", 3, "POINT(1 2)")
    ]
    mysql.ask("INSERT INTO shop.defaults (id) VALUES (1)")
    question = "SELECT a, b, c, d > '2026-01-01', e > '2026-01-01', f FROM shop.defaults"
    assert mysql.ask(question) == [("", '{"it\'s": 1}', b"x'y", 1, 1, "5")]
    assert mysql.ask("CALL shop.p(1)") == [(4,)]
    assert mysql.ask("CALL shop.q()") == [("STRICT_TRANS_TABLES",)]
    made = dict(
        mysql.ask(
            "SELECT column_name, collation_name FROM information_schema.columns WHERE"
            " table_schema = 'shop' AND table_name = 't' AND collation_name IS NOT NULL"
        )
    )
    assert [made[name] for name in "abcdefg"] == [
        "utf8mb4_0900_ai_ci", "utf8mb4_sv_0900_as_cs", "utf8mb3_unicode_520_ci",
        "utf8mb4_general_ci", "ucs2_bin", "latin1_swedish_ci", "utf8mb4_0900_bin",
    ]  # fmt: skip
    mysql.ask("INSERT INTO shop.t (id, o) VALUES (2, POINT(1, 2))")
    assert mysql.ask("SELECT u FROM shop.t WHERE id = 2")[0][0].startswith("uca1400_ai_ci (")
    assert mysql.ask("SELECT is_visible FROM information_schema.statistics"
                     " WHERE table_schema = 'shop' AND index_name = 'x'") == [("NO",)]  # fmt: skip


def test_what_is_refused_is_refused_by_the_server(mysql: Server, mariadb: Server) -> None:
    """Protects dumps that would load: a refusal is for what the server cannot have."""
    for server, statement in (
        (mariadb, "CREATE TABLE t (id INT, KEY `x` ((lower(id))))"),
        (mariadb, "CREATE TABLE t (id INT, KEY `x` (`id`,(lower(id))))"),
        (mariadb, "CREATE TABLE t (\n  `v` vector(3))"),
        (mysql, "CREATE TABLE t (\n  `a` text,\n  UNIQUE KEY `a` (`a`) USING HASH)"),
        (mysql, "CREATE TABLE t (`a` date, `b` date, PERIOD FOR `p` (`a`, `b`))"),
        (mysql, "CREATE TABLE t (a char(1) COLLATE uca1400_ai_ci)"),
        (mysql, f"CREATE USER x IDENTIFIED WITH 'mysql_native_password' AS '{NATIVE}'"),
    ):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "a.sql"
            path.write_text(f"{statement};\n")
            name: DialectName = "mysql" if server is mysql else "mariadb"
            version = "9.7.4" if name == "mysql" else "10.11.6"
            spool, _ = written(path, Path(place), name, version)
        [reason] = [one for one in suits(spool.found, name, version) if one.fatal]
        assert reason.hint
        with pytest.raises(Exception, match=r"\(\d{4}"):
            server.ask("CREATE DATABASE IF NOT EXISTS shop", "USE shop", statement)
    mariadb.ask(f"CREATE USER x IDENTIFIED WITH 'mysql_native_password' AS '{NATIVE}'")


def test_in_all_forms(tmp_path: Path) -> None:
    """Of MySQL Shell and mydumper as well; each part stays where its errors are looked for."""
    shell, mydumper = of_shell(tmp_path / "shell"), tmp_path / "mydumper"
    create = CREATE.replace("\n);", "\n) COLLATE=utf8mb4_0900_ai_ci;")
    (shell / "shop@t.sql").write_text(create)
    mydumper.mkdir()
    for name, text in {
        "metadata": "Started dump at: 2026-11-20\nFinished dump at: 2026-11-20\n",
        "shop-schema-create.sql": "CREATE DATABASE `shop` COLLATE utf8mb4_0900_ai_ci;\n",
        "shop.t-schema.sql": create,
        "shop.t.sql": "INSERT INTO `t` VALUES (1,'utf8mb4_0900_ai_ci'),(2,'y');\n",
    }.items():
        (mydumper / name).write_text(text)
    for top in (shell, mydumper):
        for version, new in (("10.11.6", b"utf8mb4_uca1400_nopad_ai_ci"), ("11.8.2", b"")):
            with tempfile.TemporaryDirectory() as work:
                spool, sql = written(top, Path(work), "mariadb", version)
                assert len(sql) == spool.size
                assert (b"COLLATE=" + (new or b"utf8mb4_0900_ai_ci") + b";") in sql
                names = ("shell/shop@t.tsv", "mydumper/shop.t.sql")
                rows = next(one for one in spool.parts if one.name.endswith(names))
                assert sql[rows.offset :].startswith(b"INSERT")
                assert sql[rows.offset : rows.offset + rows.size].strip().endswith(b";")
                line = sql.count(b"\n", 0, rows.offset) + 1
                where, _ = spool.blame([sql], line)
                assert where.startswith(rows.name)
                assert where.endswith("statement 1, at line 1")
