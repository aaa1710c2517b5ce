"""Servers of older versions, as their makers built them, on real guests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.blueprints.dialects import dialect_of
from lab.errors import HostUnfit
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query
from tests.support.mariadb_server import NoServer
from tests.support.upstream_builds import builds, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

BUILDS = builds()


@pytest.fixture(params=list(BUILDS))
def build(request: pytest.FixtureRequest, installation: Site) -> Iterator[str]:
    """The key of a build whose engine is added, and has an image."""
    engine = BUILDS[request.param]
    try:
        directory = unpacked(engine)
    except NoServer as error:
        pytest.skip(str(error))
    name = request.param.replace(".", "-")
    added = ("engine", "add", name, "--from", str(directory))
    for order in (added, ("image", "build", name)):
        done = installation.lab(*order, code=None, timeout=900)
        if done.code == HostUnfit.exit_code:
            pytest.skip(f"it cannot be had here: {done.stderr}")
        assert done.code == 0, done
    yield request.param
    installation.lab("engine", "rm", name)
    assert installation.settled() == []


def fill(site: Site, lab: str, dsn: str, *nodes: str) -> None:
    """A row in a table whose file is on the disks of nodes: MariaDB 10.11 and 11.4 sync no new one.

    10.11.5 does not start on a disk that lost its power before. Commits are synced by all.
    """
    query(dsn, "CREATE DATABASE shop")
    query(dsn, "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    if len(nodes) > 1:
        site.lab("wait", lab, "--for", "caught-up", "--timeout", "60")
    for node in nodes:
        site.lab("exec", lab, "--node", node, "--", "sync")
    query(dsn, "INSERT INTO shop.orders VALUES (1)")


def test_an_old_server(installation: Site, build: str) -> None:
    """Warm, with identities of their own, killed and back; and a replica, which is promoted."""
    engine, own = BUILDS[build], build.replace(".", "-")
    name, other = installation.name("old"), installation.name("other")
    draw = "SELECT @@server_uuid" if engine.name == "mysql" else "SELECT UUID()"
    with (
        installation.up("single", "--engine", own, "--name", name) as view,
        installation.up("single", "--engine", own, "--name", other) as second,
    ):
        assert (view["started"], second["started"]) == ("warm", "warm")
        assert view["engine_version"] == engine.version
        assert bool(view["unencrypted"]) == (not dialect_of(engine).tls)
        assert view["password"] != second["password"]
        [[version]] = installation.sql(name, "n1", "SELECT VERSION()")
        assert str(version).startswith(engine.version)
        assert installation.sql(name, "n1", draw)
        fill(installation, name, view["dsn"], "n1")
        assert installation.sql(other, "n1", "SHOW DATABASES LIKE 'shop'") == []
        installation.lab("stop", name, "--force")
        installation.lab("start", name, "--timeout", "240")
        assert installation.sql(name, "n1", "SELECT id FROM shop.orders") == [[1]]
    with installation.up("replication", "--nodes", "2", "--engine", own, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        fill(installation, name, view["dsn"], "n1", "n2")
        installation.lab("wait", name, "--for", "caught-up", "--timeout", "60")
        assert installation.sql(name, "n2", "SELECT id FROM shop.orders") == [[1]]
        installation.sql(name, "n2", "INSERT INTO shop.orders VALUES (9)", code=None)
        assert installation.sql(name, "n2", "SELECT id FROM shop.orders") == [[1]], "read-only"
        installation.lab("snapshot", "take", name, "--label", "before")
        installation.lab("promote", name, "n2", "--timeout", "200")
        installation.sql(name, "n2", "INSERT INTO shop.orders VALUES (2)")
        installation.lab("wait", name, "--for", "caught-up", "--timeout", "60")
        assert installation.sql(name, "n1", "SELECT COUNT(*) FROM shop.orders") == [[2]]
        installation.lab("stop", name, "--force")
        installation.lab("start", name, "--timeout", "240")
        assert installation.sql(name, "n1", "SELECT COUNT(*) FROM shop.orders") == [[2]]
        installation.lab("rollback", name, "--to", "before", "--timeout", "240")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (3)")
        installation.lab("wait", name, "--for", "caught-up", "--timeout", "60")
        assert installation.sql(name, "n2", "SELECT COUNT(*) FROM shop.orders") == [[2]]
