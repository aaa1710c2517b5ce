"""What sources become on a server of MySQL: generated data, dumps of a lab and of a live server."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lab.cli.verbs.copy import _DUMP
from lab.config.enginefile import family_of
from lab.datasets.generate import generate
from lab.datasets.source import Sysbench, Tpcc
from lab.datasets.survey import suits, survey
from lab.run import run
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server

SECONDS = 120.0
GENERATED = "made VARCHAR(60) GENERATED ALWAYS AS (UPPER(name)) STORED, "
SCHEMA = (
    "CREATE DATABASE shop",
    (
        "CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) COLLATE"
        f" utf8mb4_0900_as_cs, doc JSON, {GENERATED}"
        "hidden INT DEFAULT 7 INVISIBLE, at TIMESTAMP(6) NULL, d DECIMAL(20,6), b BIT(3), bl BLOB,"
        " u VARCHAR(40) DEFAULT (UUID()), g POINT SRID 4326, KEY ((LOWER(name))))"
    ),
    (
        "INSERT INTO shop.t (name, doc, at, d, b, bl, g) VALUES"
        " ('\u00c4da''\\\\', '{\"a\": [1, 2.50, \"x\"]}', '2024-10-27 00:30:00.5', 12.5, b'101',"
        " 0x00FF0A27, ST_GeomFromText('POINT(1 2)', 4326)),"
        " ('Grace', NULL, NULL, NULL, NULL, NULL, NULL)"
    ),
    "CREATE TABLE shop.audit (id INT AUTO_INCREMENT PRIMARY KEY, old VARCHAR(60))",
    (
        "CREATE TRIGGER shop.seen BEFORE UPDATE ON shop.t FOR EACH ROW"
        " INSERT INTO shop.audit (old) VALUES (OLD.name)"
    ),
    "CREATE FUNCTION shop.twice (n INT) RETURNS INT DETERMINISTIC RETURN 2 * n",
    "CREATE EVENT shop.later ON SCHEDULE EVERY 1 DAY DO DELETE FROM shop.audit",
    "CREATE DEFINER = gone@'10.%' VIEW shop.names AS SELECT name FROM shop.t",
)
ROWS = "SELECT *, hidden, ST_AsText(g) FROM shop.t ORDER BY id"
COUNTS = (
    "SELECT (SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 'shop'),"
    " (SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = 'shop'),"
    " (SELECT COUNT(*) FROM information_schema.events WHERE event_schema = 'shop'),"
    " (SELECT definer FROM information_schema.views WHERE table_schema = 'shop')"
)


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    try:
        with mysql_server.server() as one, mysql_server.server() as other:
            yield one, other
    except NoServer as reason:
        pytest.skip(str(reason))


def load(server: Server, sql: Iterable[bytes]) -> None:
    """Execute SQL as the guest that loads does."""
    with tempfile.TemporaryDirectory() as path:
        mysql_server.clients(mysql_server.kept_root(), Path(path))
        argv = [f"{path}/mysql", "--no-defaults", f"--socket={server.socket}", "--user=root",
                "--batch", "--binary-mode", "--default-character-set=utf8mb4"]  # fmt: skip
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.writelines(sql)
            process.stdin.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
            assert process.wait(SECONDS) == 0


@pytest.mark.rare
def test_generated_data(servers: tuple[Server, Server]) -> None:
    server, _ = servers
    # As in groups and in Percona XtraDB Cluster.
    server.ask("SET GLOBAL sql_require_primary_key = ON")
    load(server, generate(Sysbench(tables=2, rows=300)))
    load(server, generate(Tpcc(warehouses=1)))
    assert server.ask("SELECT COUNT(*) FROM sbtest.sbtest2") == [(300,)]
    assert server.ask("SELECT COUNT(*) FROM tpcc.customer") == [(30000,)]
    assert server.ask("SELECT MIN(h_id), MAX(h_id), COUNT(*) FROM tpcc.history") == [
        (1, 30000, 30000)
    ]


def test_a_dump_of_a_lab_is_loaded_again(servers: tuple[Server, Server]) -> None:
    """The way out and in again: rows, and all that databases have, are what they were."""
    one, other = servers
    one.ask(*SCHEMA)
    with tempfile.TemporaryDirectory() as path:
        mysql_server.clients(mysql_server.kept_root(), Path(path))
        script = _DUMP.replace("/run/mysqld/mysqld.sock", str(one.socket))
        env = {"PATH": f"{path}:/usr/bin:/bin"}
        argv = ["sh", "-c", script, "sh", *family_of("mysql").dump, "shop"]
        dumped = run(argv, timeout=SECONDS, env=env).stdout.encode()
    found = survey([dumped])
    assert (found.dialect, found.complete, found.databases) == ("mysql", True, ("shop",))
    assert suits(found, "mysql", found.version) == ()
    load(other, [dumped])
    assert other.ask(ROWS) == one.ask(ROWS)
    assert other.ask(COUNTS) == one.ask(COUNTS) == [(1, 1, 1, "gone@10.%")]
