"""The check of commits' subjects, on histories of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.run import run
from tests import ROOT

WHO = ("-c", "user.name=A", "-c", "user.email=a@b.example")


def commit(repository: Path, subject: str) -> str:
    words = ("commit", "-q", "--allow-empty", "-m", subject, "-m", "A body. " * 20)
    run(["git", "-C", repository, *WHO, *words], timeout=30)
    return run(["git", "-C", repository, "rev-parse", "HEAD"], timeout=30).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    run(["git", "init", "-q", tmp_path / "repository"], timeout=30)
    return tmp_path / "repository"


def checked(directory: Path, *since: str) -> subprocess.CompletedProcess[str]:
    argv = [str(ROOT / "scripts/subjects"), *since]
    env = {"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    return subprocess.run(
        argv, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=30
    )


def test_only_later_subjects_are_checked_in_characters(repository: Path) -> None:
    """Protects readers of a list of commits, and a history that was written before the rule."""
    old = commit(repository, "o" * 100)
    commit(repository, "é" * 72)
    assert checked(repository, old).returncode == 0
    commit(repository, "n" * 73)
    done = checked(repository, old)
    assert done.returncode == 1
    assert "73 characters" in done.stdout
    assert "ooo" not in done.stdout


def test_a_clone_without_history_passes(repository: Path, tmp_path: Path) -> None:
    """Protects shallow clones, archives and forks: what they do not have is not checked."""
    old = commit(repository, "The beginning")
    commit(repository, "n" * 73)
    shallow = tmp_path / "shallow"
    run(["git", "clone", "-q", "--depth", "1", f"file://{repository}", shallow], timeout=30)
    (tmp_path / "none").mkdir()
    for place, since in ((shallow, (old,)), (tmp_path / "none", (old,)), (repository, ())):
        done = checked(place, *since)
        assert (done.returncode, done.stderr) == (0, "")
        assert "not checked" in done.stdout
