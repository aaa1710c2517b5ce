"""The contract of ``lab.hypervisor.Hypervisor``, as tests that each driver's test class inherits.

A driver's class gives the fixture ``site``: a fresh place with guests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypervisor_basics import Owning, Pausing, Starting, Stopping
from hypervisor_memory import Capturing, Restoring
from hypervisor_site import ClosableHypervisor, Site

__all__ = ["HypervisorContract", "Site"]


class HypervisorContract(Starting, Pausing, Stopping, Owning, Capturing, Restoring):
    @pytest.fixture
    def ours(self, site: Site) -> Iterator[ClosableHypervisor]:
        """A hypervisor of our installation; its guests end with the test."""
        try:
            yield site.hypervisor(site.home)
        finally:
            site.clear()
