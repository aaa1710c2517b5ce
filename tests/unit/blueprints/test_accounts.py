"""Accounts that a lab is given, on real servers of both engines: what they may do, and where."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from lab import users
from lab.blueprints.dialects import dialect_of
from tests.unit.blueprints.test_replication import (
    RealCluster,
    _spec,
    cluster,
    engine,
    starter,
)
from tests.unit.blueprints.test_switchover import clone

__all__ = ["cluster", "engine", "starter"]

_DENIED = 1142, 1044, 1227
"""Errors of servers: no right on a table, on a database, to administer."""


def login(
    real: RealCluster, node: str, user: str, password: str, *, tls: bool = True
) -> pymysql.Connection[Any]:
    (address,) = (one.address for one in real.members if one.name == node)
    more: dict[str, Any] = {}
    if tls:
        more = real.tls
    return pymysql.connect(
        host=address, user=user, password=password, autocommit=True, read_timeout=20, **more
    )


def errno(db: pymysql.Connection[Any], statement: str) -> int:
    """The number of the error that a statement gives, 0 for none."""
    try:
        with db.cursor() as cursor:
            cursor.execute(statement)
    except pymysql.Error as error:
        return int(error.args[0])
    return 0


USERS = users.parse("app:s3:cr@t@my_shop\nall:Zu'\"\\@*\n", "here")


@pytest.mark.parametrize("spec", [_spec(2, user=USERS)])
def test_accounts_of_real_servers(cluster: RealCluster) -> None:
    """Protects the other databases, the server, and a password with the signs of the form."""
    writer = cluster.servers["n1"]
    writer.ask(
        "CREATE DATABASE my_shop", "CREATE DATABASE myXshop", "CREATE TABLE myXshop.t (a INT)"
    )
    clone(cluster)
    alter = dialect_of(cluster.engine).alter
    require = alter.format(account="app", identified="", require="REQUIRE X509")
    writer.ask("GRANT SELECT ON *.* TO app", require)
    clone(cluster, "other")  # as a rollback does it: with all of it there already, and more
    cluster.until_ready()
    with (
        login(cluster, "n1", "app", "s3:cr@t") as app,
        login(cluster, "n1", "all", "Zu'\"\\") as all_,
    ):
        assert errno(app, "CREATE TABLE my_shop.t (a INT)") == 0
        assert errno(app, "INSERT INTO my_shop.t VALUES (1)") == 0
        assert errno(app, "SELECT * FROM myXshop.t") in _DENIED  # _ is no pattern
        assert errno(app, "SET GLOBAL max_connections = 5") in _DENIED
        assert errno(all_, "INSERT INTO myXshop.t VALUES (1)") == 0
        assert errno(all_, "CREATE DATABASE third") == 0
        assert errno(all_, "SET GLOBAL max_connections = 5") in _DENIED
    cluster.until_ready()
    with login(cluster, "n2", "all", "Zu'\"\\") as replica:
        assert errno(replica, "SELECT * FROM my_shop.t") == 0
        assert errno(replica, "INSERT INTO my_shop.t VALUES (2)") == 1290  # it is read-only
    with pytest.raises(pymysql.OperationalError):
        login(cluster, "n1", "app", "wrong")
