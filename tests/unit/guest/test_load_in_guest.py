"""What the guest's program for loading says of its work, at each moment of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.run import run
from tests.unit.guest.test_identity_in_guest import program


@pytest.fixture
def load(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = program("load", tmp_path, tmp_path / "sock", ("/run/lab-load", f"{tmp_path}/run"))
    path.chmod(0o755)
    return path


def look(load: Path) -> str:
    return run([load, "look"], timeout=10).stdout


def test_a_step_that_begins(load: Path) -> None:
    """Its files are opened before they are written."""
    assert look(load) == "read 0\n"
    (load.parent / "run/pid").touch()
    assert look(load) == "read 0\n"
    (load.parent / "run/answered").touch()
    assert look(load) == "read 0\n"


def test_how_far_a_process_has_read(load: Path) -> None:
    (load.parent / "run/pid").write_text(f"{os.getpid()}\n")
    with (load.parent / "read").open("w+b") as file:
        file.write(bytes(7))
        file.flush()
        before = os.dup(0)
        try:
            os.dup2(file.fileno(), 0)
            assert look(load) == "read 7\n"
        finally:
            os.dup2(before, 0)
            os.close(before)


def test_the_end(load: Path) -> None:
    (load.parent / "run/status").write_text("3\n")
    (load.parent / "run/output").write_text("no such table\n")
    assert look(load) == "done 3\nno such table\n"
