"""Client programs that send what users give: a real server gets it as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.blueprints import Engine, server
from lab.cli.flags import Cluster, wanted
from lab.config.settings import Settings
from lab.lifecycle.labs.query import program
from lab.observe.account import Account
from lab.paths import Home
from lab.run import run
from tests.support import mariadb_server
from tests.support.mariadb_server import NoServer, Server, client

ROUTINE = b"""CREATE DATABASE shop; USE shop;
DELIMITER ;;
CREATE PROCEDURE says ()
BEGIN
  -- why
  /* it does */ DO 1;
END;;
"""
BODY = "SELECT routine_definition FROM information_schema.routines WHERE routine_name = 'says'"


def in_guest(program: Path, at: Server) -> list[str]:
    """What executes the text of ``--init`` in a node, here."""
    engine = Engine("mariadb", "11.8", "", "/etc/my.cnf", "mysql", 1, 1)
    argv = [str(program), *server.client(engine)[1:]]
    return [f"--socket={at.socket}" if "--socket" in word else word for word in argv]


@pytest.mark.parametrize("of", ["lab sql", "--init"])
def test_comments_in_routines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Protects who reads a routine afterwards: MariaDB's client drops comments by default."""
    try:
        found, env = client("mariadb", "mariadb-client-core")
    except NoServer as reason:
        pytest.skip(str(reason))
    (tmp_path / "mariadb").symlink_to(found)
    with mariadb_server.server() as one:
        if of == "lab sql":
            monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
            asked = program(Account("root", ""), 3306, tmp_path / "options")
            here = f"protocol=socket\nsocket={one.socket}"
            text = asked.content.replace("host=127.0.0.1\n", "").replace("protocol=tcp", here)
            asked.options.write_text(text)
            argv = list(asked.argv)
        else:
            argv = in_guest(found, one)
        run(argv, stdin=ROUTINE, timeout=60, env=env)
        [(body,)] = one.ask(BODY)
    assert "-- why" in str(body)
    assert "/* it does */" in str(body)


INIT = """\
\ufeff# for the shop: it's "new"; `done`
CREATE DATABASE shop CHARACTER SET utf8mb4; # and its table
USE shop;
-- a word each
CREATE TABLE words (id INT PRIMARY KEY, word VARCHAR(40) CHARACTER SET utf8mb4);
DELIMITER $$
CREATE PROCEDURE add_word (id INT, word VARCHAR(40) CHARACTER SET utf8mb4)
BEGIN
  # twice, so that there is a ; within
  INSERT INTO words VALUES (id, word);
  INSERT INTO words VALUES (id + 1, CONCAT(word, '#1; \\\\'));
END$$
DELIMITER ;
CALL add_word(1, '\U0001f99c \u00fc');
"""


def test_first_statements_as_people_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects `--init`: comments, DELIMITER, emoji; its rows stay also without autocommit."""
    try:
        found, env = client("mariadb", "mariadb-client-core")
    except NoServer as reason:
        pytest.skip(str(reason))
    monkeypatch.chdir(tmp_path)
    Path("init.sql").write_text(INIT, encoding="utf-8")
    settings = Settings(home=Home(tmp_path), owner="me")
    text = wanted(settings, Cluster(blueprint="single", init="init.sql")).chosen.init
    with mariadb_server.server(["--autocommit=0"]) as one:
        run(in_guest(found, one), stdin=text.encode(), timeout=60, env=env | {"LC_ALL": "C"})
        rows = one.ask("SELECT word FROM shop.words ORDER BY id")
    assert rows == [("\U0001f99c \u00fc",), ("\U0001f99c \u00fc#1; \\",)]
