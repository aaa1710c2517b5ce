"""Ports are led to bhyve's guests by pf, of which a double keeps the anchors and refuses."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.errors import HostUnfit, PortTaken
from lab.hypervisor import Forward, Hypervisor
from lab.hypervisor.bhyve import redirects
from lab.names import EVERYWHERE, GuestName
from lab.run import run
from tests.contract import pf_double, vm_double
from tests.contract.hypervisor_redirects import leading
from tests.contract.hypervisor_site import Site, free_port, states
from tests.contract.test_hypervisor_bhyve import root, site, there

__all__ = ["root", "site"]

Golden = Callable[[str, str], None]


@pytest.fixture
def ours(site: Site) -> Hypervisor:
    return site.hypervisor(site.home)


def test_the_rules(golden: Golden) -> None:
    forwards = [
        Forward(24001, 3306, "192.0.2.10", "100.64.0.2"),
        Forward(24002, 3306, EVERYWHERE, "100.64.0.3"),
    ]
    golden("bhyve-pf.txt", redirects.rules(forwards))


def test_a_connection_from_elsewhere_is_led_to_the_guest(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    guest = leading(site, "n1", port := free_port())
    (forward,) = guest.network.forwards
    ours.start(guest)
    assert pf_double.led(root, "192.0.2.10", port) == f"{forward.to}:3306"
    assert list(pf_double.loaded(root)) == [f"lab/{guest.name}"]
    ours.stop(guest.name, force=True)
    assert pf_double.loaded(root) == {}


@pytest.mark.parametrize(
    ("machine", "why", "hint"),
    [
        ({"pf": "missing"}, "pf is not loaded", "service pf start"),
        ({"pf": "denied"}, "only root", "run lab as root"),
        ({"pf": "disabled"}, "pf is disabled", "service pf start"),
        ({"main": []}, "does not lead to the anchor lab", 'rdr-anchor "lab/*"'),
        ({"main": ['rdr-anchor "lab/*/*" all']}, "does not lead", 'rdr-anchor "lab/*"'),
        ({"main": ['nat-anchor "lab/*" all']}, "does not lead", 'rdr-anchor "lab/*"'),
        ({"forwarding": "0"}, "forwards no packets", "gateway_enable=YES"),
    ],
    ids=["not loaded", "no root", "disabled", "no anchor", "deeper", "nat only", "no gateway"],
)
def test_a_host_that_redirects_nothing_is_refused_with_the_remedy(
    site: Site, ours: Hypervisor, root: Path, machine: dict[str, object], why: str, hint: str
) -> None:
    """Protects users from labs that are ready and that nobody can reach."""
    pf_double.change(root, **machine)
    with pytest.raises(HostUnfit, match=re.escape(why)) as failure:
        ours.start(leading(site, "n1", free_port()))
    assert hint in failure.value.hint
    assert ours.redirects is not None
    with pytest.raises(HostUnfit, match=re.escape(why)):
        ours.redirects.ports()
    assert there(root) == []
    assert pf_double.loaded(root) == {}


def test_labs_that_are_not_published_need_no_pf(site: Site, ours: Hypervisor, root: Path) -> None:
    pf_double.change(root, pf="missing", main=[], forwarding="0")
    ours.start(site.guest())
    ours.stop(site.guest().name, force=True)
    assert there(root) == []


def test_what_others_have_in_pf_stays(site: Site, ours: Hypervisor, root: Path) -> None:
    """Protects the administrator's rules, in our anchor's neighbourhood too."""
    theirs = "rdr pass inet proto tcp from any to 192.0.2.10 port 80 -> 10.0.0.9 port 8080\n"
    for anchor in ("web", "lab/web", "rdr/lab-web-n1"):
        run(["pfctl", "-a", anchor, "-f", "-"], timeout=9.0, stdin=theirs.encode())
    ours.start(guest := leading(site, "n1", free_port()))
    ours.stop(guest.name, force=True)
    ours.forget([])
    assert sorted(pf_double.loaded(root)) == ["lab/web", "rdr/lab-web-n1", "web"]


def test_rules_of_guests_that_are_no_more_go(site: Site, ours: Hypervisor, root: Path) -> None:
    """Protects who gets the port next from what `vm destroy` or a crash left."""
    theirs = site.hypervisor(site.foreign)
    theirs.start(kept := leading(site, "n2", free_port(), site.foreign))
    redirects.load(GuestName("lab-gone-n1"), [Forward(24001, 3306, EVERYWHERE, "100.64.0.2")])
    ours.forget([])
    assert list(pf_double.loaded(root)) == [f"lab/{kept.name}"]


@pytest.mark.parametrize("listens", [True, False])
def test_a_program_keeps_its_port(site: Site, ours: Hypervisor, root: Path, listens: bool) -> None:
    """Protects a program that listens: pf would lead its clients away.

    On FreeBSD, who allows it for itself may have the port that another listens at, at another
    address; here only while the other does not listen.
    """
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", 0))  # noqa: S104
        if listens:
            other.listen()
        with pytest.raises(PortTaken):
            ours.start(leading(site, "n1", other.getsockname()[1]))
    assert there(root) == []


def test_what_pf_does_not_understand_leaves_nothing(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    guest = leading(site, "n1", 0)
    with pytest.raises(HostUnfit, match="pf reports an error") as failure:
        ours.start(guest)
    assert "stdin:1: syntax error" in failure.value.details
    assert states(ours) == {}
    assert there(root) == []


def test_the_double_is_a_program_of_its_own(root: Path) -> None:
    """Protects these tests: they would pass with a double that takes anything."""
    assert os.access(root.parent / "bin/pfctl", os.X_OK)
    assert vm_double.alive(os.getpid())
    for refused in (["-x"], ["-a", "_lab", "-F", "nat"], ["-s", "nonsense"], ["word"]):
        with pytest.raises(Exception, match="pfctl"):
            run(["pfctl", *refused], timeout=9.0)
