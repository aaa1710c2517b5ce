"""Templates and labs go to another installation on real guests, and labs there are warm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

THREE = (*PXC, "--nodes", "3")


def _up(site: Site, *args: str) -> Any:
    return site.lab("up", *THREE, "--name", site.name("moved"), *args, "-o", "json").json


@pytest.mark.rare  # archives are tested on fakes and real storage, restoring in the contract
def test_a_template_is_of_use_elsewhere(site: Site) -> None:
    """Protects hosts that never formed a cluster: RAM and disks fit, and nothing is built."""
    key = site.template(3)["key"]
    with site.sibling() as other:
        archive = other.root / "template.lab"
        site.lab("template", "export", key, str(archive))
        assert archive.stat().st_size < 3 << 30
        made = other.lab("template", "import", str(archive), "--warm-only", "-o", "name").stdout
        archive.unlink()
        view = _up(other)
        try:
            assert (view["started"], view["template"]) == ("warm", made.strip())
            assert view["first_use_seconds"] == 0
            name, nodes = view["name"], [node["name"] for node in view["nodes"]]
            other.sql(name, "n1", "CREATE DATABASE moved")
            for node in nodes:
                assert ["moved"] in other.sql(name, node, "SHOW DATABASES LIKE 'moved'")
                assert other.sql(name, node, "SHOW STATUS LIKE 'wsrep_cluster_size'") == [
                    ["wsrep_cluster_size", "3"]
                ]
        finally:
            other.lab("down", view["name"], code=None)
        assert other.settled() == []


@pytest.mark.rare  # as above
def test_a_lab_continues_elsewhere(site: Site) -> None:
    """Its data are there and its nodes one cluster: from RAM, and from the same disks alone."""
    name = site.name("goes")
    query = "SELECT v FROM t.x ORDER BY v"
    with site.up(*THREE, "--name", name), site.sibling() as other:
        for statement in ("CREATE DATABASE t", "CREATE TABLE t.x (v INT PRIMARY KEY)",
                          "INSERT INTO t.x VALUES (1)"):  # fmt: skip
            site.lab("sql", name, "-e", statement)
        site.lab("snapshot", "take", name, "--label", "mine")
        site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (2)")
        archive = other.root / "lab.lab"
        site.lab("snapshot", "export", name, "mine", str(archive))
        arguments = ("snapshot", "import", str(archive), other.name("came"), "--warm-only")
        view = other.lab(*arguments, "-o", "json").json
        archive.unlink()
        try:
            assert view["started"] == "warm"
            came, nodes = view["name"], [node["name"] for node in view["nodes"]]
            for node in nodes:
                assert other.sql(came, node, query) == [[1]]
                assert other.sql(came, node, "SHOW STATUS LIKE 'wsrep_cluster_size'") == [
                    ["wsrep_cluster_size", "3"]
                ]
            for cold in (False, True):
                other.lab("sql", came, "-e", "INSERT INTO t.x VALUES (3)")
                flags = ("--cold",) if cold else ()
                back = other.lab("rollback", came, *flags, "-o", "json").json
                assert back["started"] == ("cold" if cold else "warm")
                assert [other.sql(came, node, query) for node in nodes] == [[[1]]] * 3
        finally:
            other.lab("down", view["name"], code=None)
        assert other.settled() == []
