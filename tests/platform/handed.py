"""Installations of tests in a guest, with the template that the test outside handed over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.run import run
from tests.e2e.e2e_site import Site

GIVEN = os.environ.get("LAB_TEST_GIVEN", "")
"""Path and size of the archive, with a colon between: on a disk, zeros follow."""


@contextmanager
def on_zvols(pool: str, config: Path, limit: float) -> Iterator[Site]:
    """An installation on ``pool`` whose labs have ``limit`` seconds until they are ready."""
    # Not pytest's directory: that can only be entered by who runs the tests, not by QEMU.
    root = Path(tempfile.mkdtemp(prefix="lab-zvols-"))
    root.chmod(0o711)
    site = Site(root, settings={"XDG_CONFIG_HOME": str(config), "LAB_READY_TIMEOUT": f"{limit:g}"})
    try:
        site.lab("host", "init", "--pool", f"{pool}/lab")
        yield site
    finally:
        site.remove()


def bring(site: Site, *, timeout: float = 2400.0) -> None:
    """Import the template that was handed over."""
    archive = site.root / "archive"
    unpack(archive, timeout=timeout)
    site.lab("template", "import", str(archive), timeout=timeout)
    archive.unlink()


def unpack(archive: Path, *, timeout: float) -> None:
    """Copy what was handed over to the file ``archive``."""
    path, _, size = GIVEN.rpartition(":")
    with archive.open("wb") as file:
        run(["head", "-c", size, path], timeout=timeout, log=file)
