"""A group of MySQL servers on real guests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_COUNT = "SELECT COUNT(*) FROM shop.orders"
_MEMBERS = "SELECT MEMBER_HOST FROM performance_schema.replication_group_members"


def _shown(site: Site, lab: str) -> dict[str, Any]:
    return dict(site.lab("status", lab, "-o", "json", code=None).json["lab"])


def _there(site: Site, lab: str, nodes: tuple[str, ...], rows: int) -> None:
    """All ``nodes`` have so many rows, soon."""
    for node in nodes:
        assert until(
            lambda node=node: site.sql(lab, node, _COUNT) == [[rows]],  # type: ignore[misc]
            Deadline.after(20),
        ), node


@contextmanager
def _busy() -> Iterator[None]:
    """Two processes for each processor of this host, which do nothing but use it."""
    argv = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(argv) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_clones_on_a_busy_host(image: Site) -> None:
    """Clones' clocks leap by the age of the template, and nobody is suspected, however late.

    Suspicions are timed by the wall clock. A group is formed in three views, or in two if members
    join at the same time; where one was expelled and has joined again there are two more.
    """
    views = "SELECT DISTINCT VIEW_ID FROM performance_schema.replication_group_member_stats"
    image.lab("template", "build", "group", timeout=600)
    for number in range(3):
        name = image.name(f"busy{number}")
        with _busy(), image.up("group", "--name", name) as view:
            assert (view["state"], view["started"]) == ("ready", "warm")
            ((found,),) = image.sql(name, "n1", views)
            assert found.rpartition(":")[2] in ("2", "3")
            log = image.lab("logs", name, "--node", "n1", "-n", "2000").stdout
            assert "expelled" not in log
            assert "UNREACHABLE" not in log
            image.lab("sql", name, "-e", "CREATE DATABASE shop")
    assert image.settled() == []


def test_a_group(image: Site) -> None:
    """`lab up group`: side by side, its primary and all of it lost and back, rolled back."""
    name, other, own = image.name("grp"), image.name("other"), image.name("own")
    everyone = ("n1", "n2", "n3")
    with image.up("group", "--name", name) as view:
        assert (view["state"], view["started"], view["engine"]) == ("ready", "warm", "mysql")
        assert [node["role"] for node in view["nodes"]] == ["primary", "secondary", "secondary"]
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        ):
            query(view["dsn"], statement)
        _there(image, name, everyone, 1)
        refused = image.lab("sql", name, "--node", "n2", "-e", "DELETE FROM shop.orders", code=6)
        assert "read-only" in refused.stderr
        # Another one, with members of the same names and addresses: neither sees the other.
        with image.up("group", "--name", other) as second:
            query(second["dsn"], "CREATE DATABASE elsewhere")
            assert image.sql(other, "n3", "SHOW DATABASES LIKE 'shop'") == []
            assert len(image.sql(other, "n1", _MEMBERS)) == 3
        image.lab("snapshot", "take", name, "--label", "one")
        # The primary is lost: another one is elected, and takes the writes of the lab.
        image.lab("stop", name, "--node", "n1", "--force")
        assert until(
            lambda: _shown(image, name)["nodes"][1]["role"] == "primary",
            Deadline.after(90),
        )
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (2)")
        image.lab("start", name, "--node", "n1", "--timeout", "200")
        back = _shown(image, name)
        assert [node["role"] for node in back["nodes"]] == ["secondary", "primary", "secondary"]
        _there(image, name, everyone, 2)
        # All of it loses its power.
        image.lab("stop", name, "--force")
        started = image.lab("start", name, "--timeout", "200")
        assert "it has the most transactions" in started.stderr
        _there(image, name, everyone, 2)
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (3)")
        _there(image, name, everyone, 3)
        # One goes back to before it had the lab's password, and gets the rest from the others.
        image.lab("rollback", name, "--node", "n3", "--timeout", "200")
        _there(image, name, everyone, 3)
        # One leaves, and its server runs on.
        image.lab("exec", name, "--node", "n3", "--", "mysql", "-e", "STOP GROUP_REPLICATION")
        assert image.lab("start", name, "--timeout", "200").stderr.count("n3: ") == 1
        _there(image, name, everyone, 3)
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        _there(image, name, everyone, 1)
        image.lab("sql", name, "-e", "INSERT INTO shop.orders VALUES (4)")
        _there(image, name, everyone, 2)
        uuid = "SELECT @@server_uuid, @@group_replication_group_name"
        image.lab("branch", name, own, "--identity", "new", "--timeout", "200")
        _there(image, own, everyone, 2)
        for node in everyone:
            (ours,), (theirs,) = image.sql(name, node, uuid), image.sql(own, node, uuid)
            assert not set(ours) & set(theirs)
        image.lab("down", own)
    assert image.settled() == []
