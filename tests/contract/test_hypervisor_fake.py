"""The fake keeps the contract, and fails when and how a test configures it to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities
from lab.names import GuestName
from tests.contract.hypervisor_basics import Personalising
from tests.contract.hypervisor_contract import ColdContract, Site, WarmContract
from tests.contract.hypervisor_redirects import Redirecting
from tests.contract.hypervisor_site import states
from tests.support.storage_faults import FailAt


class _Connecting(Personalising):
    @pytest.fixture
    def connect(self, site: Site) -> Callable[[GuestName, int], None]:
        hypervisor = FakeHypervisor(site.directory / "guests", site.home)
        return lambda guest, clients: hypervisor.servers.alter(
            guest, lambda inside: inside.sessions.extend(["SELECT 1"] * clients)
        )


class TestFake(WarmContract, _Connecting):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        opener = partial(FakeHypervisor, tmp_path / "guests")
        return Site(opener, tmp_path, give=lambda _: None, booted=lambda _: None)

    @pytest.mark.parametrize("step", ["start", "commit"])
    def test_injected_failure_leaves_nothing(self, site: Site, step: str) -> None:
        fault = FailAt(step, 1, HostUnfit("no memory: 16M needed, 0B free"))
        failing = FakeHypervisor(site.directory / "guests", site.home, before=fault)
        with pytest.raises(HostUnfit, match="no memory"):
            failing.start(site.guest())
        assert states(failing) == {}
        failing.start(site.guest())


class TestColdFake(ColdContract, Redirecting, _Connecting):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        cold = Capabilities(
            "fake",
            "fake",
            why_cold="it is cold",
            direct=False,
            forwards=False,
        )
        opener = partial(FakeHypervisor, tmp_path / "guests", capabilities=cold, redirects=True)
        return Site(opener, tmp_path, lambda _: None, lambda _: None, direct=False, forwards=False)
