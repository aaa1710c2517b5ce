"""Another source, another primary, on real guests."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"
_TABLE = "CREATE TABLE shop.orders (id INT PRIMARY KEY)"


def _shown(site: Site, lab: str) -> dict[str, Any]:
    return dict(site.lab("status", lab, "-o", "json", code=None).json["lab"])


def _in_roles(site: Site, lab: str, *roles: str) -> bool:
    """Whether the nodes say that they are in these roles; a busy one may not answer at once."""

    def found() -> bool:
        return [node["role"] for node in _shown(site, lab)["nodes"]] == list(roles)

    return until(found, Deadline.after(30), first=1.0) is not None


class Writer(threading.Thread):
    """Inserts rows through every node, and keeps those that were acknowledged."""

    def __init__(self, view: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.view, self.done, self.rows = view, threading.Event(), list[int]()

    def run(self) -> None:
        number = 100
        while not self.done.is_set():
            for node in self.view["nodes"]:
                with (
                    suppress(pymysql.Error),
                    pymysql.connect(
                        host=node["host"], port=node["sql_port"], user=self.view["user"],
                        password=self.view["password"], autocommit=True, connect_timeout=5,
                        read_timeout=20,
                    ) as db,
                    db.cursor() as cursor,
                ):  # fmt: skip
                    while not self.done.is_set():
                        number += 1
                        cursor.execute(f"INSERT INTO shop.orders VALUES ({number})")
                        self.rows.append(number)


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_a_source(image: Site, engine: str) -> None:
    """A switchover under a writer, a failover, the old source back, and back to before."""
    name = image.name("prom")
    with image.up("replication", "--engine", engine, "--name", name) as view:
        for statement in ("CREATE DATABASE shop", _TABLE):
            query(view["dsn"], statement)
        image.lab("snapshot", "take", name, "--label", "before")
        writer = Writer(view)
        writer.start()
        assert until(lambda: len(writer.rows) > 5, Deadline.after(30))
        image.lab("promote", name, "n2", "--timeout", "200")
        before = len(writer.rows)
        assert until(lambda: len(writer.rows) > before + 5, Deadline.after(60))
        writer.done.set()
        writer.join(30)
        assert _in_roles(image, name, "replica", "source", "replica")
        image.lab("wait", name, "--for", "ready", "--for", "primary=n2", "--timeout", "60")
        for node in ("n1", "n2", "n3"):
            rows = {row[0] for row in image.sql(name, node, "SELECT id FROM shop.orders")}
            assert rows >= set(writer.rows), node
        # It is lost; another one is promoted, and it follows when it is back.
        image.lab("stop", name, "--node", "n2", "--force")
        refused = image.lab("promote", name, "n3", code=4)
        assert "n2, the source, does not answer" in refused.stderr
        image.lab("promote", name, "n3", "--force", "--timeout", "200")
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (1)")
        image.lab("start", name, "--node", "n2", "--timeout", "200")
        assert _in_roles(image, name, "replica", "replica", "source")
        refused = image.lab("sql", name, "--node", "n2", "-e", "DELETE FROM shop.orders", code=6)
        assert "read-only" in refused.stderr
        total = len(writer.rows) + 1
        assert until(lambda: image.sql(name, "n2", _COUNT)[0][0] >= total, Deadline.after(30))
        # All of it boots: the one that was promoted takes writes.
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        assert _in_roles(image, name, "replica", "replica", "source")
        image.lab("rollback", name, "--to", "before", "--timeout", "200")
        assert _in_roles(image, name, "source", "replica", "replica")
        assert image.sql(name, "n3", _COUNT) == [[0]]
    assert image.settled() == []


def test_a_source_behind_a_proxy(image: Site) -> None:
    """What users connect to stays, and leads to the new source."""
    name = image.name("pprom")
    with image.up("replication", "--nodes", "2", "--proxy", "haproxy", "--name", name) as view:
        for statement in ("CREATE DATABASE shop", _TABLE, "INSERT INTO shop.orders VALUES (1)"):
            query(view["dsn"], statement)
        image.lab("promote", name, "n2", "--timeout", "200")
        assert _in_roles(image, name, "replica", "source", "proxy")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (2)")
        assert image.sql(name, "n2", _COUNT) == [[2]]
        assert _shown(image, name)["addresses"]["rw"] == view["addresses"]["rw"]
    assert image.settled() == []


def test_a_primary(image: Site) -> None:
    """By the group's own choice; and by force, where most of the group is lost."""
    name = image.name("gprom")
    with image.up("group", "--name", name) as view:
        for statement in ("CREATE DATABASE shop", _TABLE):
            query(view["dsn"], statement)
        image.lab("promote", name, "n3", "--timeout", "200")
        assert _in_roles(image, name, "secondary", "secondary", "primary")
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (1)")
        for node in ("n1", "n3"):
            image.lab("stop", name, "--node", node, "--force")
        lost = "SELECT COUNT(*) FROM performance_schema.replication_group_members"
        lost += " WHERE MEMBER_STATE = 'UNREACHABLE'"
        assert until(lambda: image.sql(name, "n2", lost) == [[2]], Deadline.after(60))
        refused = image.lab("promote", name, "n2", code=4)
        assert "has lost its majority" in refused.stderr
        image.lab("promote", name, "n2", "--force", "--timeout", "200")
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (2)")
        image.lab("start", name, "--timeout", "200")
        assert _in_roles(image, name, "secondary", "primary", "secondary")
        assert until(lambda: image.sql(name, "n1", _COUNT) == [[2]], Deadline.after(30))
        # A minority that runs on, while the others are killed and boot again.
        for node in ("n1", "n3"):
            image.lab("stop", name, "--node", node, "--force")
        image.lab("start", name, "--timeout", "300")
        assert image.sql(name, "n3", _COUNT) == [[2]]
    assert image.settled() == []


def test_all_primaries_are_lost(image: Site) -> None:
    """A group in which all write comes back when all of its nodes were killed."""
    name = image.name("mprom")
    with image.up("group", "--multi-primary", "--name", name) as view:
        for statement in ("CREATE DATABASE shop", _TABLE, "INSERT INTO shop.orders VALUES (1)"):
            query(view["dsn"], statement)
        refused = image.lab("promote", name, "n2", code=2)
        assert "all members are primaries" in refused.stderr
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "300")
        assert _in_roles(image, name, *["primary"] * 3)
        assert image.sql(name, "n3", _COUNT) == [[1]]
    assert image.settled() == []
