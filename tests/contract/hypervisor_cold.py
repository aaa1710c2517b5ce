"""The contract where guests can neither be paused, nor restored, nor be reached by ports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.errors import HostUnfit
from lab.hypervisor import Forward, Hypervisor, MemoryImage
from tests.contract.hypervisor_site import MEMORY, Site, states


class Refusing:
    def test_the_capabilities_say_so(self, ours: Hypervisor) -> None:
        can = ours.capabilities()
        assert (can.warm, can.pauses, can.direct, can.forwards) == (False, False, False, False)
        assert can.why_cold

    def test_what_they_exclude_is_refused(self, site: Site, ours: Hypervisor) -> None:
        """Protects callers that did not check: the call is refused and changes nothing."""
        guest = site.guest()
        ours.start(guest)
        ram, state = site.file("ram", MEMORY), site.directory / "state"
        for refused in (
            lambda: ours.pause([guest.name]),
            lambda: ours.resume([guest.name]),
            lambda: ours.save_memory(guest.name, ram, state),
            lambda: ours.restore(site.guest("n2"), MemoryImage(ram, site.put("s", b"x"), MEMORY)),
        ):
            with pytest.raises(HostUnfit):
                refused()
        assert states(ours) == {guest.name: "running"}
        assert not state.exists()

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
