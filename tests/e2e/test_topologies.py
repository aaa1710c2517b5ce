"""Every topology on real guests: one life of a lab, and many labs one after another.

Each step that passes is recorded for the table in docs/topologies.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.matrix import CASES, Case, record
from tests.e2e.test_bundle import unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_CYCLES = 20
_SECONDS = "200"
_LATE = 60.0
POWER_LOSS = (
    ("replication", "--engine", "mariadb"),
    ("replication", "--engine", "mysql"),
    ("group",),
    ("galera",),
)
_COUNT = "SELECT COUNT(*) FROM shop.orders"


class Life:
    """A lab of a case, to be looked at and written to."""

    def __init__(self, site: Site, case: Case, name: str) -> None:
        self.site, self.case, self.name = site, case, name

    def view(self) -> dict[str, Any]:
        """The lab as it is now."""
        shown = self.site.lab("status", self.name, "-o", "json", code=None).json
        return dict(shown["lab"])

    def servers(self) -> list[str]:
        """The nodes that statements can be sent to."""
        return [node["name"] for node in self.view()["nodes"] if node["sql_port"]]

    def write(self, statement: str) -> None:
        """Execute a statement where users write; soon, if a writer is elected first."""

        def done() -> bool | None:
            ran = self.site.lab("sql", self.name, "-e", statement, code=None)
            return True if ran.code == 0 else None

        assert until(done, Deadline.after(_LATE)), statement

    def has(self, rows: int, nodes: Sequence[str] = ()) -> None:
        """All nodes that should have so many rows do, soon."""
        for node in nodes or self.case.reaches or self.servers():

            def there(node: str = node) -> bool | None:
                found = self.site.sql(self.name, node, _COUNT, code=None)
                return True if found == [[rows]] else None

            assert until(there, Deadline.after(_LATE)), (node, rows)


def _formed(site: Site, case: Case, name: str) -> Life:
    """A lab that is a clone of what was formed and captured, with a table."""
    view = site.lab("up", *case.command, "--name", name, "-o", "json", timeout=600).json
    assert (view["state"], view["started"]) == ("ready", "warm")
    life = Life(site, case, name)
    life.write("CREATE DATABASE shop")
    life.write("CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, was INT)")
    record(case, "formed")
    return life


def _endpoints(life: Life) -> None:
    """What is written at `rw` is read at each endpoint, through the addresses that are printed."""
    life.write("INSERT INTO shop.orders (was) VALUES (1)")
    life.has(1)
    view = life.view()
    assert view["addresses"]["rw"]
    for name in ("rw", "ro"):
        nodes = view["endpoints"].get(name, ())
        for node, address in zip(nodes, view["addresses"].get(name, ()), strict=True):
            if not life.case.reaches or node in life.case.reaches:
                assert _asked(view, address, _COUNT) == ((1,),)
    record(life.case, "endpoints")


def _bundled(site: Site, life: Life) -> None:
    """Its bundle has what each node says, of servers, proxies and arbiters, and no password."""
    file = site.root / "life.tar.zst"
    site.lab("bundle", life.name, "-o", str(file), timeout=300)
    found, view = unpacked(file.read_bytes()), life.view()
    file.unlink()
    manifest = json.loads(found["manifest.json"])
    assert {one["name"]: one["state"] for one in manifest["nodes"]} == {
        one["name"]: one["state"] for one in view["nodes"]
    }
    assert manifest["missing"] == []
    for node in view["nodes"]:
        ours = {path.rpartition("/")[2] for path in found if f"nodes/{node['name']}/" in path}
        assert {"console.log", "domain.xml", "journal"} <= ours
        if node["sql_port"]:
            assert found[f"nodes/{node['name']}/error.log"]
            for name in ("processlist", "innodbstatus", "variables"):
                assert any(file.endswith(name) for file in ours), (node["name"], name)
    assert not [path for path, text in found.items() if view["password"] in text]


def _asked(view: Mapping[str, Any], address: str, statement: str) -> object:
    host, _, port = address.rpartition(":")
    login = {"user": view["user"], "password": view["password"]}
    with (
        closing(pymysql.connect(host=host, port=int(port), autocommit=True, **login)) as there,
        there.cursor() as cursor,
    ):
        cursor.execute(statement)
        return cursor.fetchall()


def _beside(site: Site, life: Life, other: str) -> None:
    """A second clone, with nodes of the same names and addresses: neither sees the other."""
    site.lab("up", *life.case.command, "--name", other, timeout=600)
    second = Life(site, life.case, other)
    second.write("CREATE DATABASE elsewhere")
    for node in second.servers():
        assert site.sql(other, node, "SHOW DATABASES LIKE 'shop'") == []
    for node in life.servers():
        assert site.sql(life.name, node, "SHOW DATABASES LIKE 'elsewhere'") == []
    ours, theirs = life.view(), second.view()
    assert ours["password"] != theirs["password"]
    assert {ours["state"], theirs["state"]} == {"ready"}
    site.lab("down", other)
    record(life.case, "beside")


def _node(site: Site, life: Life) -> None:
    """The node that takes writes loses its power, and comes back with what it missed."""
    endpoints = life.view()["endpoints"]
    writer = endpoints.get("writers", endpoints["rw"])[0]
    site.lab("stop", life.name, "--node", writer, "--force")
    site.lab("start", life.name, "--node", writer, "--timeout", _SECONDS)
    life.write("INSERT INTO shop.orders (was) VALUES (2)")
    life.has(2)
    assert life.view()["state"] == "ready"
    record(life.case, "node")


def _all(site: Site, life: Life, rows: int) -> None:
    """All nodes lose their power at once: nothing is lost, and they are one system again."""
    site.lab("stop", life.name, "--force")
    site.lab("start", life.name, "--timeout", _SECONDS)
    life.has(rows)
    life.write("INSERT INTO shop.orders (was) VALUES (3)")
    life.has(rows + 1)
    record(life.case, "all")


def _rolled_back(site: Site, life: Life) -> None:
    site.lab("rollback", life.name, "--to", "one", "--timeout", _SECONDS)
    assert life.view()["started"] == "warm"
    life.has(1)
    life.write("INSERT INTO shop.orders (was) VALUES (4)")
    life.has(2)
    record(life.case, "rollback")


def _identity(site: Site, life: Life, own: str) -> None:
    """A branch whose servers have other identities, and the data."""
    site.lab("branch", life.name, own, "--identity", "new", "--timeout", _SECONDS)
    branch = Life(site, life.case, own)
    branch.has(2)
    branch.write("INSERT INTO shop.orders (was) VALUES (5)")
    branch.has(3)
    for node in life.case.reaches or life.servers():
        ids = [site.sql(lab, node, "SELECT @@server_id") for lab in (life.name, own)]
        assert ids[0] != ids[1]
    site.lab("down", own)
    record(life.case, "identity")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_life(image: Site, case: Case) -> None:
    """Formed, cloned, written to, damaged, rolled back, branched: usable after each step."""
    name, other, own = (image.name(word) for word in ("life", "beside", "own"))
    try:
        life = _formed(image, case, name)
        _endpoints(life)
        _bundled(image, life)
        _beside(image, life, other)
        image.lab("snapshot", "take", name, "--label", "one")
        if not case.lone:
            _node(image, life)
        _all(image, life, 1 if case.lone else 2)
        _rolled_back(image, life)
        _identity(image, life, own)
    finally:
        for lab in (own, other, name):
            image.lab("down", lab, code=None)
    assert image.settled() == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_labs(image: Site, case: Case) -> None:
    """As a CI server has them: each is ready and gone again, and nothing is left of any."""
    name, used = image.name("again"), []
    try:
        for _ in range(_CYCLES):
            image.lab("up", *case.command, "--name", name, timeout=600)
            image.lab("down", name)
            assert image.settled() == []
            used.append(image.used())
    finally:
        image.lab("down", name, code=None)
    # The first ones fill caches, such as a write-ahead log.
    assert used[-1] <= used[1] + (4 << 20), used
    record(case, "cycles")


class Writer:
    """Inserts rows in one connection until it breaks; ``acknowledged``: those whose commit was."""

    def __init__(self, view: Mapping[str, Any]) -> None:
        self.acknowledged: list[int] = []
        self._view = view
        self._thread = threading.Thread(target=self._work, name="writer")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(_LATE)
        assert not self._thread.is_alive()

    def arrived(self, site: Site, lab: str, node: str) -> bool:
        """Whether a node has all rows whose commit was acknowledged."""
        rows = site.sql(lab, node, "SELECT id FROM shop.orders")
        return {int(row[0]) for row in rows}.issuperset(self.acknowledged)

    def _work(self) -> None:
        host, _, port = self._view["addresses"]["rw"][0].rpartition(":")
        login = {"user": self._view["user"], "password": self._view["password"]}
        with (
            suppress(pymysql.Error),
            closing(pymysql.connect(host=host, port=int(port), autocommit=True, **login)) as there,
            there.cursor() as cursor,
        ):
            for number in range(1, 1_000_000):
                cursor.execute("INSERT INTO shop.orders (id, was) VALUES (%s, 1)", (number,))
                self.acknowledged.append(number)


@pytest.mark.parametrize("words", POWER_LOSS, ids=" ".join)
def test_power_loss_of_all_nodes_under_writes(image: Site, words: tuple[str, ...]) -> None:
    """With the profile ``durable`` each acknowledged row is on all nodes afterwards."""
    name = image.name("power")
    what = (*words, "--profile", "durable", "--name", name)
    try:
        image.lab("up", *what, timeout=600)
        life = Life(image, Case(words, ""), name)
        life.write("CREATE DATABASE shop")
        life.write("CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, was INT)")
        for _ in range(2):
            life.write("TRUNCATE shop.orders")
            with Writer(life.view()) as writer:
                assert until(lambda w=writer: w.acknowledged[50:], Deadline.after(_LATE))  # type: ignore[misc]
                image.lab("stop", name, "--force")
            image.lab("start", name, "--timeout", _SECONDS)
            for node in life.servers():
                assert until(
                    lambda node=node, w=writer: w.arrived(image, name, node),  # type: ignore[misc]
                    Deadline.after(_LATE),
                ), node
    finally:
        image.lab("down", name, code=None)
    assert image.settled() == []
