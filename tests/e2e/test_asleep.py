"""Labs that sleep, on real guests: a client wakes one, and notices no more than a pause."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_captures import connect
from tests.e2e.test_serve import service

pytestmark = pytest.mark.e2e

_DAY = 86400
_STATE = "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'"


def seen(site: Site, name: str) -> Any:
    return site.lab("status", name, "-o", "json").json["lab"]


def asked(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


def clock_of(site: Site, name: str, node: str) -> float:
    return float(site.sql(name, node, "SELECT UNIX_TIMESTAMP(NOW(6))")[0][0])


def test_a_cluster_sleeps_until_a_client_comes(formed: Site, tmp_path: Path) -> None:
    """Protects clients and their connections; the service puts it to sleep by itself."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "config.toml").write_text('[serve]\nasleep_after = "4s"\n')
    site = replace(formed, settings={"XDG_CONFIG_HOME": str(tmp_path)})
    name = site.name("asleep")
    with service(site, how=signal.SIGTERM) as env:
        view = site.lab("up", *PXC, "--nodes", "3", "--name", name, "-o", "json", env=env).json
        site.sql(name, "n1", "CREATE DATABASE t")
        site.sql(name, "n1", "CREATE TABLE t.rows_ (id INT PRIMARY KEY)")
        old = connect(view, view["nodes"][0])
        assert asked(old, "SELECT 1") == (1,)

        def asleep() -> bool:
            return bool(seen(site, name)["state"] == "asleep")

        # By the statement counters, which are looked at every 15 s; a look of ours that is only
        # half counted then puts it off to the next time.
        assert until(asleep, Deadline.after(180), first=5.0, most=5.0)
        assert {node["state"] for node in seen(site, name)["nodes"]} == {"paused"}
        assert [lab["state"] for lab in site.lab("ls", "-o", "json", env=env).json] == ["asleep"]
        time.sleep(3)
        assert asleep(), "who looks does not wake it"
        began = time.monotonic()
        new = connect(view, view["nodes"][1])
        assert asked(new, _STATE)[1] == "Synced"
        took = time.monotonic() - began
        assert asked(old, "SELECT 2") == (2,), "the connection is the one that it was"
        assert took < 10, took
        for number, node in enumerate(("n1", "n2", "n3")):
            site.sql(name, node, f"INSERT INTO t.rows_ VALUES ({number})")
            assert abs(clock_of(site, name, node) - time.time()) < 3
        # Data on a connection that is open.
        site.lab("sleep", name)
        assert asleep()
        assert asked(old, "SELECT COUNT(*) FROM t.rows_") == (3,)
        for connection in (old, new):
            connection.close()
        site.lab("down", name)
    assert site.settled() == []


@pytest.mark.rare
@pytest.mark.parametrize(
    "what",
    [
        ("galera", "--nodes", "3"),
        ("group", "--nodes", "3"),
        ("replication", "--engine", "mysql", "--semi-sync"),
        ("replication", "--engine", "mariadb", "--semi-sync"),
    ],
    ids=["galera", "group", "mysql", "mariadb"],
)
def test_a_day_later(image: Site, what: tuple[str, ...]) -> None:
    """Protects what a cluster is from a pause, and from clocks that leap by a day after it."""
    name = image.name("day")
    with image.up(*what, "--name", name) as view:
        first = view["addresses"]["rw"][0] if "rw" in view["addresses"] else ""
        entry = next((n for n in view["nodes"] if first.endswith(f":{n['sql_port']}")), None)
        node = (entry or view["nodes"][0])["name"]
        image.sql(name, node, "CREATE DATABASE shop")
        image.sql(name, node, "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        for number in range(3):
            image.sql(name, node, f"INSERT INTO shop.orders VALUES ({number})")
            image.lab("sleep", name)
            time.sleep(20)
            assert image.lab("wake", name, "-o", "json").json["state"] == "ready"
            if number:
                leap = f"@{time.time() + number * _DAY:.0f}"
                for one in view["nodes"]:
                    argv = ("exec", name, "--agent", "--node", one["name"], "--")
                    image.lab(*argv, "date", "-s", leap)
            image.lab("wait", name, "--timeout", "60s")
            assert seen(image, name)["state"] == "ready"
        for one in view["nodes"]:

            def whole(which: str = one["name"]) -> bool:
                return image.sql(name, which, "SELECT COUNT(*) FROM shop.orders") == [[3]]

            assert until(whole, Deadline.after(20)), one["name"]
    assert image.settled() == []


@pytest.mark.rare
def test_a_host_that_was_suspended(formed: Site) -> None:
    """Protects labs on a laptop whose lid was closed: those that ran, slept, and waited.

    All of their QEMUs are stopped at once, and resumed when Galera would have forgotten a node.
    A host that is suspended does less: its monotonic clock, which QEMU's timers use, stops too.
    Here the timers of the nodes that ran leap: they take each other for gone, and are one cluster
    again by themselves.
    """
    names = {which: formed.name(which) for which in ("ran", "slept")}
    try:
        for name in names.values():
            formed.lab("up", *PXC, "--nodes", "3", "--name", name)
        formed.sql(names["ran"], "n1", "CREATE DATABASE kept")
        formed.lab("standby", names["ran"])
        formed.lab("sleep", names["slept"])
        stopped = [formed.qemu(guest) for guest in formed.guests()]
        assert len(stopped) == 9
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(60)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        time.sleep(15)  # in which they have parted
        formed.lab("wait", names["ran"], "--timeout", "120s")
        formed.lab("wake", names["slept"])
        for name in names.values():
            assert seen(formed, name)["state"] == "ready"
            for node in ("n1", "n2", "n3"):
                (row,) = formed.sql(name, node, "SHOW STATUS LIKE 'wsrep_cluster_size'")
                assert row[1] == "3", (name, node)
                assert abs(clock_of(formed, name, node) - time.time()) < 3
        assert formed.sql(names["ran"], "n3", "SHOW DATABASES LIKE 'kept'") == [["kept"]]
        back = formed.lab("reset", names["ran"], "--once", "-o", "json").json
        assert back["state"] == "ready"
        assert formed.sql(names["ran"], "n3", "SHOW DATABASES LIKE 'kept'") == []
        for node in ("n1", "n2", "n3"):
            assert abs(clock_of(formed, names["ran"], node) - time.time()) < 3
    finally:
        for name in names.values():
            formed.lab("down", name, code=None)
    assert formed.settled() == []
