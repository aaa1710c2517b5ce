"""The content key: equal inputs give an equal key, any change another one."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lab.imagebuild.key import image_key
from lab.imagebuild.recipe import GUEST, HERE, RECIPES, Recipe, load
from lab.imagebuild.tree import files, overlay_tar

SINGLE = {"os": 16384}


@dataclasses.dataclass
class Inputs:
    """A private copy of all that goes into a key."""

    directory: Path

    @property
    def recipe(self) -> Recipe:
        return load("mariadb", self.directory)

    def key(self, machine: str = "x86_64", volumes: Mapping[str, int] = SINGLE) -> str:
        return image_key(
            self.recipe,
            volumes=volumes,
            guest=self.directory / "guest",
            dialects=self.directory / "dialects",
            source=self.directory,
            machine=machine,
        )


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    for name in ("mariadb", "guest", "dialects"):
        shutil.copytree(RECIPES / name, tmp_path / name)
    for source in [*HERE.glob("*.py"), *HERE.glob("*.sh")]:
        shutil.copy(source, tmp_path)
    return Inputs(tmp_path)


def append(path: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / path
        file.write_bytes(file.read_bytes() + b"\n")

    return change


def test_equal_inputs_equal_key(inputs: Inputs) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", inputs.key())
    assert inputs.key() == inputs.key()
    assert inputs.key() == image_key(load("mariadb"), volumes=SINGLE, machine="x86_64")


@pytest.mark.parametrize(
    "change",
    [
        append("mariadb/provision"),
        append("mariadb/my.cnf"),
        append("mariadb/recipe.toml"),
        append("guest/usr/lib/lab/boot"),
        append("guest/guest.toml"),
        append("dialects/mariadb/usr/lib/lab/dialect"),
        append("build.py"),
        append("split.sh"),
        lambda top: (top / "guest/usr/lib/lab/boot").chmod(0o644),
        lambda top: (top / "guest/etc/hosts").rename(top / "guest/etc/hosts2"),
        lambda top: (top / "guest/etc/new").write_text(""),
        lambda top: (top / "guest/usr/lib/lab/grow").unlink(),
    ],
)
def test_any_change_another_key(inputs: Inputs, change: Callable[[Path], None]) -> None:
    before = inputs.key()
    change(inputs.directory)
    assert inputs.key() != before


def test_architecture_and_suite_count(inputs: Inputs) -> None:
    assert inputs.key("x86_64") != inputs.key("aarch64")
    other = dataclasses.replace(inputs.recipe, suite="sid")
    keys = {image_key(r, volumes=SINGLE, machine="x86_64") for r in (other, inputs.recipe)}
    assert len(keys) == 2


def test_volumes_and_block_sizes_count(inputs: Inputs) -> None:
    """Protects from using an image with one disk, or with other blocks, for a split node."""
    split = {"os": 16384, "data": 16384, "log": 131072}
    keys = {inputs.key(volumes=v) for v in (SINGLE, split, {**split, "data": 8192})}
    assert len(keys) == 3


def test_umask_and_caches_do_not_count(inputs: Inputs) -> None:
    """A checkout under umask 077, or a run of Python in it, is the same image."""
    before = inputs.key()
    for path in (inputs.directory / "guest").rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    cache = inputs.directory / "guest" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")
    assert inputs.key() == before


def test_overlay_is_root_owned_and_stable() -> None:
    archive = overlay_tar([GUEST, RECIPES / "mariadb"])
    assert archive == overlay_tar([GUEST, RECIPES / "mariadb"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name: member for member in tar}
    assert members["usr/lib/lab/boot"].mode == 0o755
    assert members["etc/hosts"].mode == 0o644
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
    assert not [name for name in members if not name.startswith(("etc/", "usr/"))]


def test_later_overlay_wins(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/which").write_text(name)
    archive = overlay_tar([tmp_path / "one", tmp_path / "two"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        last = [member for member in tar if member.name == "etc/which"][-1]
        content = tar.extractfile(last)
        assert content is not None
        assert content.read() == b"two"


def test_files_are_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "a.d/z"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert [file.path for file in files(tmp_path)] == ["a", "a.d/z", "b"]


PINNED = {
    "mariadb": "dd51de341076096f",
    "mysql": "731ee8be3ffca599",
    "percona-xtradb-cluster": "5130a6796e9f1035",
}
"""Keys of recipes with neither a builder nor a guest: of what the recipes themselves have."""


@pytest.mark.parametrize("name", PINNED)
def test_a_further_series_changes_no_key(tmp_path: Path, name: str) -> None:
    """Protects images that users have: their recipes' own files change when that is meant only."""
    guest, source = tmp_path / "guest", tmp_path / "source"
    guest.mkdir()
    source.mkdir()
    (guest / "guest.toml").write_text('packages = ["systemd"]\ncmdline = "x"\n')
    key = image_key(
        load(name),
        volumes=SINGLE,
        guest=guest,
        dialects=tmp_path,
        source=source,
        machine="x86_64",
    )
    assert key == PINNED[name]


def test_a_link_counts_as_what_it_points_to(inputs: Inputs) -> None:
    """Protects recipes that share files: a change of one of them changes all of their keys."""
    before = inputs.key()
    script = inputs.directory / "mariadb/provision"
    script.rename(inputs.directory / "shared")
    script.symlink_to("../shared")
    assert inputs.key() == before
    append("shared")(inputs.directory)
    assert inputs.key() != before
