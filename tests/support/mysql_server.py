"""Real servers of MySQL, from Debian's packages, in a root file system as an image has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.imagebuild.isolate import isolated
from lab.imagebuild.recipe import load
from lab.imagebuild.trust import keyrings
from lab.run import run
from lab.wait import Deadline, attempts
from tests.support.mariadb_server import SECONDS, NoServer, Server

RECIPE = load("mysql")
_PLAIN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "LAB_IMAGE_BUILD": "inside"}


def mysql_root(top: Path, provisioned_by: str = RECIPE.name) -> Path:
    """A root file system with MySQL's packages, provisioned by a recipe; raises NoServer.

    ``top``: a directory with a short path, as sockets are below it. ``provisioned_by``: that of a
    server of MySQL's dialect, whose own package makes the account.
    """
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise NoServer("needs root and mmdebstrap")
    root, scratch = top / "root", top / "keys"
    scratch.mkdir()
    packages = ["mysql-server-core", "mysql-client-core", "systemd", "openssl", "iproute2"]
    argv = [
        "mmdebstrap", "--variant=minbase", "--mode=root",
        # A frozen mirror's sid is past its date.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--keyring={keyring}" for keyring in keyrings(scratch)),
        f"--include={','.join(packages)}", RECIPE.suite, str(root),
    ]  # fmt: skip
    try:
        run(argv, timeout=600)
    except LabError as error:
        raise NoServer(f"Debian {RECIPE.suite} cannot be had: {error}") from error
    if provisioned_by != RECIPE.name:
        account = ["chroot", str(root), "useradd", "--system", "--no-create-home", RECIPE.user]
        run(account, timeout=30, env=_PLAIN)
        for name in ("etc/mysql", "var/lib/mysql"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "var/lib/mysql/.lab").touch()
    shutil.copy(load(provisioned_by).directory / "provision", root / "provision")
    run([*isolated(network=False), "chroot", str(root), "/provision"], timeout=300, env=_PLAIN)
    return root


@contextmanager
def mysql_server(root: Path, name: str, options: str) -> Iterator[Server]:
    """A server with an option file, on a copy of the data directory of ``root``."""
    data, socket, file = f"/var/lib/{name}", f"/run/mysqld/{name}.sock", f"/etc/{name}.cnf"
    run(["cp", "-a", root / "var/lib/mysql", root / data[1:]], timeout=60)
    text = options.replace("/run/mysqld/mysqld.", f"/run/mysqld/{name}.")
    (root / file[1:]).write_text(text.replace("/var/lib/mysql", data))
    log = root / f"var/log/{name}.log"
    argv = ["chroot", str(root), "/usr/sbin/mysqld", f"--defaults-file={file}", "--user=mysql"]
    with (
        log.open("wb") as sink,
        subprocess.Popen(argv, stdout=sink, stderr=sink, env=_PLAIN) as process,
    ):
        try:
            for _ in attempts(Deadline.after(SECONDS)):
                assert process.poll() is None, log.read_text()
                if b"ready for connections" in log.read_bytes():
                    break
            yield Server(root / socket[1:], root, "")
        finally:
            process.kill()
            process.wait(SECONDS)
