"""`lab` where its caller's surroundings are strange: cron, containers, CI, nohup, programs."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

BARE = {"PATH": "/usr/bin:/bin"}
MAKE = ("run", "galera", "--nodes", "1", "--memory", "384M", "--")


def lab(
    tmp_path: Path,
    *words: str,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    cwd: Path | None = None,
    umask: int = 0o022,
) -> subprocess.CompletedProcess[str]:
    fakes = {"LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake", "LAB_HOME": str(tmp_path / "home")}
    return subprocess.run(
        [*before, sys.executable, "-m", "lab", *words],
        env={**BARE, **fakes, **(env or {})},
        cwd=cwd or tmp_path,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


STRANGE: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "latin1": {"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": "latin-1"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "time": {"TZ": ":nowhere/odd"},
    "no home": {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "relative"},
    "no path": {"PATH": ""},
    "python": {"PYTHONPATH": "/nonexistent", "PYTHONWARNINGS": "ignore"},
}


@pytest.mark.rare
@pytest.mark.parametrize("name", STRANGE)
def test_a_lab_is_made_and_used(tmp_path: Path, name: str) -> None:
    """Protects each verb of `lab run`: up, a program with the lab's variables, down."""
    script = "import os; print(os.environ['LAB_NAME'] != '')"
    done = lab(tmp_path, *MAKE, sys.executable, "-c", script, env=STRANGE[name])
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.rare
@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_nobody_else_may_write(tmp_path: Path, mask: int) -> None:
    """Protects the record, keys and disks from other users, whatever the caller's umask."""
    assert (
        lab(tmp_path, "up", "galera", "--nodes", "1", "--memory", "384M", umask=mask).returncode
        == 0
    )
    assert lab(tmp_path, "snapshot", "take", umask=mask).returncode == 0
    open_ = [
        path
        for path in (tmp_path / "home").rglob("*")
        if not path.is_symlink() and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and not path.stat().st_mode & stat.S_ISVTX
    ]  # fmt: skip
    assert open_ == []


def test_ignored_signals(tmp_path: Path) -> None:
    """Protects exit codes: where SIGCHLD is ignored, every program seems to succeed."""
    before = ["env", "--ignore-signal=CHLD,PIPE,INT", "--block-signal=TERM,CHLD"]
    done = lab(tmp_path, *MAKE, "sh", "-c", "exit 9", before=before)
    assert done.returncode == 9, done.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """Protects from an internal error where a script removed its own directory."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'mkdir -p {gone} && cd {gone} && rmdir {gone} && exec "$@"'
    done = lab(tmp_path, "ls", before=["sh", "-c", script, "sh"])
    assert done.returncode == 0, done.stderr
    done = lab(tmp_path, "status", before=["sh", "-c", script, "sh"])
    assert done.returncode == 3, done.stderr


def test_open_files_are_not_for_programs(tmp_path: Path) -> None:
    """Protects locks and secrets of our caller: only the standard streams are passed on."""
    script = f'exec 7<{sys.executable} 9>{tmp_path}/lock; exec "$@"'
    done = lab(tmp_path, *MAKE, "ls", "/proc/self/fd", before=["bash", "-c", script, "bash"])
    assert done.stdout.split() == ["0", "1", "2", "3"], done.stderr
    assert (tmp_path / "lock").exists()
