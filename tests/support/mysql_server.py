"""Real servers of MySQL, from Debian's packages, in a root file system as an image has it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.imagebuild.isolate import isolated, remove_tree
from lab.imagebuild.recipe import load
from lab.imagebuild.trust import keyrings
from lab.run import run
from lab.wait import Deadline, attempts
from tests.support.mariadb_server import SECONDS, NoServer, Server, cache

RECIPE = load("mysql")
_UNUSED = 7 * 86400.0
"""Seconds after which a root that nobody has used is removed."""
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


def kept_root() -> Path:
    """``mysql_root``, made once and kept for later runs; nothing may be changed in it."""
    content = b"".join(
        (RECIPE.directory / name).read_bytes() for name in ("recipe.toml", "provision")
    )
    place = cache()
    place.mkdir(parents=True, exist_ok=True)
    with (place / "mysql-root.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = place / f"mysql-root-{hashlib.sha256(content).hexdigest()[:16]}"
        if not kept.exists():
            for old in place.glob("mysql-root-*"):
                if time.time() - old.stat().st_mtime > _UNUSED:  # other checkouts have their own
                    remove_tree(old)
            # A short path: sockets are below it.
            with tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp") as top:
                made = mysql_root(Path(top))
                remove_tree(f"{kept}.new")  # of a run that was killed
                run(["cp", "-a", "--one-file-system", made, f"{kept}.new"], timeout=600)
            Path(f"{kept}.new").rename(kept)
        os.utime(kept)
    return kept


def program(root: Path, path: str) -> list[str]:
    """The argv of a program of ``root`` that runs with the libraries of that, but not in it."""
    loader, libraries = root / "lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu"
    places = f"{root}/usr/{libraries}:{root}/usr/lib/mysql/private"
    return [str(loader), "--library-path", places, str(root / path)]


def clients(root: Path, directory: Path) -> None:
    """Programs in ``directory`` that are those of MySQL's package."""
    for name in ("mysql", "mysqldump"):
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {" ".join(program(root, f"usr/bin/{name}"))} "$@"\n')
        path.chmod(0o755)


@contextmanager
def reachable_clients() -> Iterator[Path]:
    """The programs of ``clients`` in a directory that everybody can enter; raises NoServer."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        clients(kept_root(), Path(path))
        yield Path(path)


@contextmanager
def server(options: Sequence[str] = ()) -> Iterator[Server]:
    """A server with an image's data, without network or logs, and its root's account."""
    root = kept_root()
    # A socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp") as path:
        top = Path(path)
        run(["cp", "-a", root / "var/lib/mysql", top / "data"], timeout=60)
        argv = [
            *program(root, "usr/sbin/mysqld"), "--no-defaults", "--user=root",
            f"--basedir={root}/usr", f"--plugin-dir={root}/usr/lib/mysql/plugin",
            f"--lc-messages-dir={root}/usr/share/mysql", f"--datadir={top}/data",
            f"--socket={top}/s", f"--pid-file={top}/pid", "--skip-networking", "--mysqlx=OFF",
            "--disable-log-bin", "--secure-file-priv=", "--performance-schema=OFF",
            "--event-scheduler=OFF", "--restrict-fk-on-non-standard-key=OFF",
            "--partial-revokes=ON", "--innodb-redo-log-capacity=64M", "--auto-generate-certs=OFF",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF",
            "--caching-sha2-password-auto-generate-rsa-keys=OFF",
        ]  # fmt: skip
        with (
            (top / "log").open("wb") as log,
            subprocess.Popen([*argv, *options], stdout=log, stderr=log, env=_PLAIN) as process,
        ):
            try:
                for _ in attempts(Deadline.after(SECONDS)):
                    assert process.poll() is None, (top / "log").read_text()
                    if b"ready for connections" in (top / "log").read_bytes():
                        break
                yield Server(top / "s", top, RECIPE.name)
            finally:
                process.kill()
                process.wait(SECONDS)
