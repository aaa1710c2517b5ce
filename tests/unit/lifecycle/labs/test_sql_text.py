"""What `lab sql` runs on a real server: statements, their results, its errors, its client."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.errors import LabError, NotReady, StatementRefused
from lab.lifecycle.labs.query import at_all, program
from lab.observe.account import Account
from lab.observe.sql import ask, ask_text
from lab.observe.ways import Rows
from tests.support.mariadb_server import NoServer, Server, client, server

ACCOUNT = Account("lab", "s'ecret \\ #x", "127.0.0.1", "")


@dataclass(frozen=True)
class Listening:
    """A server with the account of a lab, on a port."""

    server: Server
    port: int

    def text(self, text: str, database: str = "") -> list[Rows]:
        return list(ask_text(ACCOUNT, self.port, text, timeout=30, database=database))


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"]
    try:
        with server(options) as found:
            found.ask(
                "CREATE DATABASE crm CHARACTER SET utf8mb4",
                "CREATE TABLE crm.words (t VARCHAR(40))",
                "CREATE USER lab@'%' IDENTIFIED BY 's''ecret \\\\ #x'",
                "GRANT ALL ON *.* TO lab@'%'",
                "CREATE PROCEDURE crm.two() BEGIN SELECT 1 AS a; SELECT 2 AS b, 3 AS c; END",
            )
            yield Listening(found, port)
    except NoServer as error:
        pytest.skip(str(error))


def test_every_statement_has_its_result(listening: Listening) -> None:
    """Protects `lab sql -e` with several statements, and routines that select more than once."""
    found = listening.text("SELECT 1 AS a; INSERT INTO words VALUES ('x'), ('y'); SELECT 2;", "crm")
    assert found == [Rows(("a",), ((1,),), 1), Rows((), (), 2), Rows(("2",), ((2,),), 1)]
    found = listening.text("CALL two()", "crm")
    assert [one.columns for one in found] == [("a",), ("b", "c"), ()]


def test_what_came_before_an_error_is_kept(listening: Listening) -> None:
    """Protects who looks for what was done: the error is the server's, as its client prints it."""
    results = ask_text(ACCOUNT, listening.port, "SELECT 1; SELECT * FROM crm.nowhere", timeout=30)
    assert next(results).rows == ((1,),)
    with pytest.raises(StatementRefused) as refused:
        next(results)
    assert refused.value.what == "ERROR 1146 (42S02): Table 'crm.nowhere' doesn't exist"
    assert (refused.value.exit_code, refused.value.status) == (6, 1146)
    with pytest.raises(StatementRefused, match=r"^ERROR 1064 \(42000\): You have an error"):
        ask(ACCOUNT, listening.port, "SELEKT 1; SELECT 2", timeout=30)
    with pytest.raises(StatementRefused, match=r"^ERROR 1049 \(42000\): Unknown database 'none'"):
        listening.text("SELECT 1", "none")


def test_our_own_questions_are_one_statement(listening: Listening) -> None:
    """Protects from a second statement in what we compose: only a user's text may have several."""
    with pytest.raises(StatementRefused, match="1064"):
        ask(ACCOUNT, listening.port, "SELECT 1; SELECT 2", timeout=30)


def test_nodes_are_asked_at_the_same_time(listening: Listening) -> None:
    """Protects `--all-nodes`: each node has its own results or error, in the order of the nodes."""
    logins: dict[str, tuple[Account, int] | LabError] = {
        "n1": (ACCOUNT, listening.port),
        "n2": NotReady("n2 of shop does not run"),
        "n3": (Account("lab", "wrong", "127.0.0.1", ""), listening.port),
    }

    def ask_here(account: Account, port: int) -> Iterator[Rows]:
        return ask_text(account, port, "SELECT 1; SELECT nope", timeout=30)

    one, two, three = at_all(logins, ask_here)
    assert (one.node, one.results[0].rows, one.code) == ("n1", ((1,),), 6)
    assert one.error.startswith("ERROR 1054 (42S22): Unknown column 'nope'")
    assert (two.node, two.results, two.error, two.code) == ("n2", (), "n2 of shop does not run", 7)
    assert "Access denied" in three.error


STRANGE: Mapping[str, Mapping[str, str]] = {
    "C": {"LC_ALL": "C"},
    "POSIX": {"LC_ALL": "POSIX"},
    "latin1": {"LC_ALL": "en_US.ISO-8859-1", "LANG": "de_DE"},
    "other server": {"MYSQL_HOST": "192.0.2.1", "MYSQL_TCP_PORT": "1", "MYSQL_PWD": "x"},
    "other socket": {"MYSQL_UNIX_PORT": "/nowhere", "MYSQL_TEST_LOGIN_FILE": "/etc/passwd"},
    "time": {"TZ": "Pacific/Kiritimati"},
}


@pytest.mark.parametrize("name", STRANGE)
def test_the_client_takes_nothing_from_its_caller(
    listening: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Protects data: UTF-8 is stored as it is, on the lab's server, whatever surrounds the caller.

    The option file of the caller's home would change the character set, and the server.
    """
    try:
        path, env = client("mariadb", "mariadb-client-core")
    except NoServer as error:
        pytest.skip(str(error))
    (tmp_path / ".my.cnf").write_text(
        "[client]\nhost=192.0.2.1\ndefault-character-set=latin1\nuser=nobody\n"
        "[mysql]\ndatabase=nowhere\ninit-command='CREATE DATABASE hostile'\n"
        "[mariadb]\nskip-column-names=0\n"
    )
    # As a user has it: the program in PATH, and its libraries with it.
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    if libraries := env.get("LD_LIBRARY_PATH"):
        monkeypatch.setenv("LD_LIBRARY_PATH", libraries)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, value in STRANGE[name].items():
        monkeypatch.setenv(variable, value)
    plain = Account(ACCOUNT.user, ACCOUNT.password, ACCOUNT.host, "/dev/null")
    opened = program(plain, listening.port, tmp_path / "options.cnf", database="crm")
    # The server of this test has no certificate.
    content = "".join(
        line for line in opened.content.splitlines(keepends=True) if not line.startswith("ssl")
    )
    listening.server.ask("DELETE FROM crm.words")
    with opened:
        opened.options.write_text(content + "skip-ssl\n")
        done = subprocess.run(
            opened.argv, env=dict(opened.env), input="INSERT INTO words VALUES ('ž 🗑');".encode(),
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert listening.server.ask("SELECT HEX(t) FROM crm.words") == [("C5BE20F09F9791",)]
    assert listening.server.ask("SHOW DATABASES LIKE 'hostile'") == []
    assert "secret" not in " ".join(opened.argv)
