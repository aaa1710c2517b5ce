"""Recipes of Percona's servers as a whole, built against stand-ins for Percona's packages.

Debian's packages are the real ones. What that proves is in percona_standin.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit, LabError
from lab.imagebuild import bootstrap, isolate, manifest, repository
from lab.imagebuild.build import build
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe, Repository, load
from lab.imagebuild.trust import keyrings
from lab.progress import Event, Progress
from tests.support import percona_standin
from tests.support.apt_repository import Signer, serving

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(
        os.geteuid() != 0
        or not all(map(shutil.which, ("gpg", "dpkg-deb", "mmdebstrap", "systemd-analyze"))),
        reason="needs root, gpg, dpkg-deb, mmdebstrap and systemd-analyze",
    ),
]

RECIPE = load("percona-xtradb-cluster")
SERVER = load("percona-server-8.0")


@pytest.fixture(scope="module", params=[RECIPE, SERVER], ids=lambda recipe: recipe.name)
def described(request: pytest.FixtureRequest) -> Recipe:
    """A recipe of Debian 13, and one of Debian 12 whose files are links."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def top(described: Recipe) -> Iterator[Path]:
    # gpg-agent's socket needs a short path; apt's own user must be able to enter.
    with tempfile.TemporaryDirectory(prefix=f"lab-{described.engine[:7]}-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def recipe(described: Recipe, top: Path) -> Iterator[Recipe]:
    """A recipe as it is, but for where the repository is and who signs it."""
    root = top / "www"
    root.mkdir()
    owner = Signer.make(top / "owner", "owner")
    assert described.repository is not None
    suite, product = described.repository.suite, described.packages[0].removesuffix("-server")
    owner.sign(percona_standin.write(root, top / "debs", suite, product))
    (root / "key.asc").write_bytes(owner.public())
    with serving(root) as url:
        here = Repository(
            urls=(url, url),
            suite=suite,
            component=described.repository.component,
            key_url=f"{url}/key.asc",
            key_fingerprint=owner.fingerprint,
        )
        yield replace(described, repository=here)
    owner.end()


@dataclass
class Built:
    """What a build made, and what its root file system was before it became a disk."""

    image: BuiltImage
    files: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    verified: str = ""


def look(root: Path, built: Built) -> None:
    """Keep what the tests ask for: the tree is removed when the disk is made of it."""
    top = root.parent
    for path in root.glob("etc/**/*"):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            built.files[name] = f"-> {path.readlink()}"
        elif path.is_file() and name.startswith(("etc/mysql", "etc/apt", "etc/systemd")):
            built.files[name] = path.read_text(errors="replace")
    for path in (root / "var/lib/mysql").rglob("*"):
        name = path.relative_to(root).as_posix()
        built.files[name] = path.read_text() if path.is_file() else ""
    for name in (percona_standin.STARTS, percona_standin.STATEMENTS):
        with suppress(FileNotFoundError):
            built.files[name] = (root / name).read_text()
    for name in ("var/lib/mysql", "var/lib/mysql-files", "var/lib/mysql/ibdata1"):
        status = (root / name).stat()
        ours = (status.st_uid, status.st_gid) == manifest.account(root, RECIPE.user)
        built.owners[name] = RECIPE.user if ours else f"{status.st_uid}:{status.st_gid}"
    checked = subprocess.run(
        [*isolate.contained(root), "systemd-analyze", "verify", "--man=no", RECIPE.service],
        capture_output=True, text=True, timeout=120, check=False, cwd=top,
    )  # fmt: skip
    built.verified = f"{checked.returncode} {checked.stdout}{checked.stderr}".strip()


@pytest.fixture(scope="module")
def built(recipe: Recipe, top: Path) -> Built:
    out, found = top / "out", Built(None)  # type: ignore[arg-type]
    out.mkdir(mode=0o711)

    def hear(event: Event) -> None:
        if (event.step, event.state) == ("disk", "begin"):
            look(out / "rootfs", found)

    try:
        found.image = build(
            recipe, out, layout="split", progress=Progress(hear), log=top / "build.log"
        )
    except HostUnfit as error:
        if "Debian mirror" in str(error):
            pytest.skip(f"Debian's packages cannot be had: {error}")
        raise
    except LabError as error:
        raise AssertionError((str(error), error.details)) from error
    return found


def test_it_is_built_whole(built: Built, recipe: Recipe) -> None:
    version = {"trixie": "8.4.10-10", "bookworm": "8.0.45-36"}[recipe.suite]
    assert (built.image.engine, built.image.engine_version) == (recipe.engine, version)
    assert set(built.image.disks) == {"os", "data", "log"}
    assert {"qpress", "percona-telemetry-agent", *recipe.packages} <= set(built.image.packages)


def test_no_server_ran_in_the_hosts_network(built: Built) -> None:
    """One start, the recipe's, in a network namespace of its own."""
    [start] = built.files[percona_standin.STARTS].splitlines()
    namespace, arguments = start.split(" ", 1)
    assert namespace != os.fspath(Path("/proc/self/ns/net").readlink())
    assert "--no-defaults" in arguments
    assert "--skip-networking" in arguments


def test_the_packages_start_one_in_an_empty_directory(recipe: Recipe, top: Path) -> None:
    """The stand-in does what the real package does, unless the directory is occupied."""
    if not recipe.repository:
        raise AssertionError
    scratch, root = top / "control", top / "control/root"
    scratch.mkdir()
    argv = bootstrap.command(
        root, recipe.suite, [recipe.version_package], keyrings=keyrings(scratch),
        setup=repository.setup_hooks(recipe.repository, scratch),
    )  # fmt: skip
    bootstrap.bootstrap(argv, scratch / "log", Progress(), recipe.repository.urls)
    [start] = (root / percona_standin.STARTS).read_text().splitlines()
    assert start.split(" ")[0] == os.fspath(Path("/proc/self/ns/net").readlink())
    assert "--no-defaults" not in start


def test_statements_came_after_the_cluster_was_ready(built: Built) -> None:
    """Refused ones would have ended the build; these are all that there are to be."""
    kinds = [line.split()[0] for line in built.files[percona_standin.STATEMENTS].splitlines()]
    assert kinds == ["INSTALL", "CREATE", "GRANT", "ALTER"]


def test_the_data_are_ready_to_be_cloned(built: Built, recipe: Recipe) -> None:
    """Cleanly closed, owned by the server's account, and without an identity."""
    state = built.files.get("var/lib/mysql/grastate.dat", "")
    assert ("safe_to_bootstrap: 1" in state) == (recipe.engine == RECIPE.engine)
    assert "var/lib/mysql/ibdata1" in built.files
    assert "var/lib/mysql/#innodb_redo" in built.files
    gone = {"auto.cnf", "galera.cache", "gvwstate.dat", ".lab"}
    assert not {name for name in gone if f"var/lib/mysql/{name}" in built.files}
    assert set(built.owners.values()) == {RECIPE.user}


def test_the_unit_starts_in_the_guests_own_tree(built: Built) -> None:
    """With what the guest masks, by the guest's own systemd; the packaged one is not used."""
    assert built.files["etc/systemd/system/remote-fs.target"] == "-> /dev/null"
    assert built.verified.startswith("0"), built.verified
    assert RECIPE.service not in built.verified
    assert "Requires=" not in built.files["etc/systemd/system/mysql.service"]
    wants = "etc/systemd/system/multi-user.target.wants/mysql.service"
    assert built.files[wants] == "-> ../mysql.service"


def test_telemetry_never_starts(built: Built) -> None:
    unit = "etc/systemd/system/percona-telemetry-agent.service"
    assert built.files[unit] == "-> /dev/null"


def test_only_our_options_apply(built: Built, recipe: Recipe) -> None:
    options = [name for name in built.files if name.startswith("etc/mysql/mysql.conf.d/")]
    assert options == [], "the node's own comes with its seed"
    main = "mysql.cnf" if recipe.engine == RECIPE.engine else "my.cnf"
    assert "!includedir /etc/mysql/mysql.conf.d/" in built.files[f"etc/mysql/{main}"]


def test_the_source_names_the_key_inside(built: Built) -> None:
    [source] = {
        text for name, text in built.files.items() if name.endswith("lab-recipe.list")
    }  # fmt: skip
    assert all(f"signed-by={repository.KEYRING}" in line for line in source.splitlines())
    assert repository.KEYRING.lstrip("/") in built.files
