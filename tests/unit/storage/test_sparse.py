"""Protects holes in copied files, and the locks that show whether a process still runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lab.storage import clone_lock, sparse

MIB = 1 << 20


def _holey(path: Path) -> bytes:
    """A file of 16 MiB with data at its start, in the middle and at its very end."""
    with path.open("wb") as file:
        for offset in (0, 5 * MIB, 16 * MIB - 4096):
            file.seek(offset)
            file.write(os.urandom(4096))
    return path.read_bytes()


def test_copy_keeps_content_and_holes(tmp_path: Path) -> None:
    content = _holey(tmp_path / "a")
    sparse.copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == content
    assert sparse.allocated(tmp_path / "b") <= sparse.allocated(tmp_path / "a") + 65536


def test_copy_keeps_a_hole_at_the_end(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"x" * 5000)
        file.truncate(16 * MIB)
    sparse.copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_taking_from_another_file_system_copies(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    content = _holey(tmp_path / "a")
    target = memory / f"lab-test-{os.getpid()}"
    try:
        sparse.take(tmp_path / "a", target)
        assert target.read_bytes() == content
    finally:
        target.unlink(missing_ok=True)


def test_files_in_memory_have_the_space_that_reading_takes(tmp_path: Path) -> None:
    """Protects guests: on a full tmpfs, a hole of their RAM that they read would end them."""
    content = _holey(tmp_path / "ram")
    before = sparse.allocated(tmp_path / "ram")
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    for kind, size in (("ext4", before), ("tmpfs", 16 * MIB)):
        mounts.write_text(
            "21 1 254:99 / / rw - xfs /dev/a rw\n"
            f"22 21 {number} / /mnt rw,nosuid shared:1 - {kind} none rw\n"
        )
        sparse.reserve(tmp_path / "ram", mounts=mounts)
        assert size <= sparse.allocated(tmp_path / "ram") <= size + 65536
    assert (tmp_path / "ram").read_bytes() == content
    sparse.reserve(tmp_path / "ram", mounts=tmp_path / "none")


def test_copy_never_overwrites(tmp_path: Path) -> None:
    _holey(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"keep")
    with pytest.raises(FileExistsError):
        sparse.copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"keep"


def test_hold_excludes_threads_and_follows_the_path(tmp_path: Path) -> None:
    place, seen = tmp_path / "place", []
    place.mkdir()

    def wait_for_it() -> None:
        with clone_lock.hold(place):
            seen.append(place.stat().st_ino)

    with clone_lock.hold(place):
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        place.rename(tmp_path / "old")
        place.mkdir()
        now = place.stat().st_ino
    waiting.join(10)
    assert seen == [now]


def test_hold_shared(tmp_path: Path) -> None:
    with (
        clone_lock.hold(tmp_path, shared=True),
        clone_lock.hold(tmp_path, shared=True),
        pytest.raises(BlockingIOError),
        clone_lock.hold(tmp_path, wait=False),
    ):
        pass
    with pytest.raises(FileNotFoundError), clone_lock.hold(tmp_path / "absent"):
        pass


def test_scratch_is_abandoned_only_when_nobody_holds_it(tmp_path: Path) -> None:
    with clone_lock.scratch(tmp_path) as work:
        assert list(clone_lock.abandoned(tmp_path)) == []
        (work / "file").write_bytes(b"x")
    assert not work.exists()
    for name in ("dead", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "dead" / "file").write_bytes(b"x")
    assert list(clone_lock.abandoned(tmp_path)) == [tmp_path / "dead"]
    assert not (tmp_path / "empty").exists()
    assert list(clone_lock.abandoned(tmp_path / "absent")) == []
