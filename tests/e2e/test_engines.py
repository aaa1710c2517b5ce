"""Series of engines that are not the defaults, on real guests."""

from __future__ import annotations

import pytest

from lab.errors import HostUnfit
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

SERIES = "mariadb:10.11"
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def older(installation: Site) -> Site:
    """The installation with the image of MariaDB 10.11, whose guests are Debian 12."""
    done = installation.lab("image", "build", SERIES, code=None, timeout=900)
    if done.code == HostUnfit.exit_code:
        pytest.skip(f"no image can be built here: {done.stderr}")
    assert done.code == 0, done
    return installation


def test_a_cluster_of_another_series(older: Site) -> None:
    """Formed, cloned warm and twice, killed as a whole and back, by a boot too."""
    name, other = older.name("old"), older.name("other")
    what = ("galera", "--engine", SERIES)
    with older.up(*what, "--name", name) as view:
        assert (view["state"], view["started"]) == ("ready", "warm")
        assert view["engine"] == "mariadb"
        assert view["engine_version"].startswith("10.11.")
        query(view["dsn"], "CREATE DATABASE shop")
        query(view["dsn"], "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (1)")
        for node in NODES:
            [[version]] = older.sql(name, node, "SELECT VERSION()")
            assert str(version).startswith("10.11.")
            assert older.sql(name, node, "SELECT id FROM shop.orders") == [[1]]
        with older.up(*what, "--name", other) as second:
            assert second["started"] == "warm"
            assert older.sql(other, "n2", "SHOW DATABASES LIKE 'shop'") == []
        older.lab("stop", name, "--force")
        older.lab("start", name, "--timeout", "240")
        query(view["dsn"], "INSERT INTO shop.orders VALUES (2)")
        for node in NODES:
            assert older.sql(name, node, "SELECT COUNT(*) FROM shop.orders") == [[2]]
    [found] = [one for one in older.lab("engine", "ls", "-o", "json").json if one["name"] == SERIES]
    assert found["images"]
    assert found["templates"]
    assert older.settled() == []


def test_one_server_of_another_series(older: Site) -> None:
    """A larger disk is filled at boot, which grows its file system."""
    name = older.name("one")
    with older.up("single", "--engine", SERIES, "--name", name, "--disk", "12G", "--cold") as view:
        assert view["engine_version"].startswith("10.11.")
        query(view["dsn"], "CREATE DATABASE shop")
        size = older.lab("exec", name, "--", "df", "--output=size", "-BG", "/").stdout.split()[-1]
        assert int(size.rstrip("G")) >= 11
    assert older.settled() == []
