"""Servers whose users chose other defaults of sessions: what the program executes works there."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import users
from lab.blueprints import Engine, Release, blueprint
from lab.blueprints import server as servers
from lab.blueprints.replication import account
from lab.datasets.selection import Selection
from lab.datasets.source import parse
from lab.lifecycle.datasets import spool as spools
from lab.observe.account import Account
from lab.observe.sql import ask_all, ask_text
from lab.options import Options
from lab.run import run
from tests.support.mariadb_server import NoServer, Server, client, server
from tests.unit.guest.test_identity_in_guest import program

DEFAULTS = (
    "sql_mode = 'ANSI_QUOTES'",
    "sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "sql_mode = 'ORACLE'",
    "autocommit = 0",
)
PASSWORD = "s'ecret \\ \"#x"
ENGINE = Engine("mariadb", "11.8", "", "/etc/my.cnf", "mysql", 1, 1)


@dataclass(frozen=True)
class Listening:
    server: Server
    port: int

    def in_guest(self, directory: Path, statements: Sequence[str]) -> str:
        """Execute statements as a node does, by its own program."""
        program("mysql.pl", directory, self.server.socket)
        path = program("sql", directory, self.server.socket)
        stdin = "".join(f"{one}\n" for one in statements).encode()
        return run(["perl", path], stdin=stdin, timeout=60).stdout


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}",
               "--log-bin=binlog", "--server-id=1"]  # fmt: skip
    try:
        with server(options) as found:
            found.ask("CREATE USER lab@'%' IDENTIFIED BY 'x' ACCOUNT LOCK")
            yield Listening(found, port)
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture(params=DEFAULTS)
def changed(request: pytest.FixtureRequest, listening: Listening) -> Iterator[Listening]:
    """A server with one of these defaults."""
    name = request.param.partition(" ")[0]
    listening.server.ask(f"SET GLOBAL {request.param}")
    yield listening
    listening.server.ask(f"SET GLOBAL {name} = DEFAULT")
    listening.server.ask("DROP DATABASE IF EXISTS shop", "DROP USER IF EXISTS app@'%'")


@pytest.mark.skipif(os.geteuid() != 0, reason="a guest's programs run as root")
@pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")
def test_accounts_and_questions(changed: Listening, tmp_path: Path) -> None:
    """Protects a lab with such servers: it is formed, logged in to, and observed."""
    options = Options(user=users.parse(f"app:{PASSWORD}@shop", "here"))
    made = [
        *account(ENGINE, PASSWORD),
        *servers.accounts(ENGINE, "lab", PASSWORD, options, tls=False),
        "GRANT ALL PRIVILEGES ON *.* TO lab@'%'",
    ]
    changed.in_guest(tmp_path, made)
    lab = Account("lab", PASSWORD, "127.0.0.1", "")
    for name, role in (("replication", "source"), ("single", "server"), ("galera", "member")):
        question = blueprint(name).question(role, {}, Release(ENGINE.name, ENGINE.version))
        (answer,) = ask_all(lab, changed.port, [question], timeout=30)
        assert answer.rows, name
        assert changed.in_guest(tmp_path, [question]), name
    text = "CREATE DATABASE shop; CREATE TABLE shop.t (a INT PRIMARY KEY, b TEXT);"
    list(ask_text(lab, changed.port, f"{text} INSERT INTO shop.t VALUES (1, 'it''s')", timeout=30))
    app = Account("app", PASSWORD, "127.0.0.1", "")
    (rows,) = ask_text(app, changed.port, "SELECT b FROM shop.t", timeout=30)
    assert rows.rows == (("it's",),)


@pytest.mark.usefixtures("_programs")
def test_it_is_dumped_and_loaded_as_it_was(changed: Listening, tmp_path: Path) -> None:
    """Protects a dataset of such a server, and one that is loaded into such a server."""
    db = changed.server
    begin = "AS BEGIN" if "ORACLE" in db.ask("SELECT @@sql_mode")[0][0] else "() BEGIN"
    db.ask(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (a INT PRIMARY KEY, b TEXT)",
        "INSERT INTO shop.t VALUES (1, CONCAT('it''s ', CHAR(92, 34, 96, 10, 92)))",
        f"CREATE PROCEDURE shop.p {begin} DELETE FROM t; END",
    )
    before = db.ask("SELECT a, HEX(b) FROM shop.t")
    spool = spools.write(
        parse(f"mysql://root@127.0.0.1:{changed.port}/shop"), [], tmp_path / "spool", "shop",
        lambda _: None, Selection(), dialect="mariadb",
    )  # fmt: skip
    db.ask("DROP DATABASE shop")
    found, env = client("mariadb", "mariadb-client-core")
    argv = [str(found), "--no-defaults", f"--socket={db.socket}", "--user=root", "--batch"]
    argv += ["--binary-mode", "--comments", "--default-character-set=utf8mb4"]
    run(argv, timeout=60, stdin=spool.path.read_bytes(), env=env)
    assert db.ask("SELECT a, HEX(b) FROM shop.t") == before
    assert db.ask("SELECT routine_name FROM information_schema.routines") == [("p",)]


@pytest.fixture
def _programs(monkeypatch: pytest.MonkeyPatch, listening: Listening) -> None:
    """The client programs of a live server, and an account that they can use."""
    try:
        found = [client("mariadb-dump", "mariadb-client"), client("mariadb", "mariadb-client-core")]
    except NoServer as error:
        pytest.skip(str(error))
    places = [str(path.parent) for path, _ in found]
    monkeypatch.setenv("PATH", os.pathsep.join([*places, os.environ["PATH"]]))
    monkeypatch.setenv("LAB_SOURCE_PASSWORD", "secret")
    listening.server.ask(
        "CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY 'secret'",
        "GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION",
    )
