"""What the end-to-end tests share: one installation with one image and one template."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.run import find
from tests.e2e.e2e_site import PXC, Site, kept_place


def _unfit() -> str:
    """Why this machine cannot run real guests, empty if it can."""
    for tool in ("qemu-system-x86_64", "mmdebstrap", "mke2fs"):
        if not find(tool):
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
    """An installation without labs, and with what earlier runs made of the same inputs.

    Images and templates stay for the next run (their keys say what went into them), unless
    another run uses the place now.
    """
    why = _unfit()
    if why:
        pytest.skip(why)
    with kept_place() as place:
        # Not pytest's directory: only the user that runs the tests can enter that, not QEMU.
        site = Site(place or Path(tempfile.mkdtemp(prefix="lab-e2e-")))
        site.root.chmod(0o711)
        if run := os.environ.get("LAB_CI_RUN"):
            with (Path(run) / "homes").open("a") as homes:  # .ci/run looks there for guests left
                homes.write(f"{site.root}\n")
        whole = False
        try:
            if place:
                site.clear()
                site.lab("gc", "--unused")  # what was made of other inputs
            yield site
            assert site.settled() == [], "the tests left something behind"
            whole = True
        finally:
            if not (place and whole):
                site.remove()
                assert not site.root.exists()


@pytest.fixture(autouse=True)
def apart(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that failed, the next ones do not find its datasets and engines.

    Those that a lab uses are refused: the fixtures that have them remove them.
    """
    session = request.session
    before = session.testsfailed
    yield
    if session.testsfailed > before and "installation" in request.fixturenames:
        site: Site = request.getfixturevalue("installation")
        for dataset in site.lab("dataset", "ls", "-o", "name", code=None).stdout.split():
            site.lab("dataset", "rm", dataset, code=None)
        for engine in site.home.engines.glob("*"):
            site.lab("engine", "rm", engine.name, code=None)


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
