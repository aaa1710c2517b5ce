"""What users of other tools reported, on real guests: servers and commands at their limits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.e2e.e2e_site import Site
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_FEW = 12
"""Connections that a server allows: as with the default, but filled quickly."""
_SHELF = """\
CREATE DATABASE shelf;
USE shelf;
CREATE TABLE books (
  id INT AUTO_INCREMENT PRIMARY KEY, title VARCHAR(60) NOT NULL, price DECIMAL(8,2),
  vat DECIMAL(8,2) GENERATED ALWAYS AS (ROUND(price * 0.07, 2)) STORED, tags JSON,
  made DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3), cover VARBINARY(8), KEY t (title DESC)
);
INSERT INTO books (title, price, tags, cover) VALUES
  ('Käse & 本', 10.00, '["a","b"]', 0x00FF270A5C), ('Zwei', 20.50, NULL, NULL);
CREATE VIEW cheap AS SELECT id, title FROM books WHERE price < 15;
CREATE TABLE old_days (d DATE NOT NULL DEFAULT '2020-01-01', at TIMESTAMP NULL);
DELIMITER ;;
CREATE TRIGGER books_bi BEFORE INSERT ON books FOR EACH ROW
  BEGIN IF NEW.price IS NULL THEN SET NEW.price = 1; END IF; END ;;
CREATE PROCEDURE dear() BEGIN SELECT MAX(price) FROM books; END ;;
DELIMITER ;
"""
_BOOKS = "SELECT id, title, price, vat, tags, HEX(cover) FROM shelf.books ORDER BY id"


@contextmanager
def _all_connections(view: dict[str, Any]) -> Iterator[int]:
    """Hold all connections that a lab's first node allows its account; their number."""
    (node, *_) = view["nodes"]
    with ExitStack() as held:
        count = 0
        while True:
            try:
                connection = pymysql.connect(
                    host=node["host"], port=node["sql_port"], user=view["user"],
                    password=view["password"], ssl_verify_cert=False, ssl_verify_identity=False,
                )  # fmt: skip
            except pymysql.err.OperationalError as error:
                if error.args[0] != 1040:  # Too many connections
                    raise
                break
            held.callback(connection._force_close)  # type: ignore[attr-defined]
            count += 1
            assert count <= 2 * _FEW
        yield count


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_a_server_whose_connections_are_all_used(installation: Site, engine: str) -> None:
    """Views say why it does not answer, and captures of it can be taken and used."""
    site = installation
    name, other = site.name("full"), site.name("fullb")
    words = ("single", "--engine", engine, "--set", f"max_connections={_FEW}")
    with site.up(*words, "--name", name) as view:
        site.lab("sql", name, "-e", "CREATE DATABASE kept")
        site.lab("snapshot", "take", name, "--label", "before")
        with _all_connections(view) as held:
            assert held >= _FEW - 1
            shown = site.lab("status", name, code=None)
            assert "Too many connections" in shown.stdout + shown.stderr
            (listed,) = site.lab("ls", "-o", "json").json
            assert listed["state"] in ("degraded", "unreachable")
            waited = site.lab("wait", name, "--timeout", "5s", code=None)
            assert waited.code != 0
            assert waited.seconds < 20
            asked = site.lab("sql", name, "-e", "SELECT 1", code=None)
            assert "Too many connections" in asked.stderr
            assert site.lab("logs", name, "-n", "3").stdout
            assert site.lab("exec", name, "--", "echo", "here").stdout == "here\n"
            site.lab("snapshot", "take", name, "--label", "full")
            try:
                # Clients of the lab are none of its branch, whose server drops them at last.
                site.lab("branch", name, other, "--at", "full", timeout=600)
                assert site.sql(other, "n1", "SHOW DATABASES LIKE 'kept'") == [["kept"]]
            finally:
                site.lab("down", other, code=None)
            site.lab("rollback", name, "--to", "before", timeout=600)
            assert site.sql(name, "n1", "SHOW DATABASES LIKE 'kept'") == [["kept"]]
    assert site.settled() == []


