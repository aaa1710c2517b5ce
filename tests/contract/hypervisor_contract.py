"""The contract of ``lab.hypervisor.Hypervisor``, as tests that each driver's test class inherits.

A driver's class gives the fixture ``site``: a fresh place with guests. ``HypervisorContract``
holds for all. What ``capabilities`` promise beyond that is in ``WarmContract``, and what must be
refused without it in ``ColdContract``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.hypervisor_basics import (
    Changing,
    Forwarding,
    KernelBooting,
    Owning,
    Pausing,
    Reaching,
    Starting,
    Stopping,
)
from tests.contract.hypervisor_cold import Refusing
from tests.contract.hypervisor_memory import Capturing, Copying, Restoring
from tests.contract.hypervisor_site import ClosableHypervisor, Site

__all__ = ["ColdContract", "HypervisorContract", "Site", "WarmContract"]


class HypervisorContract(Starting, Reaching, Stopping, Owning):
    @pytest.fixture
    def ours(self, site: Site) -> Iterator[ClosableHypervisor]:
        """A hypervisor of our installation; its guests end with the test."""
        try:
            yield site.hypervisor(site.home)
        finally:
            site.clear()


class WarmContract(
    HypervisorContract,
    KernelBooting,
    Forwarding,
    Changing,
    Pausing,
    Capturing,
    Restoring,
    Copying,
):
    """With ``memory``, ``forwards`` and ``live``."""

    def test_memory_and_capabilities_agree(self, ours: ClosableHypervisor) -> None:
        assert ours.memory is not None
        assert ours.capabilities().why_cold == ""

    def test_forwarded_ports_are_not_redirected(self, ours: ClosableHypervisor) -> None:
        """Protects labs from a preflight that asks for a firewall which nothing here needs."""
        assert ours.capabilities().forwards
        assert ours.redirects is None


class ColdContract(HypervisorContract, Refusing):
    """Without any of them."""
