"""RAM files are in the page cache before the guests that map them run."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import pytest

from lab.lifecycle.captures.page_cache import is_cached, read_ahead
from lab.units import MIB
from lab.wait import Deadline, until


def resident(path: Path) -> list[bool]:
    """Which pages of a file are in the page cache (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size, mmap.MAP_SHARED) as mapped:
        found = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        try:
            if libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), found):
                pytest.skip(f"no mincore here: {os.strerror(ctypes.get_errno())}")
        finally:
            del start
        return [bool(page & 1) for page in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """48 MiB, of which 4 at the beginning and 4 at 40 MiB are data; nothing of it is cached."""
    path = tmp_path / "n1.ram"
    with path.open("wb") as file:
        file.truncate(48 * MIB)
        for at in (0, 40 * MIB):
            file.seek(at)
            file.write(os.urandom(4 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip("this file system keeps its pages")
    return path


def test_data_is_read_and_holes_are_not(path: Path) -> None:
    """Protects the first start after a reboot: page by page, a cluster would wait too long."""
    taken = path.stat().st_blocks
    read_ahead(path)
    pages = 4 * MIB // mmap.PAGESIZE
    assert until(lambda: sum(resident(path)) >= 2 * pages, Deadline.after(20.0))
    cached = resident(path)
    assert all(cached[:pages])
    assert not any(cached[2 * pages : 9 * pages]), "zeros would push others out of the cache"
    assert path.stat().st_blocks == taken


def test_samples_are_not_read(path: Path) -> None:
    """Protects it on quick disks: samples that are in the cache because they were taken."""
    with path.open("rb") as file:
        assert not any(is_cached(file.fileno()) for _ in range(20))
        time.sleep(0.2)
        assert not any(resident(path))
        file.read()
        assert is_cached(file.fileno())


def test_a_file_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    """Protects restores: the hypervisor says what is wrong with a file."""
    read_ahead(tmp_path / "none")
