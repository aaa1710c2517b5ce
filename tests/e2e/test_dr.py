"""A Galera cluster and its remote site on real guests."""

from __future__ import annotations

from typing import Any

import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"
_NODES = ("n1", "n2", "n3", "n4")


def _states(site: Site, lab: str) -> dict[str, str]:
    shown = site.lab("status", lab, "-o", "json", code=None).json["lab"]
    return {node["name"]: node["state"] for node in shown["nodes"]}


def _source(site: Site, lab: str) -> str:
    """The last part of the address that the replica follows."""
    return str(site.sql(lab, "n4", "SHOW REPLICA STATUS")[0][1]).rpartition(".")[2]


def _there(site: Site, lab: str, rows: int, nodes: tuple[str, ...] = _NODES) -> None:
    """All ``nodes`` have so many rows, soon."""
    for node in nodes:
        assert until(
            lambda node=node: site.sql(lab, node, _COUNT) == [[rows]],  # type: ignore[misc]
            Deadline.after(30),
        ), node


def _positions(site: Site, lab: str) -> set[str]:
    """The positions of the cluster's domain in the binary logs of its members."""
    found: list[Any] = [site.sql(lab, n, "SELECT @@gtid_binlog_pos")[0][0] for n in _NODES[:3]]
    return {next(one for one in str(pos).split(",") if one.startswith("0-")) for pos in found}


def test_a_cluster_and_its_remote_site(image: Site) -> None:
    """`lab up galera-dr`: side by side, the link's source lost and back, rolled back."""
    name, other = image.name("dr"), image.name("other")
    with image.up("galera-dr", "--name", name) as view:
        assert (view["state"], view["started"], view["engine"]) == ("ready", "warm", "mariadb")
        assert [node["role"] for node in view["nodes"]] == ["member"] * 3 + ["replica"]
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        ):
            query(view["dsn"], statement)
        _there(image, name, 1)
        assert len(_positions(image, name)) == 1
        refused = image.lab("sql", name, "--node", "n4", "-e", "DELETE FROM shop.orders", code=6)
        assert "read-only" in refused.stderr
        image.lab("snapshot", "take", name, "--label", "one")
        # Another one, with the same names and addresses: neither sees the other.
        with image.up("galera-dr", "--name", other) as second:
            query(second["dsn"], "CREATE DATABASE elsewhere")
            assert image.sql(other, "n4", "SHOW DATABASES LIKE 'shop'") == []
            accounts = "SELECT authentication_string FROM mysql.user WHERE user = 'replication'"
            passwords = {image.sql(lab, n, accounts)[0][0] for lab in (name, other)
                         for n in ("n1", "n4")}  # fmt: skip
            assert len(passwords) == 2
        # The source of the link is lost: it moves, without loss, and stays when that is back.
        image.lab("stop", name, "--node", "n1", "--force")
        image.lab("sql", name, "--node", "n2", "-e", "INSERT INTO shop.orders VALUES (2)")
        assert until(lambda: _states(image, name)["n4"] == "ready", Deadline.after(90))
        _there(image, name, 2, ("n2", "n3", "n4"))
        moved = _source(image, name)
        assert moved in ("2", "3")
        image.lab("start", name, "--node", "n1", "--timeout", "200")
        image.lab("sql", name, "--node", "n1", "-e", "INSERT INTO shop.orders VALUES (3)")
        _there(image, name, 3)
        assert _source(image, name) == moved
        assert len(_positions(image, name)) == 1
        # The replica goes back to before it had the lab's password, and gets the rest again.
        image.lab("rollback", name, "--node", "n4", "--timeout", "200")
        _there(image, name, 3)
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        _there(image, name, 1)
        assert _source(image, name) == "1"
        query(view["dsn"], "INSERT INTO shop.orders VALUES (4)")
        _there(image, name, 2)
    assert image.settled() == []


def test_a_power_loss_and_identities(image: Site) -> None:
    """All nodes are killed and come back with the link; a branch has identities of its own."""
    name, own = image.name("dr"), image.name("own")
    with image.up("galera-dr", "--name", name) as view:
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        ):
            query(view["dsn"], statement)
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "240")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (2)")
        _there(image, name, 2)
        assert len(_positions(image, name)) == 1
        image.lab("branch", name, own, "--identity", "new", "--timeout", "240")
        image.lab("sql", own, "-e", "INSERT INTO shop.orders VALUES (3)")
        _there(image, own, 3)
        _there(image, name, 2)
        ids = "SELECT @@server_id, @@gtid_domain_id, @@wsrep_gtid_domain_id"
        for node in _NODES:
            (ours,), (theirs,) = image.sql(name, node, ids), image.sql(own, node, ids)
            assert not set(ours[: 3 if node != "n4" else 2]) & set(theirs)
        written = str(image.sql(own, "n4", "SELECT @@gtid_slave_pos")[0][0]).split(",")
        domain = str(image.sql(own, "n1", ids)[0][2])
        assert any(one.startswith(f"{domain}-") for one in written)
        image.lab("down", own)
    assert image.settled() == []
