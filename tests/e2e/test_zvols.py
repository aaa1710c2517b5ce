"""Guests on real ZVols: on this host if it has ZFS, else in a guest that has it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.e2e_site import Site
from testvm import host
from testvm.release import RELEASES, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_TEST = "tests/platform/test_guests_zfs.py"
_SECONDS = 6000


def test_a_lab_lives_on_zvols(image: Site) -> None:
    """Protects the storage that this project is named for, with real databases on it."""
    # Three nodes of Galera, emulated in an emulated machine, keep more than its processors busy.
    blueprint = "replication" if host.why_not() else "galera"
    lab = (blueprint, "--nodes", "3", "--memory", "512M")
    key = image.lab("template", "build", *lab, "-o", "name", timeout=600).stdout.strip()
    archive = image.root / "zvols.lab"
    image.lab("template", "export", key, str(archive))
    try:
        said = _handed_over(archive)
    finally:
        archive.unlink()
        image.lab("template", "rm", key)
    assert re.search(r"=+ \d+ passed in ", said), said  # nothing was skipped


def _handed_over(archive: Path) -> str:
    # RAM can only be restored by the QEMU that saved it: this host's release, if we have that.
    ours = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    suite = next((r.suite for r in RELEASES if r.suite == ours), RELEASES[0].suite)
    argv = [sys.executable, "-m", "testvm", "test", "--give", str(archive), "--memory", "6G"]
    argv += ["--timeout", "5400"]
    argv += [*([] if not host.why_not() else ["--releases", suite]), "--", _TEST]
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"COLUMNS": "100"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
