"""Options of blueprints on real guests: links, semi-sync, delays, options of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"
_TABLE = "CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, was INT)"


def _everywhere(
    site: Site, lab: str, rows: int, nodes: tuple[str, ...] = ("n1", "n2", "n3")
) -> None:
    """Each of ``nodes`` has so many rows, soon."""
    for node in nodes:
        assert until(
            lambda node=node: site.sql(lab, node, _COUNT) == [[rows]],  # type: ignore[misc]
            Deadline.after(30),
        ), node


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
@pytest.mark.parametrize("topology", ["chain", "ring", "fan-in"])
def test_topologies(image: Site, engine: str, topology: str, tmp_path: Path) -> None:
    """Formed, cloned with new passwords, written to, powered off, and rolled back."""
    name, script = image.name("topo"), tmp_path / "init.sql"
    script.write_text(f"CREATE DATABASE shop; {_TABLE};\n")
    if topology == "fan-in":  # whose sources know nothing of each other
        script.write_text("CREATE DATABASE n1;\n")
    what = ("replication", "--engine", engine, "--topology", topology, "--init", str(script))
    with image.up(*what, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert view["options"]["topology"] == topology
        if topology == "fan-in":
            image.lab("sql", name, "--node", "n1", "-e", "CREATE TABLE n1.t (a INT)")
            image.lab("sql", name, "--node", "n2", "-e", "CREATE DATABASE n2")
            shown = until(
                lambda: image.sql(name, "n3", "SHOW DATABASES LIKE 'n_'") == [["n1"], ["n2"]],
                Deadline.after(30),
            )
            assert shown
        else:
            writers = ("n1", "n2", "n3") if topology == "ring" else ("n1",)
            for node in writers:
                image.lab("sql", name, "--node", node, "-e",
                          "INSERT INTO shop.orders (was) VALUES (1)")  # fmt: skip
            _everywhere(image, name, len(writers))
        image.lab("snapshot", "take", name, "--label", "one")
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        if topology == "chain":  # n2 logs in as its template did, and then lacks what n3 has
            image.lab("rollback", name, "--node", "n2", "--timeout", "200")
            _everywhere(image, name, len(writers))
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        if topology != "fan-in":
            _everywhere(image, name, len(writers))
        # As where the RAM is refused: all of its links are on the disks of the template.
        image.lab("rollback", name, "--cold", "--timeout", "200")
    assert image.settled() == []


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_semi_sync_and_a_delay(image: Site, engine: str) -> None:
    """A commit is acknowledged, the delayed replica is late, and a lost one is missed."""
    name = image.name("semi")
    words = ("--semi-sync", "--delay", "1h", "--on", "n3", "--set", "max_connections=77")
    with image.up("replication", "--engine", engine, *words, "--name", name) as view:
        assert [node["role"] for node in view["nodes"]] == ["source", "replica", "delayed"]
        for statement in ("CREATE DATABASE shop", _TABLE, "INSERT INTO shop.orders VALUES (1, 1)"):
            query(view["dsn"], statement)
        _everywhere(image, name, 1, ("n1", "n2"))
        assert image.sql(name, "n3", "SHOW DATABASES LIKE 'shop'") == []
        assert image.sql(name, "n2", "SELECT @@max_connections") == [[77]]
        image.lab("stop", name, "--node", "n2")
        # MySQL counts a replica up to 2 s longer than it has a thread for it.
        missed = until(lambda: _unmet(image, name, "n1"), Deadline.after(20))
        assert missed == ["semi-sync replicas"]
        image.lab("start", name, "--node", "n2", "--timeout", "200")
    assert image.settled() == []


def _unmet(image: Site, name: str, node: str) -> list[str]:
    """The names of a node's requirements that are not met."""
    shown = image.lab("status", name, "-o", "json", code=None).json
    return [one["name"] for one in shown["requirements"] if one["node"] == node and not one["met"]]


@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_a_server_that_does_not_start(image: Site, engine: str) -> None:
    """Its own message, soon, and nothing is left."""
    words = ("--engine", engine, "--set", "no_such_option=1", "--name", image.name("bad"))
    failed = image.lab("up", "single", *words, code=2, timeout=300)
    assert "unknown variable 'no_such_option=1'" in failed.stderr
    assert image.settled() == []


@pytest.mark.parametrize("what", [("galera",), ("replication", "--engine", "mysql")])
def test_accounts(image: Site, what: tuple[str, ...], tmp_path: Path) -> None:
    """They log in at each node, in clones of a template without them, also after a rollback."""
    name, file = image.name("user"), tmp_path / "users"
    file.write_text("app:s3cret@shop\n")
    with image.up(*what, "--nodes", "2", "--user", str(file), "--name", name) as view:
        assert view["options"] == {"user": ["app@shop"]}
        for _ in range(2):
            for node in view["nodes"]:
                assert until(lambda node=node: _as_app(node), Deadline.after(20))  # type: ignore[misc]
            image.lab("rollback", name, "--timeout", "200")
    assert image.settled() == []


def _as_app(node: dict[str, Any]) -> bool:
    """Log in, with TLS, which MySQL wants of the first one."""
    with pymysql.connect(
        host=node["host"], port=node["sql_port"], user="app", password="s3cret",
        ssl_verify_cert=False, ssl_verify_identity=False,
    ) as db:  # fmt: skip
        return bool(db.open)


def test_a_group_in_which_all_write(image: Site) -> None:
    name = image.name("multi")
    with image.up("group", "--multi-primary", "--name", name) as view:
        assert [node["role"] for node in view["nodes"]] == ["primary"] * 3
        for statement in ("CREATE DATABASE shop", _TABLE):
            query(view["dsn"], statement)
        for node in ("n1", "n2", "n3"):
            image.lab("sql", name, "--node", node, "-e",
                      "INSERT INTO shop.orders (was) VALUES (1)")  # fmt: skip
        _everywhere(image, name, 3)
        image.lab("stop", name, "--node", "n1", "--force")
        image.lab("sql", name, "--node", "n2", "-e",
                  "INSERT INTO shop.orders (was) VALUES (1)")  # fmt: skip
        _everywhere(image, name, 4, ("n2", "n3"))
    assert image.settled() == []
