"""A full disk: queries and removals work, creation is refused, errors name the file system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.paths import RESERVE, Home
from tests import ROOT

SIZE = "96m"


def small(root: Path, *argv: str) -> list[str]:
    """The command that runs ``argv`` with small file systems at ``root``, mounted for it alone."""
    mounts = f'mount -t tmpfs -o size={SIZE},mode=700 tmpfs "$0" && mkdir "$0/fake-guests" && '
    mounts += 'mount -t tmpfs -o size=8m,mode=700 tmpfs "$0/fake-guests" && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounts, str(root), *argv]


def skip_unless_mountable(root: Path) -> None:
    tried = subprocess.run(small(root, "true"), check=False, capture_output=True)
    if os.geteuid() or tried.returncode:
        pytest.skip("file systems cannot be mounted here")


def run(argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, **env}
    )


@pytest.fixture(scope="module", params=["with", "without"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each verb said on a full disk, ``with`` and ``without`` the reserve."""
    root = tmp_path_factory.mktemp("small")
    skip_unless_mountable(root)
    child = [
        sys.executable,
        str(ROOT / "tests/support/full_disk_child.py"),
        str(root),
        request.param,
    ]
    path = str(ROOT)
    done = run(small(root, *child), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return request.param, root, [json.loads(line) for line in done.stdout.splitlines()]


def test_looking_works(said: Any) -> None:
    """Nothing is written to look: not even SQLite's shared index of its journal."""
    _, _, found = said
    for one in found[:3]:
        assert one["code"] == 0, one
    assert [lab["state"] for lab in json.loads(found[1]["out"])] == ["stopped", "stopped"]


def test_removing_works(said: Any) -> None:
    """A full disk is just when `gc` and `down` are needed."""
    _, _, found = said
    by = {one["words"]: one for one in found[:-1]}
    for words in ("gc --dry-run", "down shop", "down two"):
        assert by[words]["code"] == 0, by[words]
    assert found[-3]["out"] == "two\n"
    assert found[-1]["out"] == ""


def test_no_error_is_unexpected_and_each_names_what_is_full(said: Any) -> None:
    _, root, found = said
    for one in found:
        assert "internal error" not in one["err"], one
        if one["code"]:
            assert str(root) in one["err"] or one["words"].startswith("up"), one
            assert "lab gc" in one["err"], one


def test_making_is_refused(said: Any) -> None:
    _, _, found = said
    (refused,) = (one for one in found if one["words"].startswith("up"))
    assert refused["code"] == 5
    assert "needs 0B" not in refused["err"]
    assert "is free at" in refused["err"]


def test_the_reserve(tmp_path: Path) -> None:
    """It is kept where there is space, and comes back after it was given up."""
    home = Home(tmp_path)
    home.create()
    reserve = tmp_path / "reserve"
    assert reserve.stat().st_size == RESERVE
    home.release_reserve()
    assert reserve.exists()  # the disk is not full
    reserve.unlink()
    home.create()
    assert reserve.stat().st_size == RESERVE


def test_doctor_says_what_is_full(tmp_path: Path) -> None:
    """On a real full file system, with its mount point."""
    code = (
        "import sys; from pathlib import Path; from lab.paths import Home\n"
        "from lab.config.settings import Settings; from lab.lifecycle.host.doctor import doctor\n"
        "from tests.support.full_disk_child import fill\n"
        "root = Path(sys.argv[1]); (root / 'reserve').touch()\n"
        "Home(root).create(); fill(root / 'fill')\n"
        "for one in doctor(Settings(Home(root), 't', hypervisor='fake', storage='fake')):\n"
        "    print(one.level, one.topic, one.value)\n"
    )
    root = tmp_path / "small"
    root.mkdir()
    skip_unless_mountable(root)
    done = run(small(root, sys.executable, "-c", code, str(root)), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert f"fail space the file system at {root} is full" in done.stdout
    assert "internal error" not in done.stdout + done.stderr


def test_a_service_keeps_nobody_out_of_the_state(tmp_path: Path) -> None:
    """One that was started on a full disk runs on; `lab down` and its own threads get in."""
    code = (
        "import sys, time; from pathlib import Path; from lab.paths import Home\n"
        "from lab.state.store import Store; from tests.support.full_disk_child import fill\n"
        "home = Home(Path(sys.argv[1])); (home.root / 'reserve').touch()\n"
        "with Store(home) as first: first.labs.all()\n"
        "fill(home.root / 'fill')\n"
        "with Store(home) as service, Store(home) as command:\n"
        "    service.labs.all(); began = time.monotonic()\n"
        "    command.labs.all(); service.labs.all()\n"
        "    assert service._database._alone and command._database._alone\n"
        "    assert time.monotonic() - began < 5\n"
    )
    root = tmp_path / "small"
    root.mkdir()
    skip_unless_mountable(root)
    done = run(small(root, sys.executable, "-c", code, str(root)), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_help_to_a_full_device(tmp_path: Path) -> None:
    """Neither help nor a list that cannot be written is an internal error."""
    env = {**os.environ, "LAB_HOME": str(tmp_path), "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake"}
    for unbuffered in ("", "1"):
        for words in (["ls", "--help"], ["--help"], ["doctor"]):
            with Path("/dev/full").open("w") as full:
                done = subprocess.run(
                    [sys.executable, "-m", "lab", *words], stdout=full, stderr=subprocess.PIPE,
                    check=False, text=True, timeout=60,
                    env={**env, "PYTHONUNBUFFERED": unbuffered},
                )  # fmt: skip
            assert done.returncode == 1, (words, done.stderr)
            assert done.stderr.startswith("lab: error: the output cannot be written: No space left")
