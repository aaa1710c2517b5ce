"""The libvirt driver keeps the contract, with real QEMU guests that hold a tiny kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.errors import HostUnfit, RestoreFailed
from lab.hypervisor import Disk, FirmwareBoot, GuestSpec, Hypervisor, memory_of
from lab.hypervisor.libvirt.probe import no_kvm
from lab.paths import Home
from lab.wait import Deadline, until
from tests.contract.hypervisor_contract import Site, WarmContract
from tests.contract.hypervisor_site import MEMORY, SECONDS, ClosableHypervisor, states
from tests.platform import daemons
from tests.platform.handed import GIVEN

pytestmark = pytest.mark.e2e


def _driver() -> type:
    driver = pytest.importorskip("lab.hypervisor.libvirt.driver", reason="no libvirt-python")
    found: type = driver.LibvirtHypervisor
    return found


def _open(sockets: Path, accelerator: str, home: str) -> ClosableHypervisor:
    from lab.hypervisor.libvirt.driver import LibvirtHypervisor

    return LibvirtHypervisor(home=home, sockets=sockets, accelerator=accelerator)


def _accelerators() -> tuple[str, ...]:
    """Those of this host: guests are emulated anywhere."""
    why, _ = no_kvm(listed=True, session=os.geteuid() != 0)
    return ("tcg",) if why else ("tcg", "kvm")


@pytest.fixture(scope="module", params=_accelerators())
def accelerator(request: pytest.FixtureRequest) -> str:
    """What runs the guests of a test."""
    return str(request.param)


@pytest.fixture(scope="module")
def run_as(accelerator: str) -> Iterator[tuple[int, int] | None]:
    """Whom QEMU runs as; skips where libvirt or QEMU is missing."""
    with daemons.libvirt() if GIVEN else nullcontext():  # in a guest nobody else starts it
        try:
            hypervisor = _driver()(home="ct", sockets=Path("/nowhere"), accelerator=accelerator)
            owner: tuple[int, int] | None = hypervisor.run_as
        except HostUnfit as unfit:
            pytest.skip(f"{unfit}: {' '.join(unfit.details)}")
        hypervisor.close()
        yield owner


@pytest.fixture
def site(accelerator: str, run_as: tuple[int, int] | None) -> Iterator[Site]:
    # Not pytest's directory: that can only be entered by who runs the tests, not by QEMU.
    directory = Path(tempfile.mkdtemp(prefix="lab-ct-"))
    directory.chmod(0o711)
    home = Home(directory / "home")
    home.create()

    def give(path: Path) -> None:
        if run_as is not None:
            os.chown(path, *run_as)

    made = Site(partial(_open, home.sockets, accelerator), directory, give, _booted)
    try:
        yield made
    finally:
        shutil.rmtree(directory)
        _remove_logs(made.token)


def _remove_logs(token: str) -> None:
    # libvirt keeps one for each name forever, and ours are never used again.
    from lab.hypervisor.libvirt.logs import DIRECTORIES

    for directory in DIRECTORIES:
        for log in Path(directory).expanduser().glob(f"lab-{token}-*.log"):
            log.unlink()


def _booted(guest: GuestSpec) -> None:
    assert _printed(guest, lambda text: text[:1] == "B"), "the kernel did not boot"


def _printed(guest: GuestSpec, enough: Callable[[str], object]) -> str:
    """What the guest's console shows once it is ``enough``."""

    def look() -> str | None:
        text = guest.console_log.read_text() if guest.console_log.exists() else ""
        return text if enough(text) else None

    return until(look, Deadline.after(SECONDS), most=0.05) or ""


