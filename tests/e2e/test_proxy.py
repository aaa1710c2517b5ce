"""Proxies and an arbiter on real guests: who answers through them, and when a server is lost."""

from __future__ import annotations

import urllib.request
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"
_SECONDS = 60.0


def _through(view: Any, endpoint: str, statement: str) -> list[Any]:
    """The rows of a statement through an endpoint of a lab."""
    head, _, _ = view["dsn"].rpartition("@")
    return list(query(f"{head}@{view['addresses'][endpoint][0]}/", statement))


def _reached(view: Any, endpoint: str, which: str) -> str:
    """Which server answers through an endpoint; empty while none does."""
    try:
        return str(_through(view, endpoint, f"SELECT {which}")[0][0])
    except pymysql.Error:
        return ""


def _until_reached(view: Any, endpoint: str, which: str, server: str) -> None:
    deadline = Deadline.after(_SECONDS)
    assert until(lambda: _reached(view, endpoint, which) == server, deadline), endpoint


def _fill(view: Any) -> None:
    for statement in (
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1)",
    ):
        _through(view, "rw", statement)


def _page(view: Any) -> str:
    with urllib.request.urlopen(f"http://{view['addresses']['admin'][0]}/", timeout=10) as page:
        return str(page.read(1 << 20).decode())


def test_a_cluster_with_an_arbiter_behind_haproxy(image: Site) -> None:
    """`--arbiter --proxy haproxy`: side by side, servers lost and back, all of it lost and back."""
    name, other, own = image.name("prx"), image.name("oth"), image.name("own")
    words = ("galera", "--nodes", "2", "--arbiter", "--proxy", "haproxy")
    node = "@@wsrep_node_name"
    with image.up(*words, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert [one["role"] for one in view["nodes"]] == ["member", "member", "arbiter", "proxy"]
        assert (_reached(view, "rw", node), _reached(view, "ro", node)) == ("n1", "n2")
        assert "Statistics Report" in _page(view)
        _fill(view)
        assert _through(view, "ro", _COUNT) == [(1,)]
        with image.up(*words, "--name", other) as second:
            # Neither sees the other's servers, through its proxy or in its cluster.
            _through(second, "rw", "CREATE DATABASE elsewhere")
            assert _through(second, "ro", "SHOW DATABASES LIKE 'shop'") == []
            size = "SHOW STATUS LIKE 'wsrep_cluster_size'"
            assert _through(view, "rw", size) == [("wsrep_cluster_size", "3")]
        image.lab("snapshot", "take", name, "--label", "one")
        # The writer ends: the other takes the writes, with the arbiter's vote.
        image.lab("stop", name, "--node", "n1", "--force")
        _until_reached(view, "rw", node, "n2")
        _through(view, "rw", "INSERT INTO shop.orders VALUES (2)")
        image.lab("start", name, "--node", "n1", "--timeout", "200")
        assert (_reached(view, "rw", node), _reached(view, "ro", node)) == ("n1", "n2")
        assert _through(view, "rw", _COUNT) == [(2,)]
        # The arbiter is lost: two of three are left.
        image.lab("stop", name, "--node", "n3", "--force")
        _through(view, "rw", "INSERT INTO shop.orders VALUES (3)")
        image.lab("start", name, "--node", "n3", "--timeout", "200")
        # All of it loses its power.
        image.lab("stop", name, "--force")
        started = image.lab("start", name, "--timeout", "200")
        assert "bootstrapping" not in started.stderr
        assert _through(view, "rw", _COUNT) == [(3,)]
        image.lab("stop", name)
        image.lab("start", name, "--timeout", "200")
        assert (_reached(view, "rw", node), _reached(view, "ro", node)) == ("n1", "n2")
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        assert _through(view, "ro", _COUNT) == [(1,)]
        image.lab("branch", name, own, "--identity", "new", "--timeout", "200")
        assert image.lab("status", own, "-o", "json").json["lab"]["state"] == "ready"
        assert image.lab("sql", own, "-e", _COUNT, "-o", "json").json["rows"] == [[1]]
        image.lab("down", own)
    assert image.settled() == []


def test_a_group_behind_the_router(image: Site) -> None:
    """`--proxy router`: writes follow the primary, reads go to secondaries."""
    name = image.name("rtr")
    with image.up("group", "--proxy", "router", "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        server = "@@report_host"
        assert _reached(view, "rw", server) == "10.77.0.1"
        assert _reached(view, "ro", server) in ("10.77.0.2", "10.77.0.3")
        _fill(view)
        image.lab("snapshot", "take", name, "--label", "one")
        image.lab("stop", name, "--node", "n1")
        _until_reached(view, "rw", server, "10.77.0.2")
        _until_reached(view, "ro", server, "10.77.0.3")
        _through(view, "rw", "INSERT INTO shop.orders VALUES (2)")
        image.lab("start", name, "--node", "n1", "--timeout", "200")
        assert _reached(view, "rw", server) == "10.77.0.2"
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        assert _through(view, "rw", _COUNT) == [(2,)]
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        assert _reached(view, "rw", server) == "10.77.0.1"
        assert _through(view, "rw", _COUNT) == [(1,)]
    assert image.settled() == []


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_replication_behind_haproxy(image: Site, engine: str) -> None:
    """`--proxy haproxy` of `replication`: reads go to replicas, to the source where none runs."""
    name = image.name("rpl")
    words = ("replication", "--engine", engine, "--nodes", "2", "--proxy", "haproxy")
    with image.up(*words, "--name", name) as view:
        server = "@@report_host"
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert (_reached(view, "rw", server), _reached(view, "ro", server)) == ("n1", "n2")
        _fill(view)
        image.lab("stop", name, "--node", "n2")
        _until_reached(view, "ro", server, "n1")
        image.lab("start", name, "--node", "n2", "--timeout", "200")
        _until_reached(view, "ro", server, "n2")
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        assert (_reached(view, "rw", server), _reached(view, "ro", server)) == ("n1", "n2")
        assert _through(view, "ro", _COUNT) == [(1,)]
    assert image.settled() == []
