"""The bhyve driver against vm-bhyve's own scripts, where a checkout of them is at hand.

LAB_VM_BHYVE names it. FreeBSD's programs below the scripts are doubles (``freebsd_double``), so
this shows that the driver and the scripts understand each other, and that the double of ``vm``
that all other tests use behaves like the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.errors import Conflict, NotFound
from lab.hypervisor import GuestSpec
from lab.hypervisor.bhyve import text
from lab.hypervisor.bhyve.command import vm
from lab.hypervisor.bhyve.config import guest_uuid
from lab.hypervisor.bhyve.driver import BhyveHypervisor
from tests.contract import freebsd_double
from tests.contract.hypervisor_contract import ColdContract
from tests.contract.hypervisor_site import SECONDS, ClosableHypervisor, Site, states
from tests.contract.test_bhyve_rough import (
    crashed,
    ours,
    test_a_bridge_of_the_host_s_own_leads_out,
    test_a_guest_of_that_name_that_vm_bhyve_does_not_know_is_left_alone,
    test_a_guest_that_is_just_starting_is_ended,
    test_a_guest_that_no_switch_took_is_not_started,
    test_a_refusal_is_understood_next_to_other_errors,
    test_a_switch_of_others_that_cannot_be_made_is_in_nobody_s_way,
    test_after_a_crash_of_the_host_a_guest_is_forgotten,
    test_after_a_crash_of_the_host_a_guest_is_started,
    test_what_a_killed_start_left_in_the_kernel_goes,
)

__all__ = [
    "crashed",
    "ours",
    "test_a_bridge_of_the_host_s_own_leads_out",
    "test_a_guest_of_that_name_that_vm_bhyve_does_not_know_is_left_alone",
    "test_a_guest_that_is_just_starting_is_ended",
    "test_a_guest_that_no_switch_took_is_not_started",
    "test_a_refusal_is_understood_next_to_other_errors",
    "test_a_switch_of_others_that_cannot_be_made_is_in_nobody_s_way",
    "test_after_a_crash_of_the_host_a_guest_is_forgotten",
    "test_after_a_crash_of_the_host_a_guest_is_started",
    "test_what_a_killed_start_left_in_the_kernel_goes",
]

Golden = Callable[[str, str], None]


def open_bhyve(firmware: Path, home: str) -> ClosableHypervisor:
    return BhyveHypervisor(home=home, firmware=firmware)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    checkout = os.environ.get("LAB_VM_BHYVE", "")
    if not checkout or not shutil.which("bash"):
        pytest.skip("LAB_VM_BHYVE names no checkout of vm-bhyve, or there is no bash")
    directory = Path(tempfile.mkdtemp(prefix="lab-vm-"))
    freebsd_double.install(directory / "bin", directory / "root", Path(checkout))
    monkeypatch.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")
    try:
        yield directory / "root"
    finally:
        for title in (directory / "root/proc").iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(title.name), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def site(root: Path, tmp_path: Path) -> Site:
    def booted(guest: GuestSpec) -> None:
        assert made.hypervisor(guest.tags["home"]).channel(guest.name).ping(SECONDS)

    opener = partial(open_bhyve, root / "firmware.fd")
    made = Site(opener, tmp_path, lambda _: None, booted, direct=False, forwards=False)
    return made


@pytest.mark.rare
class TestVmBhyve(ColdContract):
    """The whole contract, several programs for each line of the scripts."""


def test_a_guest_s_life_in_vm_bhyve_s_own_hands(root: Path, tmp_path: Path, golden: Golden) -> None:
    """Protects from a double that agrees with the driver, and not with vm-bhyve."""
    ours = BhyveHypervisor(home="pxc", firmware=root / "firmware.fd")
    site = Site(
        lambda _: ours,
        tmp_path,
        give=lambda _: None,
        booted=lambda _: None,
        direct=False,
        forwards=False,
        token="pxc",
    )
    guest = site.guest()
    guest = replace(guest, network=replace(guest.network, segment=23306))
    ours.start(guest)
    assert states(ours) == {guest.name: "running"}
    assert ours.names() == {guest.name}
    assert not ours.segment_free(23306)
    (switch,) = text.switches(vm("looking", "switch", "list")).values()
    assert (switch.bridge, switch.address) == ("vm-lab23306", "100.86.194.129/26")
    assert ours.channel(guest.name).run(["/bin/echo", "up"], timeout=SECONDS) == b"up\n"
    with pytest.raises(Conflict):
        ours.start(guest)
    argv = (root / "argv").read_text()
    for place, name in ((root, "ROOT"), (tmp_path, "HOME")):
        argv = argv.replace(str(place), name)
    # Older releases name no bus, and give other options next to the devices.
    devices = re.findall(r" -s (?:0:)?(\S+)", argv)
    golden("bhyve-devices.txt", "".join(f"{device}\n" for device in devices))
    assert " -c 1 -m 16M " in argv
    assert f" -l bootrom,ROOT/firmware.fd -U {guest_uuid(guest)} -u " in argv.replace("-Hwl", "-l")
    assert argv.endswith(f" -l com1,/dev/nmdm-{guest.name}.1A {guest.name}\n")
    ours.stop(guest.name, force=True)
    assert states(ours) == {}
    assert text.switches(vm("looking", "switch", "list")) == {}
    assert not list((root / "if").iterdir()), "no bridge and no tap is left"
    with pytest.raises(NotFound):
        vm("looking", "info", guest.name)
