"""Labs under KVM, in a machine of each Debian release that this project is tested on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.e2e_site import Site
from testvm.machine import accelerator
from testvm.release import RELEASES, ROOT, Release

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

_TESTS = ("tests/contract/test_hypervisor_libvirt.py", "tests/platform/test_guests_kvm.py")
_MEMORY = "9G"
"""Of a cluster of three, and a branch of it beside."""
_SECONDS = 5400.0
_EMULATED = "kvm and not firmware"
"""What runs where SVM is emulated: there QEMU 7.2 ended while a guest's firmware booted, with a
failed assertion: it raised an interrupt without its lock (``tcg_handle_interrupt``)."""


@pytest.fixture(scope="module")
def archive(image: Site) -> Iterator[Path]:
    """A template of this host's, whose RAM does not fit there."""
    key = image.lab("template", "build", "single", "-o", "name", timeout=600).stdout.strip()
    path = image.root / "kvm.lab"
    image.lab("template", "export", key, str(path), timeout=600)
    try:
        yield path
    finally:
        path.unlink()
        image.lab("template", "rm", key)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.suite)
def test_labs_live_under_kvm(archive: Path, release: Release) -> None:
    """Protects everyone whose host is not emulated: a driver's contract, and lives of labs."""
    argv = [sys.executable, "-m", "testvm", "test", "--kvm", "--releases", release.suite]
    argv += ["--give", str(archive), "--memory", _MEMORY, "--timeout", f"{_SECONDS:g}"]
    # Emulated guests in an emulated machine would take forty times as long.
    chosen = "kvm" if accelerator().kvm else _EMULATED
    argv += ["--", *_TESTS, "-k", chosen, "-rP", "--durations=0", "--durations-min=5"]
    if accelerator().kvm and not _nested():
        pytest.skip("KVM passes no virtualisation on: load its module with the parameter nested=1")
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"COLUMNS": "100"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS + 1800, check=False,
    )  # fmt: skip
    print(done.stdout)  # noqa: T201  the figures
    print(f"{release.suite}: {time.monotonic() - began:.0f} s")  # noqa: T201
    assert done.returncode == 0, done.stderr
    assert "[kvm]" in done.stdout
    assert re.search(r"=+ \d+ passed in ", done.stdout), "nothing was skipped"


def _nested() -> bool:
    """Whether guests of this host's KVM have KVM themselves."""
    found = Path("/sys/module").glob("kvm_*/parameters/nested")
    return any(path.read_text().strip() in {"1", "Y"} for path in found)
