"""What the end-to-end tests share: one installation with one image and one template."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_site import PXC, Site

from lab.errors import HostUnfit


def _unfit() -> str:
    """Why this machine cannot run real guests, empty if it can."""
    for tool in ("qemu-system-x86_64", "mmdebstrap", "mke2fs"):
        if not shutil.which(tool):
            return f"{tool} is not installed: `make setup` does it"
    try:
        from lab.hypervisor.libvirt.driver import LibvirtHypervisor

        hypervisor = LibvirtHypervisor(home="none", sockets=Path("/nowhere"))
        try:
            hypervisor.capabilities()
        finally:
            hypervisor.close()
    except ImportError:
        return "libvirt's Python binding is not installed: `make setup` does it"
    except HostUnfit as error:
        return f"{error} ({error.hint})"
    return ""


@pytest.fixture(scope="session")
def installation() -> Iterator[Site]:
    """An empty installation, removed at the end with all that is in it."""
    why = _unfit()
    if why:
        pytest.skip(why)
    if kept := os.environ.get("LAB_E2E_HOME"):
        # For who writes tests: image and templates are made once for many runs.
        site = Site(Path(kept))
        yield site
        return
    # Not pytest's directory: that can only be entered by who runs the tests, not by QEMU.
    root = Path(tempfile.mkdtemp(prefix="lab-e2e-"))
    root.chmod(0o711)
    site = Site(root)
    try:
        yield site
        assert site.settled() == [], "the tests left something behind"
    finally:
        site.remove()
        assert not root.exists()


@pytest.fixture(scope="session")
def image(installation: Site) -> Site:
    """The installation with the MariaDB image."""
    done = installation.lab("image", "build", "mariadb", code=None, timeout=900)
    if done.code == HostUnfit.exit_code:
        pytest.skip(f"no image can be built here: {done.stderr}")
    assert done.code == 0, done
    return installation


@pytest.fixture(scope="session")
def formed(image: Site) -> Site:
    """The installation with the template of a 3-node cluster as well."""
    image.lab("template", "build", *PXC, "--nodes", "3", timeout=600)
    return image


@pytest.fixture
def site(formed: Site) -> Iterator[Site]:
    """The installation, without any lab before and after the test."""
    yield formed
    left = formed.settled(seconds=2.0)
    if left:
        formed.lab("down", "--all", "--yes", code=None)
        formed.lab("gc", "--orphans", code=None)
    assert left == []
