"""Servers of several series in one lab, and one command with several engines, on real guests."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import pytest

from lab.errors import HostUnfit
from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

NEWER, OLDER = "mariadb:11.8", "mariadb:10.11"
NODES = ("n1", "n2", "n3")
_ROWS = "SELECT GROUP_CONCAT(id ORDER BY id) FROM shop.orders"


@pytest.fixture(scope="module")
def both(image: Site) -> Site:
    """The installation with the images of both series."""
    done = image.lab("image", "build", OLDER, code=None, timeout=900)
    if done.code == HostUnfit.exit_code:
        pytest.skip(f"no image can be built here: {done.stderr}")
    assert done.code == 0, done
    return image


def versions(site: Site, lab: str, nodes: tuple[str, ...] = NODES) -> list[str]:
    """The series that the server of each node says it is of."""
    found = (str(site.sql(lab, node, "SELECT VERSION()")[0][0]) for node in nodes)
    return [".".join(version.split(".")[:2]) for version in found]


def everywhere(site: Site, lab: str, rows: str) -> None:
    """Each node has these rows, soon."""
    for node in NODES:

        def there(node: str = node) -> bool:
            with suppress(AssertionError):
                return site.sql(lab, node, _ROWS) == [[rows]]
            return False

        assert until(there, Deadline.after(30)), node


def through(site: Site, lab: str, view: Any) -> None:
    """Captured with RAM, stopped, killed, rolled back, branched: with the same servers."""
    want = [node["engine_version"] for node in view["nodes"]]
    site.lab("snapshot", "take", lab, "--label", "one")
    query(view["dsn"], "INSERT INTO shop.orders VALUES (90)")
    for force in ((), ("--force",)):
        site.lab("stop", lab, *force)
        site.lab("start", lab, "--timeout", "300", timeout=400)
        everywhere(site, lab, "1,2,90")
    site.lab("rollback", lab, "--to", "one", timeout=400)
    everywhere(site, lab, "1,2")
    [branch] = site.lab("branch", lab, "--at", "one", "-o", "json", timeout=400).json
    try:
        assert [node["engine_version"] for node in branch["nodes"]] == want
        query(branch["dsn"], "INSERT INTO shop.orders VALUES (3)")
        everywhere(site, branch["name"], "1,2,3")
        everywhere(site, lab, "1,2")
    finally:
        site.lab("down", branch["name"])


def test_a_cluster_in_the_middle_of_its_upgrade(both: Site) -> None:
    """Formed without state transfer, restored, and each member takes what the others write."""
    name, other = both.name("half"), both.name("again")
    what = ("galera", "--node", f"n3={OLDER}")
    with both.up(*what, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert [node["engine_version"].startswith("10.11.") for node in view["nodes"]] == [
            False, False, True
        ]  # fmt: skip
        assert versions(both, name) == ["11.8", "11.8", "10.11"]
        log = "journalctl -u mariadb --no-pager | grep -ci 'state transfer required' || :"
        for node in NODES:
            done = both.lab("exec", name, "--node", node, "--", "sh", "-c", log)
            assert done.stdout.strip() == "0", node
        query(view["dsn"], "CREATE DATABASE shop")
        made = "CREATE TABLE shop.orders (id INT PRIMARY KEY, t TEXT)"
        both.lab("sql", name, "--node", "n3", "-e", made)
        both.lab("sql", name, "--node", "n3", "-e", "INSERT INTO shop.orders (id) VALUES (1)")
        both.lab("sql", name, "--node", "n2", "-e", "ALTER TABLE shop.orders DROP COLUMN t")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (2)")
        everywhere(both, name, "1,2")
        done = both.lab("up", *what, "--name", other, "-o", "json")
        try:
            assert done.json["started"] == "warm"
            assert "while a cluster is upgraded" in done.stderr
            assert both.sql(other, "n3", "SHOW DATABASES LIKE 'shop'") == []
        finally:
            both.lab("down", other)
        through(both, name, view)
    assert both.settled() == []


def test_a_replica_newer_than_its_source(both: Site) -> None:
    """The way of an upgrade; as the source it has older replicas, of which users are warned."""
    name = both.name("newer")
    what = ("replication", "--engine", OLDER, "--node", f"n2={NEWER}")
    done = both.lab("up", *what, "--name", name, "-o", "json", timeout=600)
    view = done.json
    try:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert "supports" not in done.stderr
        assert versions(both, name) == ["10.11", "11.8", "10.11"]
        query(view["dsn"], "CREATE DATABASE shop")
        query(view["dsn"], "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (1), (2)")
        everywhere(both, name, "1,2")
        through(both, name, view)
        both.lab("promote", name, "n2", timeout=400)
        both.lab("sql", name, "--node", "n2", "-e", "INSERT INTO shop.orders VALUES (4)")
        everywhere(both, name, "1,2,4")
    finally:
        both.lab("down", name)
    assert both.settled() == []


def test_a_command_with_several_engines(both: Site) -> None:
    """`lab up --matrix`: each engine's version, and nothing is left."""
    command = (
        "import os, pymysql as p; e = os.environ; c = p.connect(host=e['LAB_HOST'],"
        " port=int(e['LAB_PORT']), user=e['LAB_USER'], password=e['LAB_PASSWORD']).cursor();"
        " c.execute('SELECT VERSION()'); print(c.fetchone()[0])"
    )
    done = both.lab(
        "up", "--matrix", f"{NEWER},{OLDER}", "-o", "json", "--", sys.executable, "-c", command,
        timeout=900,
    )  # fmt: skip
    found = {one["engine"]: one for one in done.json}
    assert [one["code"] for one in found.values()] == [0, 0]
    assert found[NEWER]["servers"][0].startswith("mariadb 11.8.")
    assert any("10.11." in line for line in done.stderr.splitlines() if line.startswith(OLDER))
    assert both.settled() == []
