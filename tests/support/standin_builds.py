"""Builds of recipes against stand-ins for the packages of their repositories (``apt_standin``).

Debian's packages are the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit, LabError
from lab.imagebuild import bootstrap, isolate, manifest, repository
from lab.imagebuild.build import build
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe, Repository
from lab.imagebuild.trust import keyrings
from lab.progress import Event, Progress
from tests.support import apt_standin
from tests.support.apt_repository import Signer, serving

NEEDED = pytest.mark.skipif(
    os.geteuid() != 0
    or not all(map(shutil.which, ("gpg", "dpkg-deb", "mmdebstrap", "systemd-analyze"))),
    reason="needs root, gpg, dpkg-deb, mmdebstrap and systemd-analyze",
)


@dataclass
class Built:
    """What a build made, and what its root file system was before it became a disk."""

    recipe: Recipe
    image: BuiltImage | None = None
    files: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    verified: str = ""

    @property
    def made(self) -> BuiltImage:
        """The image."""
        assert self.image is not None
        return self.image

    @property
    def starts(self) -> list[str]:
        """The starts of the server, as ``apt_standin.STARTS`` has them."""
        return self.files.get(apt_standin.STARTS, "").splitlines()

    @property
    def statements(self) -> list[str]:
        """What the server was asked and did."""
        return self.files.get(apt_standin.STATEMENTS, "").splitlines()

    def options(self, name: str = "etc/mysql/my.cnf") -> str:
        """The content of an option file, to which links may lead."""
        while (text := self.files[name]).startswith("-> /"):
            name = text[len("-> /") :]
        return text


@contextmanager
def short_directory(name: str) -> Iterator[Path]:
    """A directory whose path is short, for gpg-agent's socket, and that apt's user can enter."""
    with tempfile.TemporaryDirectory(prefix=f"lab-{name[:9]}-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@contextmanager
def served(described: Recipe, top: Path) -> Iterator[Recipe]:
    """A recipe as it is, but for where the repository is and who signs it."""
    root = top / "www"
    root.mkdir()
    owner = Signer.make(top / "owner", "owner")
    assert described.repository is not None
    owner.sign(apt_standin.write(root, top / "debs", described))
    (root / "key.asc").write_bytes(owner.public())
    with serving(root) as url:
        here = Repository(
            urls=(url, url),
            suite=described.repository.suite,
            component=described.repository.component,
            key_url=f"{url}/key.asc",
            key_fingerprint=owner.fingerprint,
        )
        yield replace(described, repository=here)
    owner.end()


def look(root: Path, built: Built) -> None:
    """Keep what tests ask for: the tree is removed when the disk is made of it."""
    user = built.recipe.user
    for path in root.glob("etc/**/*"):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            built.files[name] = f"-> {path.readlink()}"
        elif path.is_file() and name.startswith(("etc/mysql", "etc/apt", "etc/systemd")):
            built.files[name] = path.read_text(errors="replace")
    for path in (root / "var/lib/mysql").rglob("*"):
        name = path.relative_to(root).as_posix()
        built.files[name] = path.read_text() if path.is_file() else ""
    for name in (apt_standin.STARTS, apt_standin.STATEMENTS):
        with suppress(FileNotFoundError):
            built.files[name] = (root / name).read_text()
    for name in ("var/lib/mysql", "var/lib/mysql-files", "var/lib/mysql/ibdata1"):
        with suppress(FileNotFoundError):
            status = (root / name).stat()
            ours = (status.st_uid, status.st_gid) == manifest.account(root, user)
            built.owners[name] = user if ours else f"{status.st_uid}:{status.st_gid}"


def built_of(recipe: Recipe, top: Path) -> Built:
    """The build of a ``served`` recipe; skips the test where Debian's packages cannot be had."""
    out, found = top / "out", Built(recipe)
    out.mkdir(mode=0o711)

    def hear(event: Event) -> None:
        if (event.step, event.state) != ("disk", "begin"):
            return
        root = out / "rootfs"
        look(root, found)
        checked = subprocess.run(
            [*isolate.contained(root), "systemd-analyze", "verify", "--man=no", recipe.service],
            capture_output=True, text=True, timeout=120, check=False, cwd=out,
        )  # fmt: skip
        found.verified = f"{checked.returncode} {checked.stdout}{checked.stderr}".strip()

    with _debian(top / "build.log"):
        found.image = build(
            recipe, out, layout="split", progress=Progress(hear), log=top / "build.log"
        )
    return found


def installed(recipe: Recipe, top: Path, packages: list[str]) -> Path:
    """A root file system with ``packages`` of a ``served`` recipe, which is not provisioned."""
    assert recipe.repository is not None
    scratch, root = top / "control", top / "control/root"
    scratch.mkdir()
    argv = bootstrap.command(
        root, recipe.suite, packages, keyrings=keyrings(scratch),
        setup=repository.setup_hooks(recipe.repository, scratch),
    )  # fmt: skip
    with _debian(scratch / "log"):
        bootstrap.bootstrap(argv, scratch / "log", Progress(), recipe.repository.urls)
    return root


@contextmanager
def _debian(log: Path) -> Iterator[None]:
    try:
        yield
    except HostUnfit as error:
        if "Debian mirror" in str(error):
            pytest.skip(f"Debian's packages cannot be had: {error}")
        raise
    except LabError as error:
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise AssertionError((str(error), error.details, tail)) from error


def outside_network() -> str:
    """The network namespace of the tests, and of maintainer scripts."""
    return os.fspath(Path("/proc/self/ns/net").readlink())
