"""A single server on a real guest: the second topology, from the image of the first."""

from __future__ import annotations

import pytest

from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = pytest.mark.e2e

_COUNT = "SELECT COUNT(*) FROM shop.orders"


@pytest.mark.rare
def test_a_single_server(image: Site) -> None:
    """`lab up single`: warm, written to, stopped and started, rolled back, removed."""
    name = image.name("solo")
    with image.up("single", "--name", name) as view:
        assert (view["state"], view["started"], len(view["nodes"])) == ("ready", "warm", 1)
        assert view["nodes"][0]["role"] == "server"
        assert query(view["dsn"], "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'") == [("wsrep_on", "OFF")]
        assert query(view["dsn"], "SHOW GLOBAL VARIABLES LIKE 'read_only'")[0][1] == "OFF"
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        ):
            image.sql(name, "n1", statement)
        image.lab("snapshot", "take", name, "--label", "one")
        image.sql(name, "n1", "INSERT INTO shop.orders VALUES (2)")
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        assert image.sql(name, "n1", _COUNT) == [[2]]
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        assert image.sql(name, "n1", _COUNT) == [[1]]
        requirements = image.lab("status", name, "-o", "json").json["requirements"]
        assert [(one["name"], one["met"]) for one in requirements] == [
            ("SQL", True), ("writable", True),
        ]  # fmt: skip
        assert "mariadbd" in image.lab("logs", name, "-n", "200").stdout
    assert image.settled() == []
    assert "exactly one node" in image.lab("up", "single", "--nodes", "2", code=2).stderr
