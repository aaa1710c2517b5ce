"""What a process changed of a file that it maps privately, with real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hypervisor.libvirt.pages import Mapping, Unreadable, process_of
from lab.hypervisor.libvirt.stream import PAGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/pagemap is Linux's")

PAGES = 64
UUID = "6f1c0b3c-7a3c-4f0e-9b55-0d6a6c8f8a11"

_CHILD = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
flags = mmap.MAP_SHARED if sys.argv[2] == "shared" else mmap.MAP_PRIVATE
ram = mmap.mmap(file, 64 * 4096, flags=flags)
assert ram[4096 * 9] == ord("f")  # read, not written
for page in (0, 3, 4, 5, 63):
    ram[page * 4096 + 17] = ord("c")
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ram(tmp_path: Path) -> Path:
    path = tmp_path / "a ram file"
    path.write_bytes(b"f" * PAGES * PAGE)
    return path


def child(ram: Path, how: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", _CHILD, str(ram), how, "-uuid", UUID, "end"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"done\n"
    return process


@pytest.fixture
def guest(ram: Path) -> Iterator[subprocess.Popen[bytes]]:
    with child(ram, "private") as process:
        yield process


@pytest.mark.usefixtures("guest")
def test_the_pages_that_were_written(ram: Path) -> None:
    mapping = Mapping(process_of(UUID), ram, PAGES * PAGE)
    runs = mapping.changed()
    assert runs == [(0, 1), (3, 3), (63, 1)]
    pages = list(mapping.pages("labram", runs))
    mapping.close()
    assert [page.offset // PAGE for page in pages] == [0, 3, 4, 5, 63]
    for page in pages:
        assert page.data is not None
        assert bytes(page.data) == b"f" * 17 + b"c" + b"f" * (PAGE - 18)
    assert ram.read_bytes() == b"f" * PAGES * PAGE


def test_what_is_not_mapped_so_is_refused(ram: Path, guest: subprocess.Popen[bytes]) -> None:
    other = ram.with_name("other")
    other.write_bytes(bytes(PAGES * PAGE))
    for path, size in ((other, PAGES * PAGE), (ram, PAGE), (ram.with_name("gone"), PAGE)):
        with pytest.raises(Unreadable):
            Mapping(guest.pid, path, size)


def test_a_shared_mapping_is_refused(ram: Path) -> None:
    with child(ram, "shared") as process, pytest.raises(Unreadable, match="privately"):
        Mapping(process.pid, ram, PAGES * PAGE)


def test_a_process_that_is_not_there(ram: Path) -> None:
    with pytest.raises(Unreadable):
        process_of(UUID)
    with child(ram, "private") as process:
        mapping = Mapping(process.pid, ram, PAGES * PAGE)
        process.kill()
        process.wait()
        with pytest.raises(Unreadable):
            list(mapping.pages("labram", [(0, PAGES)]))
        mapping.close()


def test_a_file_that_was_replaced_is_refused(ram: Path, guest: subprocess.Popen[bytes]) -> None:
    """The guest still maps the old one, and its pages do not differ from the new one's."""
    ram.rename(ram.with_name("old"))
    ram.write_bytes(bytes(PAGES * PAGE))
    with pytest.raises(Unreadable):
        Mapping(guest.pid, ram, PAGES * PAGE)
