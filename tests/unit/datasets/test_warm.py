"""What is read into memory when a template with a dataset is formed, on both families."""

from __future__ import annotations

import pytest

from lab.lifecycle.captures.warm import _SMALL
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, server

HIDDEN = {"mariadb": "IGNORED", "mysql": "INVISIBLE"}


@pytest.mark.parametrize("dialect", list(HIDDEN))
def test_indexes_that_are_hidden_are_not_read(dialect: str) -> None:
    """Protects labs of a dataset with such an index: FORCE INDEX of it is an error (1176)."""
    start = {"mariadb": server, "mysql": mysql_server.server}[dialect]
    try:
        with start() as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT, b INT, KEY `se``en` (a),"
                f" KEY hidden (b) {HIDDEN[dialect]})",
                "INSERT INTO shop.t VALUES (1, 2, 3)",
            )
            statements = [row[0] for row in db.ask(_SMALL)]
            assert statements == [
                "CHECKSUM TABLE `shop`.`t` EXTENDED",
                "SELECT COUNT(*) FROM `shop`.`t` FORCE INDEX (`se``en`)",
            ]
            db.ask(*statements)
    except NoServer as reason:
        pytest.skip(str(reason))
