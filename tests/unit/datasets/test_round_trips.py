"""Protects data on their way out and in again: what ``lab dump`` writes becomes a dataset."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cli.verbs.copy import _DUMP
from lab.config.enginefile import DialectName, family_of
from lab.datasets.scripts import Split
from lab.datasets.survey import suits
from lab.lifecycle.datasets.outside import _QUESTIONS
from lab.run import run
from tests.support import mariadb_server, mysql_server
from tests.support.mariadb_server import NoServer, Server, client
from tests.unit.datasets.test_across_families import load_mariadb, written
from tests.unit.datasets.test_loaded_by_mysql import load

SECONDS = 120.0
BYTES = "0x" + bytes(range(256)).hex()
COMMON = (
    "CREATE DATABASE shop",
    "CREATE DATABASE `odd ``-- name` CHARACTER SET latin1",
    (
        "CREATE TABLE shop.kinds (id INT AUTO_INCREMENT PRIMARY KEY, a VARCHAR(200) CHARACTER SET"
        " utf8mb4, b TEXT CHARACTER SET latin1, c BLOB, d BIT(12), e DECIMAL(30,10), f DOUBLE,"
        " g TIMESTAMP(6) NULL, h YEAR, i ENUM('x','y'), j SET('p','q'), k JSON, l GEOMETRY,"
        " m TIME(3), n BINARY(4), o VARCHAR(9) CHARACTER SET utf8mb4 GENERATED"
        " ALWAYS AS (LEFT(a, 2)) STORED, p TEXT CHARACTER SET ucs2)"
    ),
    (
        "INSERT INTO shop.kinds (a, b, c, d, e, f, g, h, i, j, k, l, m, n, p) VALUES"
        f" ('\U0001f600''\\\\\\n\\0\\Z', '\u00e4\u20ac', {BYTES}, b'101', 1e-10, 0.1,"
        " '2024-10-27 00:30:00.123456', 2024, 'y', 'p,q', '{\"a\": [1, 2.50, null]}',"
        " ST_GeomFromText('LINESTRING(0 0,1 1)'), '-838:59:59', 0x00FF0A27, '\u00e4\u4e2d')"
    ),
    "INSERT INTO shop.kinds (a) VALUES (NULL), ('')",
    "CREATE TABLE `odd ``-- name`.`t 1` (`a ``b` INT PRIMARY KEY)",
    "INSERT INTO `odd ``-- name`.`t 1` VALUES (-1), (7)",
    "CREATE TABLE shop.many (id INT PRIMARY KEY, t VARCHAR(300))",
    (
        "INSERT INTO shop.many WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 900) SELECT i, REPEAT(CHAR(32 + i % 90), 300) FROM n"
    ),
    "CREATE TRIGGER shop.seen BEFORE DELETE ON shop.many FOR EACH ROW SET @x = OLD.id",
    "CREATE FUNCTION shop.twice (n INT) RETURNS INT DETERMINISTIC RETURN 2 * n",
    "CREATE EVENT shop.later ON SCHEDULE EVERY 1 DAY DO DELETE FROM shop.many",
    "CREATE VIEW shop.firsts AS SELECT id, a FROM shop.kinds WHERE id < shop.twice(2)",
)
OWN: dict[DialectName, tuple[str, ...]] = {
    "mariadb": (
        "CREATE SEQUENCE shop.numbers START WITH 7",
        "CREATE TABLE shop.own (id UUID PRIMARY KEY, ip INET6, v INT INVISIBLE DEFAULT 1)",
        "INSERT INTO shop.own (id, ip) VALUES ('123e4567-e89b-12d3-a456-426655440000', '::1')",
    ),
    "mysql": (
        (
            "CREATE TABLE shop.own (id INT PRIMARY KEY, p POINT SRID 4326, v INT INVISIBLE"
            " DEFAULT 1, e VECTOR(3), KEY ((id + 1)))"
        ),
        (
            "INSERT INTO shop.own (id, p, e) VALUES"
            " (1, ST_GeomFromText('POINT(1 2)', 4326), STRING_TO_VECTOR('[1,2,3]'))"
        ),
    ),
}
TABLES = (
    "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type ="
    " 'BASE TABLE' AND table_schema IN ('shop', 'odd `-- name') ORDER BY 1, 2"
)
OTHERS = (
    "SELECT 'v', view_definition, definer FROM information_schema.views WHERE table_schema = 'shop'"
    " UNION ALL SELECT 'r', routine_definition, definer FROM information_schema.routines"
    " WHERE routine_schema = 'shop' UNION ALL SELECT 't', action_statement, definer"
    " FROM information_schema.triggers WHERE trigger_schema = 'shop' UNION ALL"
    " SELECT 'e', event_definition, definer FROM information_schema.events"
    " WHERE event_schema = 'shop' ORDER BY 1, 2"
)


@dataclass(frozen=True)
class Family:
    """Two servers, the directory with their programs, and what loads SQL."""

    name: DialectName
    one: Server
    other: Server
    programs: Path
    env: dict[str, str]
    load: Callable[[Server, bytes], None]


def _programs(name: DialectName, place: Path) -> dict[str, str]:
    if name == "mysql":
        mysql_server.clients(mysql_server.kept_root(), place)
        return {}
    env: dict[str, str] = {}
    for program, package in (("mariadb-dump", "mariadb-client"),
                             ("mariadb", "mariadb-client-core")):  # fmt: skip
        found, env = client(program, package)
        (place / program).symlink_to(found)
    return env


@pytest.fixture(params=["mariadb", "mysql"])
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    name: DialectName = request.param
    servers: dict[DialectName, Callable[[], AbstractContextManager[Server]]] = {
        "mariadb": mariadb_server.server, "mysql": mysql_server.server,
    }  # fmt: skip
    loads: dict[DialectName, Callable[[Server, bytes], None]] = {
        "mariadb": load_mariadb, "mysql": lambda server, sql: load(server, [sql]),
    }  # fmt: skip
    made = servers[name]
    try:
        with made() as one, made() as other, tempfile.TemporaryDirectory() as path:
            env = _programs(name, Path(path))
            yield Family(name, one, other, Path(path), env, loads[name])
    except NoServer as reason:
        pytest.skip(str(reason))


def dumped(family: Family, names: Sequence[str]) -> bytes:
    """What ``lab dump`` writes of a node with the server; without names, of all databases."""
    ask = family.programs / "sql"
    words = {"mariadb": "mariadb --no-defaults --skip-ssl", "mysql": "mysql --no-defaults"}
    ask.write_text(
        f"#!/bin/sh\nexec {family.programs}/{words[family.name]} --socket={family.one.socket}"
        " -uroot --batch --skip-column-names --raw\n"
    )
    ask.chmod(0o755)
    script = _DUMP.replace("/run/mysqld/mysqld.sock", str(family.one.socket))
    script = script.replace("/usr/lib/lab/sql", str(ask))
    env = os.environ | family.env | {"PATH": f"{family.programs}:/usr/bin:/bin"}
    program, own = family_of(family.name).dump
    argv = ["sh", "-c", script, "sh", program, own, *names]
    return run(argv, timeout=SECONDS, env=env).stdout.encode()


def checksums(server: Server) -> list[tuple[object, ...]]:
    tables = (f"`{a.replace('`', '``')}`.`{b}`" for a, b in server.ask(TABLES))
    return server.ask(f"CHECKSUM TABLE {', '.join(tables)} EXTENDED")


@pytest.mark.rare
def test_out_and_in_again(family: Family, tmp_path: Path) -> None:
    family.one.ask("SET NAMES utf8mb4", *COMMON, *OWN[family.name])
    path = tmp_path / "shop.sql.gz"
    path.write_bytes(gzip.compress(dumped(family, [])))
    version = family.one.ask("SELECT VERSION()")[0][0]
    spool, sql = written(path, tmp_path, family.name, version)
    assert spool.found.dialect == family.name
    assert set(spool.found.databases) == {"shop", "odd `-- name"}
    assert suits(spool.found, family.name, version) == ()
    family.load(family.other, sql)
    before = checksums(family.one)
    assert len(before) == 4
    assert all(row[1] for row in before)
    assert checksums(family.other) == before
    assert family.other.ask(OTHERS) == family.one.ask(OTHERS)
    assert len(family.one.ask(OTHERS)) == 4
    assert family.other.ask(_QUESTIONS[family.name].definers) == []
    if family.name == "mariadb":
        assert family.other.ask("SELECT NEXT VALUE FOR shop.numbers") == [(7,)]
    family.other.ask("DROP DATABASE shop", "DROP DATABASE `odd ``-- name`")
    path.write_bytes(dumped(family, ["odd `-- name"]))
    (tmp_path / "spool").unlink()
    spool, sql = written(path, tmp_path, family.name, "")
    assert spool.found.databases == ("odd `-- name",)
    family.load(family.other, sql)
    assert checksums(family.other) == [row for row in before if "odd" in str(row[0])]


ACCOUNTS = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (id INT PRIMARY KEY)",
    "CREATE USER app@'%' IDENTIFIED BY 'x'",
    "GRANT SELECT ON shop.* TO app@'%' WITH GRANT OPTION",
    "CREATE ROLE reader",
    "GRANT reader TO app@'%'",
    "CREATE USER IF NOT EXISTS lab@'%'",
)
WITH_ACCOUNTS: dict[DialectName, tuple[str, str]] = {
    "mariadb": ("mariadb-dump --skip-ssl", "--system=users"),
    "mysql": ("mysqldump --set-gtid-purged=OFF", "--users"),
}


def test_dumps_with_accounts(family: Family, tmp_path: Path) -> None:
    """Protects from error 1396: dump programs write the accounts too that all servers have."""
    for server in (family.one, family.other):
        server.ask("CREATE USER IF NOT EXISTS lab@'%'", "DROP USER IF EXISTS root@'127.0.0.1'",
                   "DROP USER IF EXISTS root@'::1'")  # fmt: skip
    family.one.ask(*ACCOUNTS)
    words, option = WITH_ACCOUNTS[family.name]
    program, own = words.split(" ")
    argv = [str(family.programs / program), "--no-defaults", own, f"--socket={family.one.socket}",
            "-uroot", option, "--databases", "shop"]  # fmt: skip
    path = tmp_path / "shop.sql"
    path.write_text(run(argv, timeout=SECONDS, env=os.environ | family.env).stdout)
    version = family.one.ask("SELECT VERSION()")[0][0]
    spool, sql = written(path, tmp_path, family.name, version)
    (said,) = suits(spool.found, family.name, version)
    assert "these statements are left out" in said.what
    family.load(family.other, sql)
    grants = "SHOW GRANTS FOR app@'%'"
    assert family.other.ask(grants) == family.one.ask(grants)
    asked = "SELECT COUNT(*) FROM mysql.user WHERE user IN ('app', 'reader', 'lab')"
    assert family.other.ask(asked) == [(3,)]


@pytest.mark.rare
def test_out_to_a_directory_and_in_again(family: Family, tmp_path: Path) -> None:
    """Each file is a dump; views of one database may be of another's tables."""
    family.one.ask(
        "SET NAMES utf8mb4",
        *COMMON,
        *OWN[family.name],
        "CREATE VIEW `odd ``-- name`.over AS SELECT id FROM shop.many",
        "CREATE PROCEDURE `odd ``-- name`.says ()\nBEGIN\n  DO 1;\n"
        "--\n-- Current Database: `none`\n--\nEND",
    )
    top = tmp_path / "dumps"
    top.mkdir()
    split = Split(lambda name: (top / name).open("ab"))
    whole = dumped(family, [])
    for at in range(0, len(whole), 777):
        split.write(whole[at : at + 777])
    split.complete()
    assert [path.name for path in sorted(top.iterdir())] == [
        "00001_odd_____name.sql", "00002_shop.sql", "00003_odd_____name.sql", "00004_shop.sql",
    ]  # fmt: skip
    version = family.one.ask("SELECT VERSION()")[0][0]
    spool, sql = written(top, tmp_path, family.name, version)
    assert spool.found.dialect == family.name
    assert set(spool.found.databases) == {"shop", "odd `-- name"}
    family.load(family.other, sql)
    assert checksums(family.other) == checksums(family.one)
    assert family.other.ask(OTHERS) == family.one.ask(OTHERS)
    assert family.other.ask("SELECT COUNT(*) FROM `odd ``-- name`.over") == [(900,)]
    [(body,)] = family.other.ask(
        "SELECT routine_definition FROM information_schema.routines WHERE routine_name = 'says'"
    )
    assert "Current Database: `none`" in str(body)
