"""Client programs that send what users give: a real server gets it as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.blueprints import Engine, server
from lab.lifecycle.labs.query import program
from lab.observe.account import Account
from lab.run import run
from tests.support import mariadb_server
from tests.support.mariadb_server import NoServer, client

ROUTINE = b"""CREATE DATABASE shop; USE shop;
DELIMITER ;;
CREATE PROCEDURE says ()
BEGIN
  -- why
  /* it does */ DO 1;
END;;
"""
BODY = "SELECT routine_definition FROM information_schema.routines WHERE routine_name = 'says'"


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
            engine = Engine("mariadb", "11.8", "", "/etc/my.cnf", "mysql", 1, 1)
            argv = [str(found), *server.client(engine)[1:]]
            argv = [f"--socket={one.socket}" if "--socket" in word else word for word in argv]
        run(argv, stdin=ROUTINE, timeout=60, env=env)
        [(body,)] = one.ask(BODY)
    assert "-- why" in str(body)
    assert "/* it does */" in str(body)
