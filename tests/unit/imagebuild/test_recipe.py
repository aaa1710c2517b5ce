"""Recipes are read strictly, and those of this repository are sound."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from string import Template

import pytest

from lab.config.enginefile import families
from lab.errors import InvalidSpec, NotFound
from lab.imagebuild import disk
from lab.imagebuild.recipe import GUEST, RECIPES, all_packages, load, load_guest, recipes
from lab.units import GIB


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the mariadb recipe to be spoilt."""
    shutil.copytree(RECIPES / "mariadb", tmp_path / "mariadb")
    return tmp_path


def spoil(root: Path, old: str, new: str) -> None:
    path = root / "mariadb" / "recipe.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_all_recipes_load() -> None:
    servers = [
        "mariadb", "mariadb-10.11", "mariadb-10.6", "mariadb-11.4",
        "mysql", "mysql-26.10", "mysql-8.0", "mysql-8.4", "percona-server", "percona-server-8.0",
        "percona-xtradb-cluster", "percona-xtradb-cluster-8.0",
    ]  # fmt: skip
    others = ["client", "galera-arbitrator", "haproxy", "mysql-router"]
    assert recipes() == sorted([*servers, *others])
    for name in recipes():
        recipe = load(name)
        assert recipe.version_package in all_packages(recipe, load_guest())
    assert load("mariadb").disk == 8 * GIB


@pytest.mark.parametrize(
    ("host", "fingerprint"),
    [
        ("repo.percona.com", "4D1BB29D63D98E422B2113B19334A25F8507EFA5"),
        ("repo.mysql.com", "BCA43417C3B485DD128EC6D4B7B3B788A8D3785C"),
        ("deb.mariadb.org", "177F4010FE56CA3336300305F1656F24C74CD1D8"),
        ("archive.mariadb.org", "177F4010FE56CA3336300305F1656F24C74CD1D8"),
    ],
)
def test_the_keys_of_vendors_are_pinned(host: str, fingerprint: str) -> None:
    """The fingerprint is what its owner publishes; a slip here would trust somebody else."""
    found = [one.repository for one in map(load, recipes()) if one.repository]
    of_host = [one for one in found if one.urls[0].startswith(f"http://{host}/")]
    assert of_host
    assert {one.key_fingerprint for one in of_host} == {fingerprint}


@pytest.mark.parametrize("name", [name for one in families() for _, name in one.series])
def test_my_cnf_takes_the_same_variables(name: str) -> None:
    """Blueprints fill in one set of variables, whatever the engine."""
    text = (load(name).directory / "my.cnf").read_text()
    server = ["server_id", "buffer_pool", "log_directory", "flush_method", "flush_log",
              "doublewrite", "io_capacity"]  # fmt: skip
    galera = ["node_name", "node_address", "cluster_name", "cluster_address"]
    variables = [*server, *(galera if "wsrep_provider" in text else [])]
    filled = Template(text).substitute({name: f"<{name}>" for name in variables})
    assert all(f"<{name}>" in filled for name in variables)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as unshare does here")
@pytest.mark.parametrize("size", [2 * GIB, 8 * GIB, 64 * GIB])
def test_disks_can_grow_where_linux_is_6_1(tmp_path: Path, size: int) -> None:
    """Protects guests with a larger disk: Linux 6.1.192 hangs with 1024 blocks of descriptors."""
    tree, root, plain = tmp_path / "tree", tmp_path / "root.raw", tmp_path / "plain.raw"
    tree.mkdir()
    with (tmp_path / "log").open("wb") as log:
        disk.partition(root, size, log)
        disk.fill_root(root, size, tree, log)
        disk.fill_plain(plain, size, tree, "lab-data", (0, 0), log)
    for path in (f"{root}?offset={disk.ROOT_START}", str(plain)):
        said = subprocess.run(
            ["dumpe2fs", "-h", path], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        found = re.search(r"^Reserved GDT blocks: +(\d+)$", said, re.MULTILINE)
        assert found is not None
        assert 400 <= int(found[1]) <= 512


def test_unknown_recipe() -> None:
    with pytest.raises(NotFound) as caught:
        load("mariadbb")
    assert "mariadb" in caught.value.hint
    with pytest.raises(NotFound) as caught:
        load("../../etc")
    assert "percona-xtradb-cluster" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('suite = "trixie"', 'suit = "trixie"', "'suit'"),
        ('suite = "trixie"', "", "suite is missing"),
        ('suite = "trixie"', "suite = 13", "suite"),
        ('disk = "8G"', 'disk = "8GG"', "disk"),
        ('disk = "8G"', 'disk = "1G"', "disk"),
        ('"galera-4"', '"galera 4; reboot"', "packages"),
        ('config = "/etc', 'config = "etc', "config"),
        ('engine = "mariadb"', 'engine = "mariadb', "TOML"),
        ("# The package whose", "[repository]\nurl = 1\n#", "url"),
    ],
)
def test_what_is_wrong_is_named(root: Path, old: str, new: str, said: str) -> None:
    spoil(root, old, new)
    with pytest.raises(InvalidSpec, match=said):
        load("mariadb", root)


def test_unknown_key_gets_a_hint(root: Path) -> None:
    spoil(root, "suite =", "suiet =")
    with pytest.raises(InvalidSpec) as caught:
        load("mariadb", root)
    assert "suite" in caught.value.hint


def test_a_recipe_needs_its_files(root: Path) -> None:
    (root / "mariadb" / "provision").unlink()
    with pytest.raises(InvalidSpec, match="provision"):
        load("mariadb", root)


def test_scripts_are_executable() -> None:
    """Git and wheels keep the mode; systemd needs it in the guest."""
    for script in (GUEST / "usr/lib/lab").iterdir():
        if script.is_file() and script.read_bytes().startswith(b"#!"):
            assert script.stat().st_mode & 0o100, script
