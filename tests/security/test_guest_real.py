"""The hostile guest as a real one: whoever is root in a node replaces its programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.errors import NotReady
from tests.e2e.e2e_site import PXC, Site
from tests.security.guest import PROGRAM

pytestmark = pytest.mark.e2e

NODES = "3"
"""Of the template that these tests share with others."""
AGENT = "port:org.qemu.guest_agent.0"
PERSONALISE = "port:org.lab.personalise.0"
"""A node's ports, as places where it can behave."""
_ANSWER = 5.0
"""Seconds that a command may take that looks at a lab; emulated guests share the processors."""
_EXCHANGE = 30.0
"""Seconds that one may take which waits for a guest for as long as it sends nothing."""


def become(site: Site, lab: str, *, stop: str, behaviour: str, place: str) -> None:
    """Have n1 stop a service, and behave in its place; returns once it does."""
    script = (
        "rm -f /run/evil; systemctl stop lab-evil;"
        " systemd-run --unit lab-evil --collect -p StandardOutput=file:/run/evil /bin/sh -c"
        f" 'sleep 1; systemctl stop {stop}; exec perl /root/guest.pl {behaviour} {place}'"
    )
    site.lab("exec", lab, "--node", "n1", "--", "/bin/sh", "-c", script)
    seen = NotReady.exit_code if place == AGENT else 0
    look = (
        "exec",
        lab,
        "--agent",
        "--timeout",
        "5s",
        "--",
        "/bin/grep",
        "-q",
        "ready",
        "/run/evil",
    )
    for _ in range(60):
        done = site.lab(*look, code=None)
        assert done.seconds < _EXCHANGE
        if done.code == seen:
            return
    pytest.fail(f"{stop} was not replaced")


@contextmanager
def evil(site: Site, name: str, *size: str) -> Iterator[str]:
    """A lab whose n1 has the program; ``size``: flags, the default is ``NODES`` nodes."""
    with site.up(*PXC, *(size or ("--nodes", NODES)), "--name", site.name(name)) as view:
        lab = view["name"]
        put = ("exec", lab, "--node", "n1", "--stdin", "--", "/bin/sh", "-c", "cat >/root/guest.pl")
        site.lab(*put, stdin=PROGRAM.read_text())
        yield lab


@pytest.mark.rare
def test_a_node_that_floods_its_ports(site: Site) -> None:
    """Protects all labs of the host: each command has an end, and the lab can be removed."""
    with evil(site, "flood") as lab:
        become(site, lab, stop="lab-personalise", behaviour="endless", place=PERSONALISE)
        assert site.lab("snapshot", "take", lab, "--label", "mine").seconds < _EXCHANGE
        for behaviour in ("sql-rows", "sql-file", "http"):
            become(site, lab, stop="mariadb", behaviour=behaviour, place="tcp:3306")
            done = site.lab("status", lab, "-o", "json", code=None)
            assert done.seconds < _ANSWER
            assert done.json["lab"]["nodes"][0]["state"] == "unreachable"
            assert site.lab("ls", "-o", "json").seconds < _ANSWER
            refused = site.lab("sql", lab, "-e", "SELECT 1", code=None)
            assert refused.code == NotReady.exit_code, refused
        become(site, lab, stop="qemu-guest-agent", behaviour="wrong", place=AGENT)
        assert site.lab("down", lab).seconds < _EXCHANGE


@pytest.mark.rare
def test_a_node_that_says_a_byte_at_a_time(site: Site) -> None:
    """Protects from whoever is slow on purpose; each wait for a guest has a limit of its own."""
    with evil(site, "drip") as lab:
        become(site, lab, stop="lab-personalise", behaviour="drip", place=PERSONALISE)
        assert site.lab("snapshot", "take", lab, "--label", "mine").seconds < 100
        become(site, lab, stop="qemu-guest-agent", behaviour="drip", place=AGENT)
        assert site.lab("snapshot", "take", lab, "--label", "other").seconds < 200
        assert site.lab("stop", lab, "--force").seconds < _EXCHANGE
