"""Resets of a real cluster: by a standby, which is made in the background for the next one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Set
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_captures import connect

pytestmark = pytest.mark.e2e

NODES = ("n1", "n2", "n3")


def status(site: Site, name: str) -> Any:
    return site.lab("status", name, "-o", "json").json["lab"]


def until_standby(site: Site, name: str) -> str:
    """The label of the snapshot for which there is a standby, once there is."""

    def look() -> str:
        return str(status(site, name)["standby"])

    found = until(look, Deadline.after(120), most=1.0)
    log = site.home.lab(name) / "standby.log"
    assert found, log.read_text() if log.exists() else "no process was started"
    return found


def until_ended(site: Site, name: str, guests: Set[str]) -> None:
    """Return once ``guests`` have ended: by themselves, or by the process that makes a standby."""
    if until(lambda: guests.isdisjoint(site.guests()), Deadline.after(20)):
        return
    left = {guest: site.states().get(guest) for guest in sorted(guests)}
    log = site.home.lab(name) / "standby.log"
    raise AssertionError(f"{left}; {log.read_text() if log.exists() else 'no standby.log'}")


def host_keys(node: Any) -> str:
    return subprocess.run(
        ["ssh-keyscan", "-p", str(node["ssh_port"]), "-t", "ed25519", "127.0.0.1"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


def answered(connection: Any) -> Any:
    """What a connection of before answers, or the error."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM t.rows_")
            return cursor.fetchone()
    except pymysql.Error as error:
        return error
    finally:
        connection.close()


def test_resets_of_a_cluster(formed: Site) -> None:
    """Protects tests between which a lab is reset: from rows of before, and from leftovers."""
    site, name = formed, formed.name("reset")
    with site.up(*PXC, "--nodes", "3", "--name", name) as view:
        site.sql(name, "n1", "CREATE DATABASE t")
        site.sql(name, "n1", "CREATE TABLE t.rows_ (id INT PRIMARY KEY)")
        label = site.lab("snapshot", "take", name, "--label", "base", "-o", "name").stdout.strip()
        site.lab("standby", name, "--to", "base")
        keys = set()
        for number in range(2):
            assert until_standby(site, name) == label
            assert len(site.guests()) == 6
            former = {node["guest"] for node in status(site, name)["nodes"]}
            site.sql(name, "n2", f"INSERT INTO t.rows_ VALUES ({number})")
            old = connect(view, view["nodes"][0])
            to = () if number else ("--to", "base")  # then to the same again
            once = ("--once",) if number else ()
            done = site.lab("reset", name, *to, *once, "-o", "json")
            assert isinstance(answered(old), pymysql.Error), "it is not answered any more"
            back = done.json
            assert (back["state"], back["started"], back["dsn"]) == ("ready", "warm", view["dsn"])
            assert former.isdisjoint(node["guest"] for node in back["nodes"]), "it was used"
            until_ended(site, name, former)
            for node in NODES:
                assert site.sql(name, node, "SELECT COUNT(*) FROM t.rows_") == [[0]], node
                (row,) = site.sql(name, node, "SHOW STATUS LIKE 'wsrep_cluster_size'")
                assert row[1] == "3"
                (now,) = site.sql(name, node, "SELECT UNIX_TIMESTAMP(NOW(6))")
                assert abs(float(now[0]) - time.time()) < 3
            site.lab("exec", name, "--node", "n3", "--", "true")  # by SSH, with its host key
            keys.add(host_keys(view["nodes"][2]))
        assert len(keys) == 2, "each standby has host keys of its own"
        assert len(site.guests()) == 3
        assert status(site, name)["standby"] == ""
        # As a user's own rollback, after the last standby: restored, under the guests' new names.
        site.sql(name, "n3", "INSERT INTO t.rows_ VALUES (1)")
        site.lab("rollback", name, "--to", "base")
        assert site.sql(name, "n1", "SELECT COUNT(*) FROM t.rows_") == [[0]]
        site.lab("stop", name)
        site.lab("start", name)
        site.lab("reset", name)
        site.lab("down", name)  # while the next one is being made
    site.lab("gc")
    assert site.settled() == []


def test_labs_that_are_made_ahead(formed: Site) -> None:
    """Protects `lab up` with the setting standby: it takes a lab, and nothing is left of others."""
    site = replace(formed, settings={**formed.settings, "LAB_STANDBY": "1"})
    try:
        _taken(site)
    finally:
        site.lab("down", "--all", "--yes", code=None)
    assert site.settled() == []


def _taken(site: Site) -> None:
    first = site.lab("up", *PXC, "--nodes", "3", "-o", "name").stdout.strip()

    def waiting() -> list[str]:
        listed = site.lab("ls", "-o", "json").json
        return [one["name"] for one in listed if one["state"] == "pooled"]

    (name,) = until(waiting, Deadline.after(120), most=1.0) or [""]
    assert name, site.home.ahead_log.read_text()
    taken = site.lab("up", *PXC, "--nodes", "3", "--ttl", "1h", "-o", "json")
    view = taken.json
    assert (view["name"], view["state"], view["started"]) == (name, "ready", "warm")
    assert taken.seconds < 5, "it was not restored"
    for node in NODES:
        (row,) = site.sql(name, node, "SHOW STATUS LIKE 'wsrep_cluster_size'")
        assert row[1] == "3"
        (now,) = site.sql(name, node, "SELECT UNIX_TIMESTAMP(NOW(6))")
        assert abs(float(now[0]) - time.time()) < 3
    site.sql(name, "n2", "CREATE DATABASE mine")
    assert site.sql(first, "n1", "SHOW DATABASES LIKE 'mine'") == []
    site.lab("down", "--all", "--yes")  # while the next one is being made
    assert site.lab("ls", "-o", "json").json == []
    assert site.settled() == []


@pytest.mark.rare
def test_a_standby_that_waited(formed: Site) -> None:
    """Protects a reset after a break: paused nodes of Galera are one cluster at once."""
    site, name = formed, formed.name("waited")
    with site.up(*PXC, "--nodes", "3", "--name", name):
        site.lab("standby", name)
        time.sleep(900)
        site.sql(name, "n1", "CREATE DATABASE later")
        done = site.lab("reset", name, "--once", "-o", "json").json
        assert done["state"] == "ready"
        for node in NODES:
            (row,) = site.sql(name, node, "SHOW STATUS LIKE 'wsrep_cluster_size'")
            assert row[1] == "3"
        for node in NODES:
            site.sql(name, node, f"CREATE DATABASE of_{node}")
        listed = [row[0] for row in site.sql(name, "n2", "SHOW DATABASES")]
        assert "later" not in listed
        assert {"of_n1", "of_n2", "of_n3"} <= set(listed)
