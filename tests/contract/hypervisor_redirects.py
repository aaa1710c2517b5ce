"""The contract where ports of the host can be led to guests' own addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.errors import PortTaken
from lab.guest.network import own_address
from lab.hypervisor import Forward, GuestSpec, Hypervisor
from lab.names import EVERYWHERE
from tests.contract.hypervisor_site import Site, free_port, states


def leading(site: Site, node: str, port: int, home: str = "") -> GuestSpec:
    """A guest that ``port`` of this host leads to."""
    guest = site.guest(node, home)
    forward = Forward(port, 3306, EVERYWHERE, own_address(guest.network.segment, 1))
    return replace(guest, network=replace(guest.network, forwards=(forward,)))


class Redirecting:
    def test_a_port_leads_to_a_guest_as_long_as_there_is_one(
        self, site: Site, ours: Hypervisor
    ) -> None:
        guest = leading(site, "n1", port := free_port())
        assert ours.redirects is not None
        assert port not in ours.redirects.ports()
        ours.start(guest)
        assert ours.redirects.ports()[port] == guest.name
        ours.stop(guest.name, force=True)
        assert port not in ours.redirects.ports()

    def test_no_two_guests_share_a_port(self, site: Site, ours: Hypervisor) -> None:
        """Protects labs of two homes: binding the port does not show that it is taken."""
        port = free_port()
        ours.start(leading(site, "n1", port))
        theirs = site.hypervisor(site.foreign)
        assert theirs.redirects is not None
        assert theirs.redirects.ports()[port] == leading(site, "n1", port).name
        with pytest.raises(PortTaken):
            theirs.start(leading(site, "n2", port, site.foreign))
        assert states(theirs) == {}
        assert len(states(ours)) == 1
