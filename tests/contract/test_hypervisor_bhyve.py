"""The bhyve driver keeps the contract, with a double of vm-bhyve's ``vm`` first on PATH."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.errors import CommandFailed, Conflict, HostUnfit, NotReady
from lab.guest.network import own_address
from lab.hypervisor import Disk, GuestSpec, Hypervisor, Network
from lab.hypervisor.bhyve.driver import BhyveHypervisor
from lab.hypervisor.bhyve.text import Switch, switches
from lab.names import GuestName
from lab.run import run
from lab.wait import Deadline, until
from tests.contract import pf_double, vm_double
from tests.contract.hypervisor_basics import Personalising
from tests.contract.hypervisor_contract import ColdContract, Site
from tests.contract.hypervisor_redirects import Redirecting
from tests.contract.hypervisor_site import SECONDS, ClosableHypervisor, states

Golden = Callable[[str, str], None]

pytestmark = [pytest.mark.bhyve, pytest.mark.rare]  # few changes are about this platform


def _open(firmware: Path, home: str) -> ClosableHypervisor:
    return BhyveHypervisor(home=home, firmware=firmware)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with vm-bhyve; not in pytest's directory, whose name is too long for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="lab-vm-"))
    vm_double.install(directory / "bin", directory / "root")
    pf_double.install(directory / "bin", directory / "root")
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
        hypervisor = made.hypervisor(guest.tags["home"])
        assert hypervisor.channel(guest.name).ping(SECONDS)

    opener = partial(_open, root / "firmware.fd")
    made = Site(opener, tmp_path, lambda _: None, booted, direct=False, forwards=False)
    return made


def change(root: Path, /, **rc: object) -> None:
    """Another rc.conf, or machine."""
    path = root / "rc.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rc))


def there(root: Path) -> list[str]:
    """What is in the datastore that vm-bhyve would look at."""
    return sorted(path.name for path in (root / "vm").iterdir() if path.name[0] != ".")


def bridges() -> dict[str, Switch]:
    return switches(run(["vm", "switch", "list"], timeout=SECONDS).stdout)


class TestBhyve(ColdContract, Redirecting, Personalising):
    @pytest.fixture
    def connect(self, root: Path) -> Callable[[GuestName, int], None]:
        def have(guest: GuestName, clients: int) -> None:
            (root / f"{guest}.sessions").write_text(str(clients))

        return have

    def test_the_agent_of_a_guest_answers(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        site.booted(site.guest())
        channel = ours.channel(site.guest().name)
        assert channel.run(["/bin/cat"], stdin=b"\xff\n\x00", timeout=SECONDS) == b"\xff\n\x00"
        path = site.directory / "written"
        channel.write(str(path), b"secret", mode=0o600)
        assert path.read_bytes() == b"secret"
        channel.personalise(b"clock 00\n", timeout=SECONDS)
        assert abs(channel.clock(timeout=SECONDS) - time.time()) < SECONDS

    def test_a_guest_that_has_not_booted_yet_is_waited_for(
        self, site: Site, ours: Hypervisor, root: Path
    ) -> None:
        """Protects from bhyve, which throws away what comes before the guest listens."""
        change(root, boot_seconds=1.5)
        ours.start(site.guest())
        channel = ours.channel(site.guest().name)
        assert not channel.ping(0.1)
        with pytest.raises(NotReady):
            channel.personalise(b"clock 00\n", timeout=0.2)
        channel.personalise(b"clock 00\n", timeout=SECONDS)
        assert channel.run(["/bin/echo", "up"], timeout=SECONDS) == b"up\n"
        with pytest.raises(CommandFailed) as failure:
            channel.personalise(b"nonsense 00\n", timeout=SECONDS)
        assert failure.value.details == ("nonsense: unknown item",)

    def test_several_may_ask_an_agent_at_once(self, site: Site, ours: Hypervisor) -> None:
        """Protects commands side by side: bhyve hangs up on whoever comes second."""
        from concurrent.futures import ThreadPoolExecutor

        ours.start(site.guest())
        site.booted(site.guest())
        channel = ours.channel(site.guest().name)
        said = [str(number).encode() for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            asked = pool.map(
                lambda word: channel.run(["/bin/cat"], stdin=word, timeout=SECONDS), said
            )
            assert list(asked) == said

    def test_nodes_of_a_lab_share_a_switch_until_the_last_is_gone(
        self, site: Site, ours: Hypervisor
    ) -> None:
        first, second = site.guest("n1"), site.guest("n2")
        second = replace(second, network=first.network)
        segment = first.network.segment
        for guest in (first, second):
            ours.start(guest)
        (switch,) = bridges().values()
        assert switch.address == f"{own_address(segment, 0)}/26"
        assert switch.bridge == f"vm-lab{segment}"
        ours.stop(first.name, force=True)
        assert list(bridges()) == [switch.name]
        ours.stop(second.name, force=True)
        assert bridges() == {}

    def test_switches_of_others_stay(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest()
        run(["vm", "switch", "create", "public"], timeout=SECONDS)
        taken = f"lab{guest.network.segment}"
        run(["vm", "switch", "create", taken], timeout=SECONDS)
        assert not ours.segment_free(guest.network.segment)
        with pytest.raises(Conflict):
            ours.start(guest)
        ours.start(site.guest("n2"))
        ours.stop(site.guest("n2").name, force=True)
        assert sorted(bridges()) == sorted(["public", taken])

    def test_a_subnet_of_others_is_not_used(self, site: Site, ours: Hypervisor, root: Path) -> None:
        guest = site.guest()
        address = f"{own_address(guest.network.segment, 5)}/30"
        run(["vm", "switch", "create", "-a", address, "public"], timeout=SECONDS)
        assert not ours.segment_free(guest.network.segment)
        with pytest.raises(Conflict, match="public"):
            ours.start(guest)
        assert there(root) == []

    def test_after_a_reboot_of_the_host(self, site: Site, ours: Hypervisor, root: Path) -> None:
        """Protects labs from what a power failure leaves: bridges are gone, locks stay."""
        guest = site.guest()
        ours.start(guest)
        (title,) = (root / "proc").iterdir()
        os.kill(int(title.name), 9)
        assert until(lambda: not states(ours), Deadline.after(SECONDS))
        for path in (root / "if").iterdir():
            path.unlink()
        (root / "vm" / guest.name / "run.lock").write_text("host.example\n")
        assert states(ours) == {}
        assert ours.names() == {guest.name}, "a lock may be of one that just starts"
        ours.stop(guest.name, force=True)
        assert there(root) == []
        ours.start(guest)
        assert states(ours) == {guest.name: "running"}

    def test_a_guest_that_ended_by_itself_is_no_more(
        self, site: Site, ours: Hypervisor, root: Path
    ) -> None:
        guest = site.guest()
        ours.start(guest)
        site.booted(guest)
        run(["vm", "stop", guest.name], timeout=SECONDS)
        assert until(lambda: not ours.names(), Deadline.after(SECONDS))
        assert states(ours) == {}
        assert there(root) == [guest.name]
        ours.forget([guest.name])
        assert there(root) == []
        assert bridges() == {}

    def test_a_guest_that_is_deaf_stays(self, site: Site, ours: Hypervisor, root: Path) -> None:
        guest = site.guest()
        change(root, deaf=[guest.name])
        ours.start(guest)
        site.booted(guest)
        with pytest.raises(NotReady, match=guest.name):
            ours.stop(guest.name, force=False, timeout=0.2)
        assert states(ours) == {guest.name: "running"}
        ours.stop(guest.name, force=True)
        assert states(ours) == {}

    def test_others_stopped_guests_keep_their_names_and_files(
        self, site: Site, ours: Hypervisor, root: Path
    ) -> None:
        """Protects machines that a person made with vm-bhyve."""
        guest = site.guest()
        theirs = root / "vm" / guest.name / f"{guest.name}.conf"
        theirs.parent.mkdir()
        theirs.write_text('loader="uefi"\ncpu=1\nmemory=1G\n')
        assert ours.names() == {guest.name}
        with pytest.raises(Conflict):
            ours.start(guest)
        with pytest.raises(Conflict):
            ours.stop(guest.name, force=True)
        ours.forget([guest.name])
        assert theirs.exists()
        assert ours.guests() == {}

    def test_bhyve_s_own_words_reach_the_error(
        self, site: Site, ours: Hypervisor, root: Path
    ) -> None:
        guest = site.guest()
        with socket.socket(socket.AF_UNIX) as no_disk:
            no_disk.bind(str(root / "no-disk"))
        spoiled = replace(guest, disks=(Disk(root / "no-disk", "block", "lab-os"),))
        with pytest.raises(HostUnfit, match="ended at once") as failure:
            ours.start(spoiled)
        assert "Could not open backing file: No such device or address" in failure.value.details
        assert "bhyve exited with status 4" in failure.value.details
        assert there(root) == []
        assert bridges() == {}

    def test_the_commands_of_a_lab_s_life(
        self, site: Site, ours: Hypervisor, root: Path, golden: Golden
    ) -> None:
        """Shows people what is run on their host; how often is looked at states does not count."""
        first, second = site.guest("n1"), site.guest("n2")
        network = replace(first.network, segment=23306)
        for guest in (first, second):
            ours.start(replace(guest, network=network))
        assert ours.channel(first.name).ping(SECONDS)
        ours.stop(first.name, force=False, timeout=SECONDS)
        ours.stop(second.name, force=True)
        lines = (root / "calls").read_text().replace(site.token, "pxc").splitlines()
        once = [line for n, line in enumerate(lines) if lines[n - 1 : n] != [line]]
        golden("bhyve-commands.txt", "".join(f"{line}\n" for line in once))

    @pytest.mark.parametrize("tags", [True, False], ids=["1.8", "1.7"])
    def test_versions_of_vm_bhyve(
        self, site: Site, ours: Hypervisor, root: Path, tags: bool
    ) -> None:
        """Protects from the column that 1.8 added to ``vm list``."""
        change(root, tags=tags)
        ours.start(site.guest())
        assert states(ours) == {site.guest().name: "running"}

    def test_nothing_is_left_behind(self, site: Site, ours: Hypervisor, root: Path) -> None:
        ours.start(site.guest())
        ours.stop(site.guest().name, force=True)
        assert list((root / "vm/.lab").iterdir()) == []
        assert list((root / "dev/vmm").iterdir()) == []
        assert there(root) == []


@pytest.mark.parametrize(
    ("rc", "hint"),
    [
        ({"vm_enable": "NO"}, "sysrc vm_enable=YES"),
        ({"root": False}, "run lab as root"),
        ({"vmm": "missing"}, "kldload vmm"),
        ({"vmm": "unsupported"}, "VT-x"),
    ],
)
def test_a_host_that_is_not_set_up(
    site: Site, root: Path, rc: dict[str, object], hint: str
) -> None:
    """Protects users who have just installed vm-bhyve: each error names the remedy."""
    change(root, **rc)
    with pytest.raises(HostUnfit) as failure:
        site.hypervisor(site.home).capabilities()
    assert hint in failure.value.hint
    assert failure.value.details


def test_a_guest_that_reaches_the_outside(site: Site, root: Path) -> None:
    """Protects builders, which need mirrors: without the public switch, the hint creates it."""
    guest = replace(site.guest(), network=Network("52:54:00:4c:00:01", "", (), 0, uplink=True))
    ours = site.hypervisor(site.home)
    with pytest.raises(HostUnfit, match="no switch 'public'") as failure:
        ours.start(guest)
    assert "vm switch create public" in failure.value.hint
    assert there(root) == []
    run(["vm", "switch", "create", "public"], timeout=SECONDS)
    ours.start(guest)
    assert set(bridges()) == {"public"}
    ours.stop(guest.name, force=True)
    assert set(bridges()) == {"public"}, "it is not ours"


def test_a_processor_without_unrestricted_guests(site: Site, root: Path) -> None:
    change(root, vmm="no unrestricted guest")
    with pytest.raises(HostUnfit, match="unrestricted guest"):
        site.hypervisor(site.home).start(site.guest())
    assert there(root) == []


def test_without_vm_bhyve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostUnfit, match="vm is not installed"):
        BhyveHypervisor(home="h", firmware=tmp_path).capabilities()


def test_a_start_that_is_killed_leaves_a_name_free(
    site: Site, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from half a guest: its directory appears whole, or not at all."""
    guest = site.guest()
    hypervisor = site.hypervisor(site.home)

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as moment:
        moment.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            hypervisor.start(guest)
    assert there(root) == []
    began = time.monotonic()
    hypervisor.start(guest)
    assert time.monotonic() - began < SECONDS
    hypervisor.stop(guest.name, force=True)
    assert list((root / "vm/.lab").iterdir()) == []
