"""The contract where guests can neither be paused, nor restored, nor be reached by ports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.errors import HostUnfit
from lab.hypervisor import Forward, Hypervisor, memory_of
from tests.contract.hypervisor_site import Site, states


class Refusing:
    def test_the_capabilities_say_so(self, ours: Hypervisor) -> None:
        can = ours.capabilities()
        assert (can.direct, can.forwards) == (False, False)
        assert can.why_cold
        assert ours.memory is None

    def test_a_caller_that_needs_memory_is_told_why_not(self, ours: Hypervisor) -> None:
        with pytest.raises(HostUnfit) as failure:
            memory_of(ours)
        assert failure.value.details == (ours.capabilities().why_cold,)

    def test_no_kernel_is_booted_without_firmware(self, site: Site, ours: Hypervisor) -> None:
        with pytest.raises(HostUnfit):
            ours.start(replace(site.guest(), boot=site.kernel()))
        assert states(ours) == {}

    def test_no_port_is_forwarded(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest()
        network = replace(guest.network, forwards=(Forward(23999, 3306),))
        with pytest.raises(HostUnfit):
            ours.start(replace(guest, network=network))
        assert states(ours) == {}