@pytest.mark.parametrize(
    ("engine", "modes", "commits"),
    [
        ("mariadb", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,STRICT_ALL_TABLES", "0"),
        ("mysql", "ANSI,NO_BACKSLASH_ESCAPES", "0"),
        ("mariadb", "ORACLE", "1"),
    ],
    ids=["mariadb", "mysql", "oracle"],
)
def test_sessions_with_unusual_defaults(
    installation: Site, engine: str, modes: str, commits: str, tmp_path: Path
) -> None:
    """Made with accounts, rolled back, branched with an identity of its own, and a dataset."""
    site = installation
    name, other, data = site.name("mode"), site.name("modeb"), f"mode-{site.token}"
    accounts = tmp_path / "accounts"
    accounts.write_text("desk_app:pa\\ss\"w'ord@desk_1\n")
    options = ("--set", f"sql_mode={modes}", "--set", f"autocommit={commits}")
    words = ("single", "--engine", engine, *options, "--user", str(accounts), "--name", name)
    with site.up(*words):
        ((found, autocommit),) = site.sql(
            name, "n1", "SELECT @@GLOBAL.sql_mode, @@GLOBAL.autocommit"
        )
        assert set(modes.split(",")) <= set(found.split(","))
        assert autocommit == int(commits)
        site.lab("sql", name, "-e", "CREATE DATABASE desk_1")
        site.lab("snapshot", "take", name, "--label", "one")
        site.lab("rollback", name, "--to", "one", timeout=600)
        try:
            site.lab("branch", name, other, "--identity", "new", timeout=600)
            assert site.sql(other, "n1", "SHOW DATABASES LIKE 'desk%'") == [["desk_1"]]
            site.lab("wait", other, "--timeout", "30s")
        finally:
            site.lab("down", other, code=None)
        made = site.lab("dataset", "create", data, "--from", f"lab:{name}", "-o", "json",
                        timeout=900).json  # fmt: skip
        assert made["engine"].startswith(engine)
        site.lab("dataset", "rm", data)
    assert site.settled() == []


def test_options_of_a_first_start(installation: Site) -> None:
    """They work, or the message says that they cannot; what is off by default can be on."""
    site = installation
    name = site.name("first")
    more = ("--set", "performance_schema=ON", "--set", "log_bin=binlog")
    asked = "SELECT @@performance_schema, @@log_bin, @@lower_case_table_names"
    lower = ("--set", "lower_case_table_names=1")
    refused = site.lab(
        "up", "single", "--engine", "mysql", *more, *lower, "--name", name, code=None
    )
    assert refused.code != 0
    assert "lower_case_table_names" in refused.stderr
    assert site.settled() == []
    with site.up("single", "--engine", "mysql", *more, "--name", name):
        assert site.sql(name, "n1", asked) == [[1, 1, 0]]
        locks = "SELECT COUNT(*) >= 0 FROM performance_schema.metadata_locks"
        assert site.sql(name, "n1", locks) == [[1]]
    with site.up("single", "--engine", "mariadb", *more, *lower, "--name", name):
        assert site.sql(name, "n1", asked) == [[1, 1, 1]]
    assert site.settled() == []


@pytest.fixture
def programs() -> Iterator[Path]:
    try:
        with mysql_server.reachable_clients() as path:
            yield path
    except NoServer as why:
        pytest.skip(str(why))


def test_a_live_server_of_mysql_becomes_datasets_of_both_families(
    installation: Site, programs: Path, tmp_path: Path
) -> None:
    """By its address and account, whose password appears nowhere; what cannot go is named."""
    site = installation
    name, copy, data = site.name("live"), site.name("livec"), f"live-{site.token}"
    script = tmp_path / "shelf.sql"
    script.write_text(_SHELF, encoding="utf-8")
    with site.up("single", "--engine", "mysql", "--init", str(script), "--name", name) as view:
        (node,) = view["nodes"]
        source = f"mysql://{view['user']}@{node['host']}:{node['sql_port']}/shelf"
        secret = {
            "LAB_SOURCE_PASSWORD": view["password"],
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        books = site.sql(name, "n1", _BOOKS)
        assert [row[1] for row in books] == ["Käse & 本", "Zwei"]
        for engine in ("mariadb", "mysql"):
            create = ("dataset", "create", data, "--from", source, "--engine", engine)
            made = site.lab(*create, env=secret, timeout=900)
            assert view["password"] not in made.stdout + made.stderr
            with site.up("single", "--dataset", data, "--name", copy) as other:
                assert other["engine"].startswith(engine)
                assert [row[:4] + row[5:] for row in site.sql(copy, "n1", _BOOKS)] == [
                    row[:4] + row[5:] for row in books
                ]
                assert site.sql(copy, "n1", "SELECT id FROM shelf.cheap") == [[1]]
                site.sql(copy, "n1", "INSERT INTO shelf.books (title) VALUES ('Drei')")
                cheap = "SELECT price FROM shelf.books WHERE title = 'Drei'"
                assert site.sql(copy, "n1", cheap) == [["1.00"]]
                assert site.sql(copy, "n1", "CALL shelf.dear()") == [["20.50"]]
            site.lab("dataset", "rm", data)
        for odd, what in (
            ("CREATE TABLE shelf.expr (a VARCHAR(20), KEY k ((LOWER(a))))", "on expressions"),
            ("CREATE TABLE shelf.none (a INT, b INT AS (a + 1) VIRTUAL NOT NULL)", "NOT NULL"),
        ):
            site.sql(name, "n1", odd)
            create = ("dataset", "create", data, "--from", source, "--engine", "mariadb")
            done = site.lab(*create, env=secret, code=None, timeout=900)
            assert what in done.stderr, done
            site.lab("dataset", "rm", data, code=None)
            site.sql(name, "n1", f"DROP TABLE {odd.split()[2]}")
    assert site.settled() == []


def test_streams_of_exec(image: Site, tmp_path: Path) -> None:
    """All output and input passes, whatever its size; the node answers afterwards."""
    name = image.name("streams")
    size = 20 << 20
    blob = os.urandom(2 << 20)
    (tmp_path / "blob").write_bytes(blob)
    command = [*image.prefix, sys.executable, "-m", "lab", "exec"]
    with image.up("single", "--name", name):
        words = [*command, name, "--", "head", "-c", str(size), "/dev/zero"]
        out = subprocess.run(
            words, cwd=image.root, env=image.env, stdout=subprocess.PIPE, timeout=300, check=True
        ).stdout
        assert out == bytes(size)
        with (tmp_path / "blob").open("rb") as stdin:
            summed = subprocess.run(
                [*command, "--stdin", name, "--", "sha256sum"],
                cwd=image.root, env=image.env, stdin=stdin, stdout=subprocess.PIPE, timeout=300,
                check=True,
            ).stdout  # fmt: skip
        assert summed.split()[0].decode() == hashlib.sha256(blob).hexdigest()
        program = "sleep 60 >/dev/null 2>&1 & echo begun"
        done = image.lab("exec", name, "--", "sh", "-c", program, timeout=60)
        assert done.stdout == "begun\n"
        assert image.lab("exec", name, "--agent", "--", "echo", "here").stdout == "here\n"
        assert image.lab("snapshot", "take", name, "--label", "after").code == 0
    assert image.settled() == []
