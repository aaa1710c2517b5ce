"""Upgrades of real clusters, node by node, under writes; and back, with RAM."""

from __future__ import annotations

import pytest

from lab.errors import HostUnfit
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

OLDER, NEWER = "mariadb:10.11", "mariadb:11.8"
NODES = ("n1", "n2", "n3")
SECONDS = "600"


@pytest.fixture(scope="module")
def both(installation: Site) -> Site:
    """The installation with the images of both series."""
    for series in (OLDER, NEWER):
        done = installation.lab("image", "build", series, code=None, timeout=900)
        if done.code == HostUnfit.exit_code:
            pytest.skip(f"no image can be built here: {done.stderr}")
        assert done.code == 0, done
    return installation


def fill(dsn: str) -> None:
    query(dsn, "CREATE DATABASE shop")
    query(dsn, "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))")
    query(dsn, "INSERT INTO shop.orders VALUES (1, 'a'), (2, 'b')")


@pytest.mark.parametrize("blueprint", ["galera", "replication"])
def test_a_rolling_upgrade(both: Site, blueprint: str) -> None:
    """Nothing acknowledged is lost, and any step can be gone back to with its RAM."""
    name = both.name("up")
    with both.up(blueprint, "--engine", OLDER, "--name", name) as view:
        fill(view["dsn"])
        report = both.lab(
            "upgrade", name, "--to", NEWER, "--timeout", SECONDS, "-o", "json", timeout=1800
        ).json
        assert [step["node"] for step in report["steps"]] == ["n3", "n2", "n1"]
        assert {step["state"] for step in report["steps"]} == {"upgraded"}
        assert all(step["before"].startswith("10.11.") for step in report["steps"])
        assert all(step["after"].startswith("11.8.") for step in report["steps"])
        assert report["written"] > 0
        assert (report["lost"], report["changed"]) == (0, [])
        for node in NODES:
            [[version]] = both.sql(name, node, "SELECT VERSION()")
            assert str(version).startswith("11.8.")
            assert both.sql(name, node, "SELECT COUNT(*) FROM shop.orders") == [[2]]
        both.lab("rollback", name, "--to", "before-n2", "--timeout", SECONDS, timeout=700)
        shown = both.lab("status", name, "-o", "json").json["lab"]
        assert shown["started"] == "warm"
        found = [str(both.sql(name, node, "SELECT VERSION()")[0][0])[:5] for node in NODES]
        assert found == ["10.11", "10.11", "11.8."]
        assert both.sql(name, "n3", "SELECT COUNT(*) FROM shop.orders") == [[2]]
    assert both.settled() == []


def test_an_option_that_the_new_series_removed(both: Site) -> None:
    """The step is reported with the server's own words, and the lab is as it was."""
    name = both.name("old")
    # Unknown since MariaDB 11.0 (MDEV-29694).
    with both.up(
        "single", "--engine", OLDER, "--name", name, "--set", "innodb_change_buffer_max_size=25"
    ) as view:
        fill(view["dsn"])
        done = both.lab(
            "upgrade", name, "--to", NEWER, "--timeout", "120", "-o", "json",
            code=None, timeout=900,
        )  # fmt: skip
        assert done.code == 7
        [step] = done.json["steps"]
        assert step["state"] == "rolled back"
        assert "innodb_change_buffer_max_size" in f"{step['why']} {step['log']}"
        assert both.sql(name, "n1", "SELECT COUNT(*) FROM shop.orders") == [[2]]
        [[version]] = both.sql(name, "n1", "SELECT VERSION()")
        assert str(version).startswith("10.11.")
    assert both.settled() == []
