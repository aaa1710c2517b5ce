"""A source and its replicas on real guests."""

from __future__ import annotations

import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import ZONES, Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"


NODES = ("n1", "n2", "n3")


def _shop(dsn: str) -> None:
    for statement in (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1)",
    ):
        query(dsn, statement)


def _replicated(site: Site, lab: str, rows: int) -> None:
    """Every replica has so many rows, soon."""
    for node in ("n2", "n3"):
        assert until(
            lambda node=node: site.sql(lab, node, _COUNT) == [[rows]],  # type: ignore[misc]
            Deadline.after(20),
        ), node


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_a_source_and_its_replicas(image: Site, engine: str) -> None:
    """`lab up replication`: side by side, nodes and all of it lost and back, rolled back."""
    name, other = image.name("repl"), image.name("other")
    what = ("replication", "--engine", engine)
    with image.up(*what, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert [node["role"] for node in view["nodes"]] == ["source", "replica", "replica"]
        _shop(view["dsn"])
        _replicated(image, name, 1)
        zones = {tuple(image.sql(name, node, ZONES)[0]) for node in ("n1", "n2", "n3")}
        assert [zone[:2] for zone in zones] == [(1, 1)], zones
        refused = image.lab("sql", name, "--node", "n2", "-e", "DELETE FROM shop.orders", code=6)
        assert "read-only" in refused.stderr
        # Another one, with the same names of nodes: neither sees the other.
        with image.up(*what, "--name", other) as second:
            query(second["dsn"], "CREATE DATABASE elsewhere")
            assert image.sql(other, "n3", "SHOW DATABASES LIKE 'shop'") == []
            accounts = "SELECT authentication_string FROM mysql.user WHERE user = 'replication'"
            passwords = {image.sql(lab, "n1", accounts)[0][0] for lab in (name, other)}
            assert len(passwords) == 2
            shown = "SHOW REPLICAS" if engine == "mysql" else "SHOW REPLICA HOSTS"
            hosts = image.sql(other, "n1", shown)
            assert sorted(str(row[1]) for row in hosts) == ["n2", "n3"]
        image.lab("snapshot", "take", name, "--label", "one")
        # The source goes and comes back.
        image.lab("stop", name, "--node", "n1")
        shown = image.lab("status", name, "-o", "json", code=None).json["lab"]
        states = {node["name"]: node["state"] for node in shown["nodes"]}
        assert states == {"n1": "stopped", "n2": "degraded", "n3": "degraded"}
        image.lab("start", name, "--node", "n1", "--timeout", "200")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (2)")
        _replicated(image, name, 2)
        # All of it loses its power.
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        _replicated(image, name, 2)
        query(view["dsn"], "INSERT INTO shop.orders VALUES (3)")
        _replicated(image, name, 3)
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        _replicated(image, name, 1)
        query(view["dsn"], "INSERT INTO shop.orders VALUES (4)")
        _replicated(image, name, 2)
    assert image.settled() == []


def test_its_data_as_a_dataset(image: Site) -> None:
    """Nodes of labs with the dataset replicate from a first transaction of their own."""
    name, other, data = image.name("repl"), image.name("other"), image.name("data")
    with image.up("replication", "--name", name) as view:
        _shop(view["dsn"])
        image.lab("dataset", "create", data, "--from", f"lab:{name}", timeout=300)
    with image.up("replication", "--name", other, "--dataset", data) as view:
        _replicated(image, other, 1)
        query(view["dsn"], "INSERT INTO shop.orders VALUES (9)")
        _replicated(image, other, 2)
        positions = {str(image.sql(other, node, "SELECT @@gtid_binlog_pos")) for node in NODES}
        assert len(positions) == 1
    image.lab("dataset", "rm", data)
    assert image.settled() == []
