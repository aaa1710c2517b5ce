"""A single server on a real guest: the second topology, from the image of the first."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.names import LOOPBACK
from tests.e2e.e2e_site import Site
from tests.e2e.test_cluster import query

pytestmark = pytest.mark.e2e

_COUNT = "SELECT COUNT(*) FROM shop.orders"


@pytest.mark.rare
def test_a_single_server(image: Site) -> None:
    """`lab up single`: warm, written to, stopped and started, rolled back, removed."""
    name = image.name("solo")
    with image.up("single", "--name", name) as view:
        assert (view["state"], view["started"], len(view["nodes"])) == ("ready", "warm", 1)
        assert view["nodes"][0]["role"] == "server"
        assert query(view["dsn"], "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'") == [("wsrep_on", "OFF")]
        assert query(view["dsn"], "SHOW GLOBAL VARIABLES LIKE 'read_only'")[0][1] == "OFF"
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        ):
            image.sql(name, "n1", statement)
        image.lab("snapshot", "take", name, "--label", "one")
        image.sql(name, "n1", "INSERT INTO shop.orders VALUES (2)")
        image.lab("stop", name, "--force")
        image.lab("start", name, "--timeout", "200")
        assert image.sql(name, "n1", _COUNT) == [[2]]
        image.lab("rollback", name, "--to", "one", "--timeout", "200")
        assert image.sql(name, "n1", _COUNT) == [[1]]
        requirements = image.lab("status", name, "-o", "json").json["requirements"]
        assert [(one["name"], one["met"]) for one in requirements] == [
            ("SQL", True), ("writable", True),
        ]  # fmt: skip
        assert "mariadbd" in image.lab("logs", name, "-n", "200").stdout
        # pam_nologin(8): users that were added in the node can log in, and nothing else is said.
        image.lab("exec", name, "--", "test", "!", "-e", "/run/nologin")
    assert image.settled() == []
    assert "exactly one node" in image.lab("up", "single", "--nodes", "2", code=2).stderr


def _greeting(port: int) -> bytes:
    with socket.create_connection((LOOPBACK, port), 120) as connection:
        # As clients do. Of one that only listens, QEMU's port may have forgotten the connection.
        connection.sendall(b"SSH-2.0-many\r\n")
        return connection.recv(8)


@pytest.mark.rare
def test_many_connections_for_ssh(image: Site) -> None:
    """Protects loops of `lab exec`, scp and ansible: systemd ends a socket that is used too often.

    An emulated guest accepts too few a second for that limit; so it is looked at as well.
    """
    name = image.name("many")
    with image.up("single", "--name", name) as view:
        port = view["nodes"][0]["ssh_port"]
        with ThreadPoolExecutor(4) as pool:
            said = list(pool.map(_greeting, [port] * 300))
        assert said == [b"SSH-2.0-"] * 300
        wanted = "ActiveState,Result,TriggerLimitIntervalUSec,MaxConnections,NAccepted"
        asked = ["systemctl", "show", "ssh.socket", f"--property={wanted}"]
        lines = image.lab("exec", name, "--", *asked).stdout.split()
        shown = dict(line.split("=") for line in lines)
        assert int(shown.pop("NAccepted")) > 300
        assert shown == {
            "ActiveState": "active", "Result": "success", "TriggerLimitIntervalUSec": "0",
            "MaxConnections": "256",
        }  # fmt: skip


@pytest.mark.rare
def test_a_guest_of_two_processors_has_both(image: Site) -> None:
    """Protects from a guest that keeps the one processor on which it booted; cold and warm."""
    name = image.name("two")
    for more in ("--cold",), ():
        with image.up("single", "--cpus", "2", *more, "--name", name):
            assert image.lab("exec", name, "--", "nproc").stdout.split() == ["2"]
            clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
            assert image.lab("exec", name, "--", "cat", clock).stdout.strip() != "hpet"
            assert (
                image.lab("exec", name, "--", "systemctl", "--failed", "--no-legend").stdout == ""
            )
    assert image.settled() == []
