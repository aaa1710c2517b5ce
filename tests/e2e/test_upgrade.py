"""Upgrades of real clusters, node by node, under writes; and back, with RAM."""

from __future__ import annotations

import sys
from pathlib import Path

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


SHOP = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))",
    "INSERT INTO shop.orders VALUES (1, 'a'), (2, 'b')",
)


def fill(dsn: str) -> None:
    for statement in SHOP:
        query(dsn, statement)


@pytest.mark.parametrize("blueprint", ["galera", "replication"])
def test_a_rolling_upgrade(both: Site, blueprint: str, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, and any step can be gone back to with its RAM.

    The data of the replication are those of a dataset: what users rehearse with.
    """
    name, data, words = both.name("up"), both.name("data"), ["--engine", OLDER]
    if blueprint == "replication":
        (tmp_path / "shop.sql").write_text(";\n".join([f"{SHOP[0]};\nUSE shop", *SHOP[1:], ""]))
        made = ("dataset", "create", data, "--from", str(tmp_path / "shop.sql"))
        both.lab(*made, *words, timeout=900)
        words = ["--dataset", data]
    with both.up(blueprint, *words, "--name", name) as view:
        if blueprint == "galera":
            fill(view["dsn"])
        report = both.lab(
            "upgrade", name, "--to", NEWER, "--timeout", SECONDS, "-o", "json", timeout=1800
        ).json
        assert [step["node"] for step in report["steps"]] == ["n3", "n2", "n1"]
        assert {step["state"] for step in report["steps"]} == {"upgraded"}
        assert all(step["before"].startswith("10.11.") for step in report["steps"])
        assert all(step["after"].startswith("11.8.") for step in report["steps"])
        ways = [[one["target"] for one in step["replicated"]] for step in report["steps"]]
        both_ways = [["n3", "n1"], ["n2", "n1"], ["n1", "n2"]]
        assert ways == (both_ways if blueprint == "galera" else [["n3"], ["n2"], ["n1"]])
        known = ("log", "locked_out", "rebuild", "statements", "provider_before", "provider_after")
        assert not [name for step in report["steps"] for name in known if step[name] is None]
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
    if blueprint == "replication":
        both.lab("dataset", "rm", data)
    assert both.settled() == []


def test_a_branch_is_upgraded(both: Site) -> None:
    """The branch has the newer server and the data, and the lab is as it was."""
    name = both.name("lab")
    with both.up("single", "--engine", OLDER, "--name", name) as view:
        fill(view["dsn"])
        report = both.lab(
            "upgrade", name, "--to", NEWER, "--branch", both.name("try"), "--timeout", SECONDS,
            "-o", "json", timeout=1800,
        ).json  # fmt: skip
        try:
            assert [step["state"] for step in report["steps"]] == ["upgraded"]
            assert (report["lost"], report["changed"]) == (0, [])
            for lab, series in ((name, "10.11."), (report["lab"], "11.8.")):
                [[version]] = both.sql(lab, "n1", "SELECT VERSION()")
                assert str(version).startswith(series)
                assert both.sql(lab, "n1", "SELECT COUNT(*) FROM shop.orders") == [[2]]
            taken = both.lab("snapshot", "ls", name, "-o", "json").json
            assert "before-n1" not in [one["name"] for one in taken]
        finally:
            both.lab("down", report["lab"], code=None)
    assert both.settled() == []


def test_those_who_connect_through_a_proxy(both: Site) -> None:
    """Its endpoint answers while each server is away, but for the time of a failover."""
    name = both.name("prx")
    words = ("galera", "--nodes", "2", "--arbiter", "--proxy", "haproxy")
    with both.up(*words, "--engine", OLDER, "--name", name) as view:
        fill(view["dsn"])
        report = both.lab(
            "upgrade", name, "--to", NEWER, "--timeout", SECONDS, "-o", "json", timeout=1800
        ).json
        assert [step["node"] for step in report["steps"]] == ["n2", "n1"]
        assert {step["state"] for step in report["steps"]} == {"upgraded"}
        assert (report["lost"], report["changed"]) == (0, [])
        for step in report["steps"]:
            [endpoint] = [at for at in step["unanswered"] if at.endswith(" rw")]
            assert step["unanswered"][endpoint] < step["unanswered"][step["node"]] / 2, step
        head, _, _ = view["dsn"].rpartition("@")
        [[version]] = query(f"{head}@{view['addresses']['rw'][0]}/", "SELECT VERSION()")
        assert str(version).startswith("11.8.")
        shown = both.lab("status", name, "-o", "json").json["lab"]
        assert shown["state"] == "ready"
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


WORKLOAD = """
import os, time, pymysql
print("begun", flush=True)
number = 2
while True:
    try:
        with pymysql.connect(
            host=os.environ["LAB_HOST"], port=int(os.environ["LAB_PORT"]), autocommit=True,
            user=os.environ["LAB_USER"], password=os.environ["LAB_PASSWORD"], connect_timeout=2,
        ) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO shop.orders VALUES ({number + 1}, 'w')")
            number += 1
    except pymysql.err.MySQLError:
        time.sleep(0.2)
"""
STATEMENTS = """
USE shop;
SELECT what FROM orders WHERE id = 1;
SELECT COUNT(*) FROM orders WHERE what = 'a';
SELECT nothing FROM orders;
"""


def test_what_the_user_brings(both: Site, tmp_path: Path) -> None:
    """A workload that runs meanwhile, statements, and a report as HTML."""
    name, page = both.name("own"), tmp_path / "upgrade.html"
    (tmp_path / "app.sql").write_text(STATEMENTS)
    with both.up("single", "--engine", OLDER, "--name", name) as view:
        fill(view["dsn"])
        report = both.lab(
            "upgrade", name, "--to", NEWER, "--timeout", SECONDS, "-o", "json",
            "--statements", str(tmp_path / "app.sql"), "--report", str(page),
            "--", sys.executable, "-c", WORKLOAD, timeout=1800,
        ).json  # fmt: skip
        [step] = report["steps"]
        assert (step["state"], step["compared"], report["lost"]) == ("upgraded", 2, 0)
        assert not [one for one in step["statements"] if "fails" in one["differs"]]
        assert step["unanswered"]["n1"] > 1.0
        workload = report["workload"]
        assert (workload["by_itself"], workload["code"]) == (False, 128 + 15)
        assert workload["output"][0] == "begun"
        [[rows]] = both.sql(name, "n1", "SELECT COUNT(*) FROM shop.orders WHERE what = 'w'")
        assert int(str(rows)) > 0
        assert f"Upgrade of {name}" in page.read_text()
        assert report["changed"] == ["shop.orders"], "the workload wrote to it"
        used = both.lab("image", "ls", "-o", "json").json
        older = [one for one in used if one["recipe"] == "mariadb-10.11"]
        assert any(one["used_by"] for one in older)
    assert both.settled() == []
