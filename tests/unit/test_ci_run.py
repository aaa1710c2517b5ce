"""What CI runs, with other targets than ours: how it ends, and what it leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
SUMMARY = "=== 3 passed in 0.10s ==="


def run(root: Path, makefile: str) -> subprocess.CompletedProcess[str]:
    """``.ci/run`` in a checkout that has only this Makefile."""
    (root / "checkout" / ".ci").mkdir(parents=True)
    (root / "scratch").mkdir()
    shutil.copy(RUN, root / "checkout" / ".ci" / "run")
    (root / "checkout" / "Makefile").write_text(makefile)
    env = {**os.environ, "TMPDIR": str(root / "scratch")}
    return subprocess.run(
        [root / "checkout" / ".ci" / "run"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("prepare", "test", "code", "last"),
    [
        ("true", f"echo '{SUMMARY}'", 0, SUMMARY),
        ("true", f"echo '{SUMMARY}'; echo more; exit 3", 2, SUMMARY),
        ("exit 1", "true", 2, "ci: "),
        ("true", "exit 1", 2, "ci: "),
    ],
)
def test_how_it_ends(tmp_path: Path, prepare: str, test: str, code: int, last: str) -> None:
    """Protects CI's disk, and who looks for the cause: nothing is left, the summary comes last."""
    targets = {
        "setup": "true",
        "venv-dev": prepare,
        "setup-tests": "true",
        "lint": "true",
        "test": test,
    }
    makefile = "".join(f"{name}:\n\t@{recipe}\n" for name, recipe in targets.items())
    done = run(tmp_path, f".PHONY: {' '.join(targets)}\n{makefile}")
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(last)
    assert list((tmp_path / "scratch").iterdir()) == []
