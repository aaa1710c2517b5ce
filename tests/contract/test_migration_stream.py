"""What is read of migration streams and written as such: with the real QEMU of each release.

No guest boots: the RAM is what the firmware leaves in it.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from lab.hypervisor import MemoryImage
from lab.hypervisor.libvirt import device_state, memory_copy
from lab.hypervisor.libvirt.pages import Mapping, process_of
from lab.hypervisor.libvirt.stream import Reader, own_block
from lab.storage import sparse
from lab.wait import Deadline, until
from tests.support.mariadb_server import NoServer
from tests.support.qemu import INSTALLED, Machine, program, started

SIZE = 64 << 20
RELEASES = [INSTALLED, "bookworm", "trixie", pytest.param("sid", marks=pytest.mark.rare)]
DEVICES = ("-device", "virtio-serial-pci", "-device", "virtio-rng-pci")


@pytest.fixture(params=RELEASES)
def qemu(request: pytest.FixtureRequest) -> Path:
    try:
        return program(request.param)
    except NoServer as why:
        pytest.skip(str(why))


def _arguments(ram: Path, *more: str, share: str) -> list[str]:
    memory = f"memory-backend-file,id=labram,share={share},size={SIZE},mem-path={ram}"
    words = ["-object", memory, "-machine", "pc,memory-backend=labram", "-m", f"{SIZE >> 20}"]
    return [*words, *DEVICES, *more]


def _content(machine: Machine, to: Path) -> bytes:
    """The guest's RAM."""
    words = {"val": 0, "size": SIZE, "filename": str(to)}
    machine.ask({"execute": "pmemsave", "arguments": words})
    return to.read_bytes()


@pytest.mark.parametrize("readable", [True, False], ids=["pages", "stream"])
def test_a_copy_of_a_restored_guest_has_its_ram(qemu: Path, short: Path, readable: bool) -> None:
    """Protects snapshots and branches on every supported QEMU: its stream is read, and ours loads.

    ``readable``: its changed pages are read from its process; else its whole stream is.
    """
    (short / "run").mkdir()
    image = MemoryImage(short / "former.ram", short / "former.state", SIZE)
    with started(qemu, short, _arguments(image.ram, share="on")) as former:
        device_state.save(former.ask, short / "run", image.state, None)
    reader = Reader(image.state.read_bytes())
    assert own_block(reader.opening).size == SIZE
    assert {page.block for page in reader.pages()} >= {"pc.bios"}
    assert "labram" not in {page.block for page in Reader(image.state.read_bytes()).pages()}
    assert b"cpu_common" in reader.rest

    copied = MemoryImage(short / "copy.ram", short / "copy.state", SIZE)
    own = uuid.uuid4()
    incoming = ("-incoming", "defer")
    named = ("-uuid", str(own))
    with started(qemu, short, _arguments(image.ram, *incoming, *named, share="off")) as clone:
        device_state.load(clone.ask, short / "run", image.state, None)
        clone.ask({"execute": "cont"})
        mapping = Mapping(process_of(str(own)), image.ram, SIZE)
        assert until(mapping.changed, Deadline.after(30), first=0.01)
        mapping.close()
        clone.ask({"execute": "stop"})
        found = str(own) if readable else "no such domain"
        finish = memory_copy.copy(clone.ask, found, short / "run", None, image, copied)
        expected = _content(clone, short / "clone.memory")
        assert finish().ram == image.ram
    assert copied.state.stat().st_size < SIZE // 8
    with started(qemu, short, _arguments(image.ram, *incoming, share="off")) as copy:
        device_state.load(copy.ask, short / "run", copied.state, None)
        assert _content(copy, short / "copy.memory") == expected
        copy.ask({"execute": "cont"})
        assert copy.ask({"execute": "query-status"})["status"] == "running"


def test_a_restored_guest_is_not_announced(qemu: Path, short: Path) -> None:
    """Protects the time of a clone: for each announcement, an emulated guest waits 0.1 s for QEMU.

    Those of the guest's driver and those of QEMU itself, which are seen here, are set by one
    parameter.
    """
    (short / "run").mkdir()
    packets = short / "packets"
    image = MemoryImage(short / "former.ram", short / "former.state", SIZE)
    card = ("-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=")
    with started(qemu, short, _arguments(image.ram, *card, share="on")) as former:
        device_state.save(former.ask, short / "run", image.state, None)
    seen = ("-object", f"filter-dump,id=seen,netdev=net,file={packets}")
    words = _arguments(image.ram, *card, *seen, "-incoming", "defer", share="off")
    with started(qemu, short, words) as clone:
        device_state.load(clone.ask, short / "run", image.state, None)
        clone.ask({"execute": "cont"})
        until(lambda: None, Deadline.after(0.5), first=0.1)  # the first would come at once
        header = packets.stat().st_size
        parameters = {"initial": 50, "max": 550, "rounds": 1, "step": 50}
        clone.ask({"execute": "announce-self", "arguments": parameters})
        assert until(lambda: packets.stat().st_size > header, Deadline.after(10))
    assert header == 24  # of the file


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_guest_survives_a_full_home_in_memory(short: Path) -> None:
    """Protects labs of a home on tmpfs: a hole of the RAM file that is read takes space there."""
    place = short / "home"
    place.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE + (8 << 20)}", "t", str(place)]
    subprocess.run(argv, check=True)
    try:
        ram, rest = place / "ram", place / "rest"
        ram.touch()
        os.truncate(ram, SIZE)
        sparse.reserve(ram)
        with rest.open("wb", 0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        assert os.statvfs(place).f_bavail == 0
        with started(program(INSTALLED), short, _arguments(ram, share="off")) as guest:
            guest.ask({"execute": "cont"})
            until(lambda: None, Deadline.after(0.5), first=0.1)  # the firmware uses RAM
            assert guest.ask({"execute": "query-status"})["status"] == "running"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_copy_of_a_booted_guest_has_its_ram(qemu: Path, short: Path) -> None:
    """The same without a template: all of its RAM comes with the stream."""
    (short / "run").mkdir()
    new = MemoryImage(short / "new.ram", short / "new.state", SIZE)
    words = ["-machine", "pc", "-m", f"{SIZE >> 20}", *DEVICES]
    with started(qemu, short, words) as guest:
        guest.ask({"execute": "cont"})
        until(lambda: None, Deadline.after(0.3), first=0.1)  # as long as the firmware may run
        guest.ask({"execute": "stop"})
        finish = memory_copy.copy(guest.ask, "no such domain", short / "run", None, None, new)
        expected = _content(guest, short / "guest.memory")
        finish()
    with started(qemu, short, _arguments(new.ram, "-incoming", "defer", share="off")) as copy:
        device_state.load(copy.ask, short / "run", new.state, None)
        assert _content(copy, short / "copy.memory") == expected
