"""Builds of servers for tests: real programs under a server's names, and what is kept of one."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from lab.errors import LabError
from lab.imagebuild import added
from lab.imagebuild.added import Build
from lab.paths import PRIVATE, REACHABLE, make_directory
from lab.run import run
from tests.support.mariadb_server import NoServer, cache, sources

PROGRAM = Path("/bin/true")
"""A real ELF file that needs nothing but the C library."""


def mariadb_tree(top: Path, *, server: str = "mariadbd") -> Path:
    """A directory laid out as MariaDB's archives are, with the names of a series."""
    old = server == "mysqld"
    client, init = ("mysql", "mysql_install_db") if old else ("mariadb", "mariadb-install-db")
    for name in (f"bin/{server}", f"bin/{client}"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, path)
    script = top / f"scripts/{init}"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    for name in ("share/english/errmsg.sys", "share/charsets/Index.xml", "lib/plugin/auth_x.so"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return top


def added_build(
    engines: Path,
    name: str = "mine",
    *,
    family: str = "mariadb",
    version: str = "11.4.5",
    features: tuple[str, ...] = (),
    content: str = "0" * 64,
) -> Build:
    """An engine as ``lab engine add`` leaves it, without its programs."""
    directory = make_directory(make_directory(engines, PRIVATE) / name, REACHABLE)
    build = Build(
        name=name, family=family, version=version, said=f"Ver {version}", suite="trixie",
        packages=("libcrypt1",), features=features,
        links=(("/usr/sbin/mariadbd", "/opt/lab/server/bin/mariadbd"),), library_paths=("lib",),
        options=(("plugin_dir", "lib/plugin"),), content=content, size=1, source="/builds/mine",
        added_at=time.time(), directory=directory,
    )  # fmt: skip
    build.archive.write_bytes(b"")
    added.write(build)
    return build


def packages(names: tuple[str, ...], suite: str) -> Path:
    """A directory with Debian's packages of a suite, kept between runs; raises NoServer."""
    if not shutil.which("apt-get"):
        raise NoServer("there is no apt-get to get packages with")
    place = cache() / f"packages-{suite}-{names[0]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            work = Path(scratch)
            (work / "debs").mkdir()
            try:
                apt = ["apt-get", "-q", *sources(work, suite)]
                run([*apt, "update"], timeout=300)
                run([*apt, "download", *names], timeout=300, cwd=work / "debs")
            except LabError as error:
                raise NoServer(f"{names[0]} cannot be had: {error}") from error
            (work / "debs").rename(place)
    return place
