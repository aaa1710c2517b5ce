"""The bhyve driver where things went wrong: processes killed, switches gone, noise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import CommandFailed, Conflict, HostUnfit, LabError
from lab.hypervisor import GuestSpec, Hypervisor, Network
from lab.run import run
from lab.wait import Deadline, until
from tests.contract.hypervisor_site import SECONDS, Site, states
from tests.contract.test_hypervisor_bhyve import bridges, change, root, site, there

__all__ = ["root", "site"]

pytestmark = [pytest.mark.bhyve, pytest.mark.rare]  # few changes are about this platform


@pytest.fixture
def ours(site: Site) -> Hypervisor:
    return site.hypervisor(site.home)


def test_what_a_killed_start_left_in_the_kernel_goes(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    """Protects from Ctrl-C during a start, which ends `vm _run` and bhyve.

    Nobody destroys the machine in the kernel then, and the name could not be used again.
    """
    guest = site.guest()
    ours.start(guest)
    (title,) = (root / "proc").iterdir()
    bhyve = int(title.name)
    keeper = int(run(["ps", "-o", "ppid=", "-p", title.name], timeout=SECONDS).stdout)
    for process in (keeper, bhyve):
        os.kill(process, signal.SIGKILL)
    assert until(lambda: not states(ours), Deadline.after(SECONDS))
    assert (root / "dev/vmm" / guest.name).exists()
    ours.stop(guest.name, force=True)
    assert there(root) == []
    assert not (root / "dev/vmm" / guest.name).exists()
    ours.start(guest)
    assert states(ours) == {guest.name: "running"}


def test_a_guest_that_no_switch_took_is_not_started(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    """Protects from a lab without a network: vm-bhyve only logs the error and starts the guest."""
    guest = replace(site.guest(), network=Network("52:54:00:4c:00:01", "", (), 0, uplink=True))
    run(["vm", "switch", "create", "public"], timeout=SECONDS)
    (root / "if/vm-public").unlink()
    with pytest.raises(HostUnfit, match="no network") as failure:
        ours.start(guest)
    assert "failed to find virtual switch 'public'" in failure.value.details
    assert states(ours) == {}
    assert there(root) == []


@pytest.mark.parametrize("noise", ["", "/etc/rc.conf: line 12: fooo: not found"])
def test_a_refusal_is_understood_next_to_other_errors(
    site: Site, ours: Hypervisor, root: Path, noise: str
) -> None:
    """Protects from an error in rc.conf: sh reports it on stderr, vm-bhyve refuses on stdout."""
    guest = site.guest()
    (root / "dev/vmm" / guest.name).touch()
    (root / "noise").write_text(noise)
    with pytest.raises(Conflict) as failure:
        ours.start(guest)
    assert "! guest appears to be running already" in failure.value.details
    assert "bhyvectl --destroy --vm=NAME" in failure.value.hint
    assert there(root) == []


def test_a_guest_of_that_name_that_vm_bhyve_does_not_know_is_left_alone(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    """Protects what somebody runs by bhyve itself: a start that is refused ends nothing."""
    guest = site.guest()
    with subprocess.Popen(["sleep", "600"]) as theirs:
        (root / "dev/vmm" / guest.name).touch()
        (root / "proc" / str(theirs.pid)).write_text(f"bhyve: {guest.name}")
        try:
            with pytest.raises(Conflict):
                ours.start(guest)
            assert theirs.poll() is None
            assert (root / "dev/vmm" / guest.name).exists()
            assert there(root) == []
        finally:
            theirs.kill()


def test_a_switch_of_others_that_cannot_be_made_is_in_nobody_s_way(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    """Protects labs after a restart of a host on which another bridge is not there any more.

    `vm init` makes all the others, and fails if that one was the last.
    """
    guest = site.guest()
    ours.start(guest)
    (root / "if/bridge7").write_text(json.dumps({"groups": [], "members": [], "address": ""}))
    run(["vm", "switch", "create", "-t", "manual", "-b", "bridge7", "theirs"], timeout=SECONDS)
    (title,) = (root / "proc").iterdir()
    os.kill(int(title.name), signal.SIGKILL)
    assert until(lambda: not ours.names(), Deadline.after(SECONDS))
    for path in (root / "if").iterdir():
        path.unlink()
    with pytest.raises(CommandFailed):
        run(["vm", "init"], timeout=SECONDS)
    (root / "if" / f"vm-lab{guest.network.segment}").unlink()
    ours.start(guest)
    assert states(ours) == {guest.name: "running"}
    ours.stop(guest.name, force=True)
    assert list(bridges()) == ["theirs"]


def test_a_bridge_of_the_host_s_own_leads_out(site: Site, ours: Hypervisor, root: Path) -> None:
    """Protects who has one card only: docs/freebsd.md gives its bridge to vm-bhyve."""
    guest = replace(site.guest(), network=Network("52:54:00:4c:00:01", "", (), 0, uplink=True))
    (root / "if/bridge0").write_text(json.dumps({"groups": [], "members": [], "address": ""}))
    run(["vm", "switch", "create", "-t", "manual", "-b", "bridge0", "public"], timeout=SECONDS)
    ours.start(guest)
    log = (root / "vm" / guest.name / "vm-bhyve.log").read_text()
    assert "-> bridge0 (public addm)" in log
    ours.stop(guest.name, force=True)
    assert (root / "if/bridge0").exists()


def test_a_guest_that_is_just_starting_is_ended(site: Site, ours: Hypervisor, root: Path) -> None:
    """Protects from a guest that nobody wants any more: Ctrl-C while bhyve is being made ready."""
    guest = site.guest()
    change(root, init_seconds=2.0)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(ours.start, guest)
        lock = root / "vm" / guest.name / "run.lock"
        assert until(lock.exists, Deadline.after(SECONDS))
        site.hypervisor(site.home).stop(guest.name, force=True)
        with suppress(LabError):
            started.result()
    assert states(ours) == {}
    assert list((root / "dev/vmm").iterdir()) == []
    assert there(root) == []


def test_what_a_killed_removal_left_goes_with_the_next(
    site: Site, ours: Hypervisor, root: Path
) -> None:
    guest = site.guest()
    ours.start(guest)
    (root / "vm/.lab/gone-1-lab-old-n1").mkdir()
    (root / "vm/.lab/gone-1-lab-old-n1/lab.json").write_text("{}")
    ours.stop(guest.name, force=True)
    assert list((root / "vm/.lab").iterdir()) == []


@pytest.fixture
def crashed(site: Site, ours: Hypervisor, root: Path) -> GuestSpec:
    """A guest of a host that lost its power: its lock is there, and nothing else."""
    ours.start(guest := site.guest())
    (title,) = (root / "proc").iterdir()
    os.kill(int(title.name), signal.SIGKILL)
    assert until(lambda: not ours.names(), Deadline.after(SECONDS))
    for path in (root / "if").iterdir():
        path.unlink()
    (root / "vm" / guest.name / "run.lock").write_text(
        json.loads((root / "rc.json").read_text())["hostname"] + "\n"
    )
    return guest


def test_after_a_crash_of_the_host_a_guest_is_started(ours: Hypervisor, crashed: GuestSpec) -> None:
    """Protects `lab start` after a power failure: nobody ends what does not run."""
    assert crashed.name not in ours.guests()
    ours.start(crashed)
    assert states(ours) == {crashed.name: "running"}


def test_after_a_crash_of_the_host_a_guest_is_forgotten(
    ours: Hypervisor, root: Path, crashed: GuestSpec
) -> None:
    """Protects `lab down`, and whoever wants the name next."""
    ours.forget([crashed.name])
    assert there(root) == []
    assert ours.names() == set()
    assert bridges() == {}
