"""`lab` as a process: what it prints arrives, its exit code arrives, and it imports little."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.paths import Home
from lab.state.records import LabRecord
from lab.state.store import Store

HEAVY = {
    "alembic", "cryptography", "http.client", "httpx", "msgspec", "pymysql", "rich", "sqlalchemy",
    "yaml", "lab.lifecycle.images.image",
}  # fmt: skip
"""Modules that listing labs does not need; each costs 5 to 250 ms."""


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    fakes = {"LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake", "LAB_HOME": str(tmp_path / "home")}
    # Unbuffered, Python itself loses what a pipe does not take at once.
    return {**os.environ, **fakes, "PYTHONUNBUFFERED": ""}


def lab(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *words], env=env, capture_output=True, text=True, check=False
    )


def record(root: Path, count: int) -> None:
    with Store(Home(root)) as store, store.transaction():
        for number in range(count):
            store.labs.add(
                LabRecord(
                    f"lab-{number}", "", "", "", "ready", "", "", "", 0.0,
                    blueprint="pxc", node_count=3, memory=0, cpus=1, disk=0,
                )
            )  # fmt: skip


def test_all_that_was_printed_arrives(env: Mapping[str, str]) -> None:
    """The process ends at once: nothing may be left in a buffer."""
    record(Path(env["LAB_HOME"]), 200)
    done = lab(env, "ls", "-o", "json")
    assert done.returncode == 0
    assert done.stdout.count('"name": "lab-') == 200
    assert done.stdout.endswith("]\n")


def test_errors_and_exit_codes(env: Mapping[str, str]) -> None:
    done = lab(env, "lss")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lab: error: there is no command 'lss'\nhint: ")
    assert lab(env, "status", "none").returncode == 3


def test_nobody_reads(env: Mapping[str, str]) -> None:
    """`lab ls | head -1` ends without a word of complaint."""
    record(Path(env["LAB_HOME"]), 2000)
    with subprocess.Popen(
        [sys.executable, "-m", "lab", "ls", "-o", "yaml"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"- name: lab-0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(env: Mapping[str, str], closed: str) -> None:
    """Protects the record: files that it opens must not become our standard output."""
    root = Path(env["LAB_HOME"])
    record(root, 1)
    before = (root / "state.db").read_bytes()
    shell = f'"$0" -m lab ls -o json {closed}; "$0" -m lab status none {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert ("lab-0" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert ("no lab 'none'" in done.stderr) == ("2>&-" not in closed)
    assert "Traceback" not in done.stderr
    assert (root / "state.db").read_bytes() == before


def test_a_full_disk_is_told(env: Mapping[str, str]) -> None:
    record(Path(env["LAB_HOME"]), 1)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lab", "ls"],
            env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "lab: error: the output cannot be written: No space left on device\n"


def test_keys_are_made_by_what_is_loaded_while_guests_start() -> None:
    """Protects the time of `lab up`: all it loads before it starts a guest comes on top."""
    code = "import sys, lab.lifecycle.labs.up; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"cryptography", "pymysql"} & set(run.stdout.split()) == set()


def test_listing_loads_no_more_than_it_needs(env: Mapping[str, str]) -> None:
    """Protects the start-up time, which every verb pays."""
    code = (
        "import sys; from lab.cli import main; main(['ls']); print(*sys.modules, file=sys.stderr)"
    )
    record(Path(env["LAB_HOME"]), 1)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "lab-0" in done.stdout
    loaded = set(done.stderr.split())
    assert loaded & HEAVY == set()
