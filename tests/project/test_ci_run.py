"""What CI runs ends what it started, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests import ROOT

RUN = ROOT / ".ci" / "run"
SUMMARY = "=== 3 passed in 0.10s ==="
PATH = os.environ["PATH"]


def run(root: Path, makefile: str, path: str = PATH) -> subprocess.CompletedProcess[str]:
    """``.ci/run`` in a checkout that has only this Makefile."""
    (root / "checkout" / ".ci").mkdir(parents=True)
    (root / "scratch").mkdir()
    shutil.copy(RUN, root / "checkout" / ".ci" / "run")
    (root / "checkout" / "Makefile").write_text(makefile)
    env = {**os.environ, "TMPDIR": str(root / "scratch"), "PATH": path}
    return subprocess.run(
        [root / "checkout" / ".ci" / "run"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def makefile(prepare: str, test: str) -> str:
    """One whose targets for the environment and the tests do these."""
    targets = {
        "setup": "true",
        "venv-dev": prepare,
        "setup-tests": "true",
        "lint": "true",
        "test": test,
    }
    rules = "".join(f"{name}:\n\t@{recipe}\n" for name, recipe in targets.items())
    return f".PHONY: {' '.join(targets)}\n{rules}"


LONG = """\
@trap 'sleep 0.5; echo cleaned >>{here}/seen; exit 1' TERM; echo began >{here}/seen; sleep 60 & wait
"""


def test_interrupted_tests_end_before_what_they_left_is_looked_for(tmp_path: Path) -> None:
    """Protects the host: tests that still run start guests after the check, and are then killed."""
    (tmp_path / "checkout/.ci").mkdir(parents=True)
    script = tmp_path / "checkout/.ci/run"
    script.write_text(RUN.read_text().replace("LATE=60", "LATE=0"))
    script.chmod(0o755)
    target = LONG.format(here=tmp_path)
    (tmp_path / "checkout/Makefile").write_text(makefile("true", "true") + f"test:\n\t{target}")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([script], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert until((tmp_path / "seen").exists, Deadline.after(30.0))
        process.terminate()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert (tmp_path / "seen").read_text() == "began\ncleaned\n"
    ended = [line for line in said.splitlines() if "ending process" in line]
    assert not [line for line in ended if "make" in line], said


VIRSH = """\
#!/bin/sh
case "$*" in
*" list "*) cat "{here}/guests" ;;
*dumpxml*) echo "<source file='{here}/place/disk'/>" ;;
*destroy*) echo "$*" >>"{here}/destroyed" ;;
esac
"""


@pytest.mark.parametrize("ours", [True, False])
def test_guests_left_in_a_kept_place_are_removed(tmp_path: Path, *, ours: bool) -> None:
    """Protects the host from guests of tests that were killed, and the guests of others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "virsh").write_text(VIRSH.format(here=tmp_path))
    (programs / "virsh").chmod(0o755)
    (tmp_path / "guests").touch()
    place = tmp_path / ("place" if ours else "other")
    left = f"echo {place} >>$$LAB_CI_RUN/homes; echo left >{tmp_path}/guests; echo '{SUMMARY}'"
    done = run(tmp_path, makefile("true", left), f"{programs}:{PATH}")
    assert done.stdout.splitlines()[-1] == SUMMARY
    assert (tmp_path / "destroyed").exists() == ours
    assert ("left alone" in done.stdout) != ours
