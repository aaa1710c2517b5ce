"""Protects readers of keys, manifests and records from partial files, and homes from drafts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.drafts import replaced, sweep_drafts
from lab.errors import HostUnfit
from lab.names import CaptureRef, Owner
from lab.paths import Home
from tests import ROOT


def test_a_replaced_file_is_whole_and_has_its_mode(tmp_path: Path) -> None:
    """Protects readers of keys, manifests and records from partial files."""
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    with replaced(path, durable=True) as draft:
        assert draft.stat().st_mode & 0o777 == 0o600
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_replaced_by_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")

    def interrupted() -> None:
        with replaced(path) as draft:
            draft.write_text("incomplete")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_of_a_replacement_is_swept(tmp_path: Path) -> None:
    """Protects homes from files that no command looks for; what is being written is left."""
    home = Home(tmp_path / "home")
    home.create()
    paths = [home.ca, home.lab("shop") / "rollback", home.private(Owner("lab", "shop")) / "key",
             home.manifest(CaptureRef(Owner("lab", "shop"), "a.20261129t063032"))]  # fmt: skip
    killed = """
import os, sys, pathlib
from lab.drafts import replaced
with replaced(pathlib.Path(sys.argv[1])):
    os._exit(9)
"""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-c", killed, str(path)]
        assert subprocess.run(argv, check=False, cwd=ROOT).returncode == 9
    with replaced(home.ca_key) as draft:
        draft.write_text("key")
        removed = sweep_drafts(home)
        assert sorted(one.parent for one in removed) == sorted(path.parent for path in paths)
        assert draft.read_text() == "key"
    assert home.ca_key.read_text() == "key"
    assert sweep_drafts(home) == []


def test_a_file_that_cannot_be_replaced_is_an_error_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "key"
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(HostUnfit, match="cannot be written"), replaced(path) as draft:
        draft.write_text("new")
    assert list(tmp_path.iterdir()) == [path]
