"""A command in the background: its output comes in one piece, and it ends with us."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import sys
from pathlib import Path

from lab.wait import Deadline, until
from tests import ROOT
from testvm.beside import Beside


def test_output_comes_in_one_piece_with_the_status() -> None:
    """Protects CI: a release that fails next to another fails the run, and its output says why."""
    out = io.BytesIO()
    fine = Beside(["sh", "-c", "echo one; sleep 0.2; echo two"], timeout=60)
    wrong = Beside(["sh", "-c", "echo three; exit 4"], timeout=60)
    assert (fine.end(out), wrong.end(out)) == (0, 4)
    assert out.getvalue() == b"one\ntwo\nthree\n"


def test_it_ends_when_we_are_killed() -> None:
    """Protects a host where a run is aborted: no emulated machine runs for another half an hour."""
    mark = f"300.{secrets.randbelow(10**9)}"
    script = f"""
import time
from testvm.beside import Beside
Beside(["sh", "-c", "echo; exec sleep {mark}"], timeout=60)
time.sleep(60)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as process:
        assert until(lambda: _sleeps(mark) or None, Deadline.after(20), first=0.05)
        process.kill()
    assert until(lambda: not _sleeps(mark) or None, Deadline.after(10), first=0.05)


def _sleeps(mark: str) -> bool:
    """True if somebody sleeps for just that long."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes() == f"sleep\0{mark}\0".encode():
                return True
        except OSError:
            continue
    return False
