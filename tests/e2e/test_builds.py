"""Builds of servers with the plugins of clusters, on real guests; without: test_old_servers.py.

They are Debian's packages, as a directory of them and as an archive that is laid out as upstream's.
"""

from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path

import pytest

from lab.blueprints import has_server
from lab.errors import HostUnfit
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query
from tests.support.builds import packages
from tests.support.mariadb_server import NoServer, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

MARIADB = ("mariadb-server-core", "mariadb-server", "mariadb-client-core", "mariadb-client",
           "mariadb-backup", "galera-4")  # fmt: skip
MYSQL = ("mysql-server-core", "mysql-client-core")


def debian(names: tuple[str, ...], suite: str, _: Path) -> Path:
    return packages(names, suite)


def upstream(names: tuple[str, ...], suite: str, scratch: Path) -> Path:
    """One directory, named by the version, in an archive that is packed with xz."""
    target = scratch / "server"
    with tarfile.open(target, "w:xz", preset=0) as archive:
        for name in names:
            archive.add(unpacked(name, suite) / "usr", "server-linux-x86_64")
    return target


def added(site: Site, name: str, source: Path, version: str, *features: str) -> None:
    done = site.lab("engine", "add", name, "--from", str(source), "-o", "json", code=None,
                    timeout=600)  # fmt: skip
    if done.code == HostUnfit.exit_code:
        pytest.skip(f"no build can be added here: {done.stderr}")
    assert done.code == 0, done
    assert version in done.json["server"]
    assert set(done.json["features"]) >= set(features)


def runs(site: Site, name: str, version: str, *labs: str) -> None:
    """Labs of the words of ``lab up``, warm both times, with the very version."""
    site.lab("image", "build", name, timeout=1200)
    for words in labs:
        what = (*words.split(), "--engine", name)
        site.lab("template", "build", *what, timeout=1200)
        for lab in (site.name("one"), site.name("two")):
            with site.up(*what, "--name", lab) as view:
                assert (view["state"], view["started"]) == ("ready", "warm")
                assert view["engine_version"].startswith(version)
                query(view["dsn"], "CREATE DATABASE shop")
                query(view["dsn"], "CREATE TABLE shop.t (id INT PRIMARY KEY)")
                query(view["dsn"], "INSERT INTO shop.t VALUES (1)")
                for node in view["nodes"]:
                    if has_server(node["services"]):
                        [[said, base]] = site.sql(lab, node["name"], "SELECT VERSION(), @@basedir")
                        assert str(said).startswith(version)
                        assert str(base).rstrip("/") == "/opt/lab/server"


def branched(site: Site, name: str, version: str) -> None:
    """A branch of a lab of the build has its server and its rows, and leaves the lab alone."""
    lab, branch = site.name("of-build"), site.name("branch")
    with site.up("single", "--engine", name, "--name", lab):
        site.sql(lab, "n1", "CREATE DATABASE shop")
        site.sql(lab, "n1", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        site.sql(lab, "n1", "INSERT INTO shop.t VALUES (1)")
        try:
            site.lab("branch", lab, branch)
            site.sql(branch, "n1", "INSERT INTO shop.t VALUES (2)")
            [[said, rows]] = site.sql(branch, "n1", "SELECT VERSION(), COUNT(*) FROM shop.t")
            assert (str(said).startswith(version), rows) == (True, 2)
            assert site.sql(lab, "n1", "SELECT COUNT(*) FROM shop.t") == [[1]]
        finally:
            site.lab("down", branch, code=None)


def loads(site: Site, name: str, version: str, scratch: Path) -> None:
    """The build loads a dataset, and labs of that have its server."""
    dump, dataset, lab = scratch / "crm.sql", f"of-{name}-{site.token}", site.name("of-dataset")
    dump.write_text(
        "CREATE DATABASE crm;\nUSE crm;\nCREATE TABLE people (id INT PRIMARY KEY, name TEXT);\n"
        "INSERT INTO people VALUES (1, 'Ada'), (2, NULL);\n"
    )
    create = ("dataset", "create", dataset, "--from", str(dump), "--engine", name)
    made = site.lab(*create, "--blueprint", "single", "-o", "json", timeout=1800).json
    assert [(t["database"], t["name"]) for t in made["tables"]] == [("crm", "people")]
    with site.up("single", "--dataset", dataset, "--name", lab) as view:
        assert view["started"] == "warm"
        assert view["engine_version"].startswith(version)
        rows = site.sql(lab, "n1", "SELECT id, name, @@basedir FROM crm.people ORDER BY id")
        assert [row[:2] for row in rows] == [[1, "Ada"], [2, None]]
        assert str(rows[0][2]).rstrip("/") == "/opt/lab/server"
    site.lab("dataset", "rm", dataset)


CASES = {
    "e2e-packages": (
        partial(debian, MARIADB, "trixie"), "11.8", ("galera", "backup"), ("galera --nodes 3",),
    ),
    "e2e-mariadb": (
        partial(upstream, MARIADB, "trixie"), "11.8", ("galera", "backup"),
        ("single", "replication --nodes 2 --proxy haproxy"),
    ),
    "e2e-mysql": (
        partial(upstream, MYSQL, "sid"), "9.7", ("group-replication", "clone"),
        ("single", "replication --nodes 2", "group --nodes 3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_build_of_others(installation: Site, tmp_path: Path, name: str) -> None:
    """Protects the promise that any build is an engine, by real ones."""
    get, version, features, blueprints = CASES[name]
    try:
        source = get(tmp_path)
    except NoServer as error:
        pytest.skip(str(error))
    added(installation, name, source, version, *features)
    runs(installation, name, version, *blueprints)
    if "single" in blueprints:
        branched(installation, name, version)
        loads(installation, name, version, tmp_path)
    if "galera" not in features:
        refused = installation.lab("up", "galera", "--engine", name, code=2)
        assert "galera" in refused.stderr
    installation.lab("engine", "rm", name)
    assert installation.settled() == []
