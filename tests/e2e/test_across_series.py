"""From an old series to a new one, over builds in between, and by a dump, on real guests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from tests.e2e.e2e_site import Site
from tests.e2e.test_builds import MYSQL, added, upstream
from tests.e2e.test_cluster import query
from tests.support.mariadb_server import NoServer
from tests.support.upstream_builds import builds, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

SECONDS = "600"
ROWS = "SELECT id, CAST(what AS CHAR), HEX(raw) FROM shop.orders ORDER BY id"


@contextmanager
def engine(site: Site, build: str, change: Callable[[Path], Path] | None = None) -> Iterator[str]:
    """The name of an engine that is added for the block; ``change``: of its directory."""
    try:
        directory = unpacked(builds()[build])
        directory = change(directory) if change else directory
    except NoServer as error:
        pytest.skip(str(error))
    name = build.replace(".", "-")
    ready(site, "engine", "add", name, "--from", str(directory))
    try:
        ready(site, "image", "build", name)
        yield name
    finally:
        site.lab("engine", "rm", name)


def ready(site: Site, *order: str) -> None:
    """Run a command; the test is skipped where this host cannot have what it makes."""
    done = site.lab(*order, code=None, timeout=1200)
    if done.code == HostUnfit.exit_code:
        pytest.skip(f"it cannot be had here: {done.stderr}")
    assert done.code == 0, done


def fill(dsn: str) -> None:
    query(dsn, "CREATE DATABASE shop CHARACTER SET utf8")
    query(
        dsn,
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20), raw VARBINARY(9),"
        " at TIMESTAMP NOT NULL DEFAULT '2015-01-01 00:00:01') ENGINE=InnoDB",
    )
    query(dsn, "INSERT INTO shop.orders (id, what, raw) VALUES (1, 'a', x'00ff27')")
    query(dsn, "INSERT INTO shop.orders (id, what, raw) VALUES (2, 'M\u00fcller', NULL)")


def test_two_upgrades_one_after_the_other(installation: Site) -> None:
    """10.2, as its makers built it, to 10.11 to 11.8; nothing acknowledged is lost."""
    for newer in ("mariadb:10.11", "mariadb:11.8"):
        ready(installation, "image", "build", newer)
    name = installation.name("far")
    with engine(installation, "mariadb-10.2.11") as old:
        what = ("replication", "--nodes", "2", "--engine", old, "--name", name)
        with installation.up(*what) as view:
            fill(view["dsn"])
            rows = installation.sql(name, "n1", ROWS)
            for to, series in (("mariadb:10.11", "10.11."), ("mariadb:11.8", "11.8.")):
                report = installation.lab(
                    "upgrade", name, "--to", to, "--timeout", SECONDS, "-o", "json", timeout=1800
                ).json
                # Each upgrade makes the other node the source, which is the last one.
                order = ["n2", "n1"] if to == "mariadb:10.11" else ["n1", "n2"]
                assert [step["node"] for step in report["steps"]] == order
                assert {step["state"] for step in report["steps"]} == {"upgraded"}
                assert (report["lost"], report["changed"]) == (0, [])
                for node in ("n1", "n2"):
                    [[version]] = installation.sql(name, node, "SELECT VERSION()")
                    assert str(version).startswith(series)
                    assert installation.sql(name, node, ROWS) == rows
            # Of the newer image, at last: accounts, and TLS, which 10.2 did not have.
            assert not installation.lab("status", name, "-o", "json").json["lab"]["unencrypted"]
    assert installation.settled() == []


def test_a_group_becomes_another_build(installation: Site, tmp_path: Path) -> None:
    """Of the same version, laid out as upstream's: the way of an upgrade, with an election."""
    ready(installation, "image", "build", "mysql:9.7")
    name = installation.name("group")
    try:
        source = upstream(MYSQL, "sid", tmp_path)
    except NoServer as error:
        pytest.skip(str(error))
    with (
        whole(installation, source) as build,
        installation.up("group", "--engine", "mysql:9.7", "--name", name) as view,
    ):
        fill(view["dsn"])
        rows = installation.sql(name, "n1", ROWS)
        report = installation.lab(
            "upgrade", name, "--to", build, "--timeout", SECONDS, "-o", "json", timeout=1800
        ).json
        assert {step["state"] for step in report["steps"]} == {"upgraded"}
        assert (report["lost"], report["changed"]) == (0, [])
        for node in ("n1", "n2", "n3"):
            [[base]] = installation.sql(name, node, "SELECT @@basedir")
            assert str(base).rstrip("/") == "/opt/lab/server"
            assert installation.sql(name, node, ROWS) == rows
    assert installation.settled() == []


@contextmanager
def whole(site: Site, source: Path) -> Iterator[str]:
    """A build of MySQL 9.7, as an engine for the block."""
    added(site, "whole", source, "9.7", "group-replication")
    try:
        ready(site, "image", "build", "whole")
        yield "whole"
    finally:
        site.lab("engine", "rm", "whole")


def test_a_build_without_the_program_that_upgrades(installation: Site) -> None:
    """Refused before anything is done."""
    ready(installation, "image", "build", "mariadb:10.11")
    name = installation.name("bare")
    with (
        engine(installation, "mariadb-11.4.5") as bare,
        installation.up("single", "--engine", "mariadb:10.11", "--name", name),
    ):
        done = installation.lab("upgrade", name, "--to", bare, code=2)
        assert "has no upgrade" in done.stderr
        assert len(installation.lab("snapshot", "ls", name, "-o", "json").json) == 1
    assert installation.settled() == []


def test_a_dump_of_an_old_server_on_the_newest(installation: Site, tmp_path: Path) -> None:
    """MySQL 5.6 as a dataset of MySQL 9.7, and a group that has it.

    Its build has no dump program: it gets one of that time, MariaDB's of 10.2, which has the same
    form. Newer ones of either family cannot dump it.
    """

    def with_program(directory: Path) -> Path:
        whole = tmp_path / "whole"
        shutil.copytree(directory, whole, symlinks=True)
        [program] = unpacked(builds()["mariadb-10.2.11"]).rglob("mysqldump")
        [server] = whole.rglob("mysqld")
        shutil.copy(program, server.parent)
        return whole

    ready(installation, "image", "build", "mysql:9.7")
    name, dump = installation.name("old"), tmp_path / "shop.sql.gz"
    with (
        engine(installation, "mysql-5.6.24", with_program) as old,
        installation.up("single", "--engine", old, "--name", name) as view,
    ):
        fill(view["dsn"])
        rows = installation.sql(name, "n1", ROWS)
        installation.lab("dump", name, "--to", str(dump))
    made = ("dataset", "create", "old", "--from", str(dump), "--engine", "mysql:9.7")
    installation.lab(*made, timeout=1200)
    with installation.up("group", "--dataset", "old", "--name", name) as view:
        assert view["started"] == "warm"
        assert view["engine_version"].startswith("9.7.")
        for node in ("n1", "n2", "n3"):
            assert installation.sql(name, node, ROWS) == rows
    installation.lab("dataset", "rm", "old")
    assert installation.settled() == []
