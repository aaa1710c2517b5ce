"""The places in which end-to-end tests keep images and templates, and what is left in them."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab.wait import Deadline, until
from tests import ROOT
from tests.e2e.e2e_site import prune


def test_places_of_old_checkouts_are_removed(tmp_path: Path) -> None:
    """Protects the disk, and the runs of other checkouts: their places are in use, or recent."""
    now = time.time()
    for name, days in (("e2e-old", 15), ("e2e-busy", 15), ("e2e-recent", 13)):
        (tmp_path / name).mkdir()
        lock = tmp_path / f"{name}.lock"
        lock.touch()
        os.utime(lock, (now, now - days * 86400))
    (tmp_path / "other").mkdir()
    with (tmp_path / "e2e-busy.lock").open("a") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        prune(tmp_path, shutil.rmtree)
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == ["e2e-busy", "e2e-recent", "other"]
    prune(tmp_path, shutil.rmtree)
    with (tmp_path / "e2e-recent.lock").open("w"):  # as a run does
        assert time.time() - (tmp_path / "e2e-recent.lock").stat().st_mtime < 3600
    assert not (tmp_path / "e2e-busy").exists()


_COMMAND = """
import time
from pathlib import Path
try:
    Path("began").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    Path("cleaned-up").touch()
"""
"""A command that takes a moment to remove what it made."""
_RUN = """
import sys
from pathlib import Path
from tests.e2e.e2e_site import Site
Site(Path(sys.argv[1]), prefix=(sys.executable, "-c", sys.argv[2])).lab("up")
"""


def test_a_command_ends_by_itself_when_tests_are_interrupted(tmp_path: Path) -> None:
    """Else guests would be left, for which the report of all tests before would be lost."""
    argv = [sys.executable, "-c", _RUN, str(tmp_path), _COMMAND]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as run:
        try:
            assert until((tmp_path / "began").exists, Deadline.after(20))
            run.send_signal(signal.SIGINT)
            run.wait(20)
        finally:
            run.kill()
    assert (tmp_path / "cleaned-up").exists()
