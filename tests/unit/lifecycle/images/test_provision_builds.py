"""Added builds in a root file system as images have: real servers, first started as in a build."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import CommandFailed
from lab.imagebuild import isolate, manifest
from lab.imagebuild.build import lay_out, provision
from lab.imagebuild.recipe import Recipe, load
from lab.lifecycle.core.context import Context
from lab.lifecycle.host import builds
from lab.requests.host import AddEngine
from lab.run import run
from tests.support import upstream_builds
from tests.support.lifecycle_world import World
from tests.support.mariadb_server import NoServer
from tests.support.mysql_server import kept_root

pytestmark = pytest.mark.rare

SAYS = {
    "mariadb-11.4.5": "Ver 11.4.5-MariaDB for Linux on x86_64 (MariaDB Server)",
    "mysql-5.6.24": "Ver 5.6.24 for linux-glibc2.5 on x86_64 (MySQL Community Server)",
    "mysql-9": "Ver 9.7.0 for Linux on x86_64 (Source distribution)",
}


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as opened:
        yield opened


@pytest.fixture
def root() -> Iterator[Path]:
    """A root file system that the test may change; it has the libraries of the builds."""
    try:
        kept = kept_root()
    except NoServer as error:
        pytest.skip(str(error))
    # A short path: sockets are below it.
    with tempfile.TemporaryDirectory(prefix="lab-pb-", dir="/tmp") as top:
        made = Path(top) / "root"
        run(["cp", "-a", "--one-file-system", kept, made], timeout=600)
        yield made
        isolate.remove_tree(made)


def given(name: str, scratch: Path) -> Path:
    """The directory of a build; raises NoServer."""
    if name in upstream_builds.builds():
        return upstream_builds.unpacked(upstream_builds.builds()[name])
    tree = scratch / name
    for program in ("mysqld", "mysql", "mysql_tzinfo_to_sql"):
        found = next(
            path / program
            for path in (kept_root() / "usr/sbin", kept_root() / "usr/bin")
            if (path / program).exists()
        )
        (tree / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(found, tree / "bin" / program)
    shutil.copytree(kept_root() / "usr/share/mysql", tree / "share")
    shutil.copytree(kept_root() / "usr/lib/mysql/plugin", tree / "lib/plugin")
    return tree


def added_to(ctx: Context, name: str, scratch: Path) -> Recipe:
    ask = AddEngine(name="mine", source=str(given(name, scratch)))
    builds.add(ctx, ask, ask=lambda *_: lambda _program: SAYS[name])
    return load("mine", engines=ctx.home.engines)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", SAYS)
def test_a_build_is_initialised_by_the_user_mysql(
    ctx: Context, root: Path, tmp_path: Path, name: str
) -> None:
    """Protects from programs of a stranger that run as root, even of a container."""
    try:
        recipe = added_to(ctx, name, tmp_path)
    except NoServer as error:
        pytest.skip(str(error))
    log = tmp_path / "log"
    lay_out(recipe, root, log)
    try:
        provision(recipe.directory, root, log)
    except CommandFailed as error:
        raise AssertionError(log.read_text()[-4000:]) from error
    said = log.read_text()
    assert "no plugin for root" not in said or name == "mysql-5.6.24"
    data = root / "var/lib/mysql"
    uid, gid = manifest.account(root, recipe.user)
    assert uid != 0
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in (data, *data.rglob("*"))}
    assert owners == {(uid, gid)}
    assert (data / "ibdata1").exists()
    assert not (data / "auto.cnf").exists()
