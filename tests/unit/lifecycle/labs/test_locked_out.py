"""The accounts that an upgrade reports as locked out, on real servers of both families."""

from __future__ import annotations

import pytest

from lab.lifecycle.labs.upgrade import LOCKED_OUT
from tests.support import mariadb_server, mysql_server
from tests.support.mariadb_server import NoServer

ACCOUNTS = ("CREATE ROLE reader", "CREATE USER app@'%' IDENTIFIED BY 'x'", "CREATE USER old@'%'")
LEFT = {
    "mariadb": "UPDATE mysql.global_priv SET priv = JSON_SET(priv, '$.plugin', 'gone')"
    " WHERE user = 'old'",
    "mysql": "UPDATE mysql.user SET plugin = 'gone' WHERE user = 'old'",
}


@pytest.mark.parametrize("family", ["mariadb", "mysql"])
def test_who_cannot_log_in(family: str) -> None:
    """Protects from a false alarm: roles log in nowhere, and are no accounts."""
    start = {"mariadb": mariadb_server.server, "mysql": mysql_server.server}[family]
    try:
        with start() as server:
            server.ask(*ACCOUNTS)
            assert list(server.ask(LOCKED_OUT)) == []
            server.ask(LEFT[family])
            assert [row[0] for row in server.ask(LOCKED_OUT)] == ["old@% (gone)"]
    except NoServer as why:
        pytest.skip(str(why))
