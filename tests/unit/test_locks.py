"""Protects: one builder at a time, locks that die with their process, and no lost wake-up."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.errors import Busy, Conflict
from lab.locks import flock
from lab.locks.named import PROBE_PATIENCE, held, lock, sweep
from lab.paths import Home
from lab.wait import Deadline, until
from tests import ROOT

HOLD = """
import sys
from pathlib import Path
from lab.locks.named import lock
from lab.paths import Home
with lock(Home(Path(sys.argv[1])), "lab", "pxc", shared=sys.argv[2] == "shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@contextmanager
def holder(home: Home, how: str = "exclusive") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of lab pxc until its stdin ends or it is killed."""
    argv = [sys.executable, "-c", HOLD, str(home.root), how]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def take(
    home: Home,
    deadline: Deadline | None = None,
    on_wait: Callable[[int | None], object] | None = None,
) -> None:
    with lock(home, "lab", "pxc", wait=deadline is not None, deadline=deadline, on_wait=on_wait):
        pass


def test_busy_names_the_holder(home: Home) -> None:
    with holder(home) as process:
        with pytest.raises(Conflict, match=f"lab pxc is busy: process {process.pid}"):
            take(home)
        assert held(home, "lab", "pxc")
        with lock(home, "lab", "other", wait=False), lock(home, "template", "pxc", wait=False):
            pass


def test_a_second_service_is_named(home: Home) -> None:
    with (
        lock(home, "state", "serve", wait=False),
        pytest.raises(
            Conflict, match=rf"a service of this home runs already .process {os.getpid()}"
        ),
        lock(home, "state", "serve", wait=False),
    ):
        pass


def test_a_killed_holder_holds_nothing(home: Home) -> None:
    with holder(home) as process:
        process.kill()
        process.wait()
        assert not held(home, "lab", "pxc")
        with lock(home, "lab", "pxc", wait=False):
            assert held(home, "lab", "pxc")
    assert not held(home, "lab", "pxc")


def test_shared_excludes_only_exclusive(home: Home) -> None:
    with holder(home, "shared"):
        with lock(home, "lab", "pxc", shared=True, wait=False):
            assert held(home, "lab", "pxc")
        assert held(home, "lab", "pxc")
        with pytest.raises(Conflict, match="another process"):
            take(home)


def test_waiting_is_reported_once_and_ends(home: Home) -> None:
    holders: list[int | None] = []
    with holder(home) as process:

        def on_wait(pid: int | None) -> None:
            holders.append(pid)
            process.kill()

        with lock(home, "lab", "pxc", on_wait=on_wait):
            pass
        assert holders == [process.pid]


def test_waiting_has_an_end(home: Home) -> None:
    holders: list[int | None] = []
    with holder(home) as process:
        with pytest.raises(Conflict, match=f"process {process.pid}"):
            take(home, deadline=Deadline.after(0.1), on_wait=holders.append)
        assert holders == [process.pid]


def test_a_lock_file_that_was_removed_is_not_held_twice(home: Home) -> None:
    """A process that waits for the old file must not run while another holds the new one."""
    inside = 0
    most = 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(30):
            with lock(home, "lab", "pxc"):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1
    assert not home.lock("lab", "pxc").exists()  # an exclusive holder cleans up


def test_a_sweep_removes_what_nobody_holds(home: Home) -> None:
    with holder(home), lock(home, "image", "used", shared=True):
        home.lock("lab", "killed").touch()
        home.lock("template", "once").touch()
        sweep(home)
        assert sorted(home.locks.iterdir()) == [home.lock("image", "used"), home.lock("lab", "pxc")]
        with pytest.raises(Conflict):
            take(home)


def test_sweeps_beside_locks(home: Home) -> None:
    """Whoever is swept away between opening and locking a file locks the next one."""
    inside, most, over = 0, 0, threading.Event()
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(60):
            with lock(home, "lab", "pxc"):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    def clean() -> None:
        while not over.is_set():
            sweep(home)

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    workers = [threading.Thread(target=work) for _ in range(3)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    cleaner.join()
    assert most == 1


def test_a_file_removed_by_someone_else(home: Home) -> None:
    done = threading.Event()

    def waiter() -> None:
        with lock(home, "lab", "pxc"):
            done.set()

    with lock(home, "lab", "pxc"):
        thread = threading.Thread(target=waiter)
        thread.start()
        home.lock("lab", "pxc").unlink()
    thread.join(10)
    assert done.is_set()
    assert not held(home, "lab", "pxc")


def test_asking_does_not_make_a_lock_busy(home: Home) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            held(home, "lab", "pxc")

    with lock(home, "lab", "pxc", shared=True):
        pass  # leaves the file, so that asking has something to lock
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(50):
            with lock(home, "lab", "pxc", shared=True, wait=False):
                pass
    finally:
        stop.set()
        thread.join(10)


@pytest.mark.parametrize("shared", [True, False])
def test_a_slow_check_does_not_make_a_lock_busy(home: Home, *, shared: bool) -> None:
    """Protects a host under load, where a check of the lock may hold it for long."""
    with lock(home, "lab", "pxc", shared=True):
        pass
    asking = os.open(home.lock("lab", "pxc"), os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_EX)
    thread = threading.Timer(0.4, os.close, (asking,))
    thread.start()
    with lock(home, "lab", "pxc", shared=shared, wait=False):
        pass
    thread.join()


@pytest.mark.parametrize("shared", [True, False])
def test_who_has_it_makes_it_busy_at_once(home: Home, *, shared: bool) -> None:
    with lock(home, "lab", "pxc", shared=shared):
        began = time.monotonic()
        with pytest.raises(Busy), lock(home, "lab", "pxc", wait=False):
            pass
        assert time.monotonic() - began < PROBE_PATIENCE / 2, "it is no check that was waited for"


def test_lock_files_are_private(home: Home) -> None:
    with lock(home, "lab", "pxc"):
        assert home.lock("lab", "pxc").stat().st_mode & 0o777 == 0o600
        assert home.locks.stat().st_mode & 0o777 == 0o700


def test_an_error_in_the_block_frees_the_lock(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), lock(home, "lab", "pxc"):
        raise ZeroDivisionError
    assert until(lambda: True if not held(home, "lab", "pxc") else None, Deadline.after(1))


def test_what_is_needed_no_more_is_not_waited_for(home: Home) -> None:
    """Protects who waited for something to be made from waiting for those who use it now."""
    made = threading.Event()
    with lock(home, "lab", "pxc", shared=True):
        threading.Timer(0.1, made.set).start()
        with lock(home, "lab", "pxc", deadline=Deadline.after(30), unless=made.is_set) as got:
            assert not got
            assert held(home, "lab", "pxc")
    with lock(home, "lab", "pxc", deadline=Deadline.after(30), unless=lambda: False) as got:
        assert got


def test_one_module_calls_the_kernel() -> None:
    """Protects locks from being written again with other rules."""
    sources = [path for top in ("lab", "api", "testvm") for path in (ROOT / top).rglob("*.py")]
    callers = [path.name for path in sources if "fcntl.flock(" in path.read_text()]
    assert callers == ["flock.py"]


def test_a_file_that_was_replaced_is_locked_at_its_place(tmp_path: Path) -> None:
    """Protects who waited for a file that its holder removed: the lock of a lost file is none."""
    path = tmp_path / "one"
    first = flock.open_locked(path, os.O_RDWR | os.O_CREAT)
    with pytest.raises(BlockingIOError):
        flock.open_locked(path, os.O_RDWR, wait=False)
    path.unlink()
    assert not flock.is_at(first, path)
    second = flock.open_locked(path, os.O_RDWR | os.O_CREAT, wait=False)
    assert flock.is_at(second, path)
    assert flock.take_until(first, Deadline.after(0))
    flock.release(second)
    flock.release(first)
    with pytest.raises(FileNotFoundError):
        flock.open_locked(tmp_path / "none", os.O_RDONLY)