class TestLibvirt(WarmContract):
    def test_a_restored_guest_resumes_where_it_was_saved(
        self, site: Site, ours: Hypervisor
    ) -> None:
        former = site.former()
        ours.start(former)
        last = _printed(former, lambda text: len(text) > 10)[-1]
        image = site.freeze(ours, former)
        last = former.console_log.read_text()[-1]
        clones = [site.guest("n2"), site.guest("n3")]
        for clone in clones:
            memory_of(ours).restore(clone, image)
        time.sleep(0.3)
        assert not any(clone.console_log.read_text() for clone in clones), "they are paused"
        memory_of(ours).resume([clone.name for clone in clones])
        shown = [_printed(clone, lambda text: len(text) > 10)[:10] for clone in clones]
        assert shown[0] == shown[1]
        assert "B" not in shown[0], "a restored guest does not boot"
        # A letter may have been on its way when the guest was paused.
        assert (ord(shown[0][0]) - ord(last)) % 26 <= 2

    @pytest.mark.parametrize("readable", [True, False])
    def test_a_copy_resumes_where_it_was_taken(
        self, site: Site, ours: Hypervisor, readable: bool
    ) -> None:
        """Also where QEMU's memory cannot be read, and all of it comes as a migration stream."""
        image = site.capture(ours, site.former())
        clone, copy = site.guest("n2"), site.guest("n3")
        memory_of(ours).restore(clone, image)
        memory_of(ours).resume([clone.name])
        _printed(clone, lambda text: len(text) > 10)
        memory_of(ours).pause([clone.name])
        new = site.new_image()
        if readable:
            finish = memory_of(ours).copy_memory(clone.name, image, new)
        else:
            from lab.hypervisor.libvirt import memory_copy

            domain = ours._find(clone.name)  # type: ignore[attr-defined]
            finish = memory_copy.copy(
                ours._monitor(domain),  # type: ignore[attr-defined]
                "no such domain",
                site.directory / "home" / "run",
                ours.run_as,
                image,
                new,
            )
        last = clone.console_log.read_text()
        memory_of(ours).resume([clone.name])
        copied = finish()
        assert copied.ram == image.ram
        assert not new.ram.exists()
        assert copied.state.stat().st_size < MEMORY / 4
        assert sorted(path.name for path in site.directory.glob("copy-*")) == [new.state.name]
        memory_of(ours).restore(copy, copied)
        memory_of(ours).resume([copy.name])
        shown = _printed(copy, lambda text: len(text) > 10)[:10]
        assert "B" not in shown, "a restored guest does not boot"
        assert (ord(shown[0]) - ord(last[-1])) % 26 <= 2
        _printed(clone, lambda text: len(text) > len(last) + 10)

    def test_qemu_s_own_words_reach_the_error(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        image.state.write_bytes(image.state.read_bytes()[:5000])
        with pytest.raises(RestoreFailed) as failure:
            memory_of(ours).restore(site.guest("n2"), image)
        assert any("load of migration failed" in line for line in failure.value.details)

    def test_a_guest_that_boots_from_its_disk(self, site: Site, ours: Hypervisor) -> None:
        if not ours.machine.firmware:  # type: ignore[attr-defined]
            pytest.skip("no EFI firmware is installed")
        guest = replace(site.guest(), boot=FirmwareBoot(), memory=4 * MEMORY)
        ours.start(guest)
        assert states(ours) == {guest.name: "running"}

    def test_a_read_only_disk_is_shared(self, site: Site, ours: Hypervisor) -> None:
        seed = Disk(site.put("seed", bytes(10240)), "raw", "lab-seed", readonly=True)
        for node in ("n1", "n2"):
            guest = site.guest(node)
            ours.start(replace(guest, disks=(*guest.disks, seed)))
        assert len(states(ours)) == 2

    def test_a_clone_s_image_stays_readable_only(
        self, site: Site, ours: Hypervisor, run_as: tuple[int, int] | None
    ) -> None:
        image = site.capture(ours, site.former())
        image.state.chmod(0o400)
        if ours.capabilities().reads_ram:
            image.ram.chmod(0o440)
            os.chown(image.ram, os.geteuid(), run_as[1] if run_as else -1)
        before = image.ram.stat()
        clone = site.guest("n2")
        memory_of(ours).restore(clone, image)
        memory_of(ours).resume([clone.name])
        assert _printed(clone, lambda text: len(text) > 10), "it writes to its RAM"
        ours.stop(clone.name, force=True)
        after = image.ram.stat()
        assert after[:7] == before[:7]
        assert after.st_ctime_ns == before.st_ctime_ns, "libvirt gave it away, and back"

    def test_nothing_is_left_in_the_sockets_directory(self, site: Site, ours: Hypervisor) -> None:
        image = site.capture(ours, site.former())
        clone = site.guest("n2")
        memory_of(ours).restore(clone, image)
        directory = site.directory / "home" / "run"
        # Those of a guest's ports, while it runs, where libvirt's own directory is not used.
        in_use = ours.machine.sockets is not None  # type: ignore[attr-defined]
        ports = {".agent", ".lab"} if in_use else set()
        assert {path.suffix for path in directory.iterdir()} == ports
        ours.stop(clone.name, force=True)
        assert list(directory.iterdir()) == []
