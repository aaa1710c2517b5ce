"""A MariaDB server of its own for a test, on a socket in a directory that vanishes.

The programs are the host's, or those of Debian's package, unpacked once below a cache.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from lab.errors import CommandFailed, LabError
from lab.run import run
from lab.wait import Deadline, attempts

SECONDS = 120.0
PACKAGE = "mariadb-server-core"


class NoServer(Exception):
    """Why no server can be had; a test is skipped with it."""


def cache() -> Path:
    """Where programs are kept between runs."""
    if os.geteuid() == 0:
        return Path("/var/cache/lab-test")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "lab-test"


def daemon() -> Path:
    """``mariadbd``: the host's, or out of Debian's package; raises NoServer."""
    if installed := shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path(installed)
    found = unpacked(PACKAGE) / "usr/sbin/mariadbd"
    try:
        run([found, "--version"], timeout=30)
    except LabError as error:
        raise NoServer(f"{PACKAGE} does not run here: {error}") from error
    return found


LIBRARIES = (
    "libmariadb3", "libglib2.0-0", "libglib2.0-0t64", "libpcre3", "libpcre2-8-0", "libncurses6",
)  # fmt: skip
"""What programs may need that a host lacks."""


def client(program: str, package: str) -> tuple[Path, dict[str, str]]:
    """A program of Debian's ``package``, and the environment it runs in; raises NoServer."""
    if installed := shutil.which(program):
        return Path(installed), dict(os.environ)
    found, places = unpacked(package) / "usr/bin" / program, []
    for library in ("", *LIBRARIES):
        if library:
            with suppress(NoServer):
                root = unpacked(library)
                places += [str(path.parent) for path in root.rglob("lib*.so*")]
        env = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(sorted(set(places)))}
        with suppress(LabError):
            run([found, "--version"], timeout=30, env=env)
            return (_with(found, env["LD_LIBRARY_PATH"]) if places else found), env
    raise NoServer(f"{package} does not run here")


def _with(found: Path, libraries: str) -> Path:
    """A program by the name of ``found`` that runs it with ``libraries``, whatever it is given."""
    path = cache() / "with-libraries" / found.name
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{found}" "$@"\n')
    new.chmod(0o755)
    new.rename(path)
    return path


def unpacked(package: str, suite: str = "", only: str = "") -> Path:
    """The files of a package of Debian's, unpacked once; raises NoServer.

    ``suite``: not this host's; ``only``: the files whose path contains that.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NoServer(f"there is no apt-get to get {package} with")
    place = cache()
    place.mkdir(parents=True, exist_ok=True)
    name = "-".join(filter(None, [package, suite, re.sub(r"\W+", "-", only).strip("-")]))
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = place / name
        if not root.exists():
            _unpack(package, place, root, suite, only)
    return root


def _unpack(package: str, place: Path, root: Path, suite: str, only: str) -> None:
    with tempfile.TemporaryDirectory(dir=place, prefix=f"{package}.") as scratch:
        work = Path(scratch)
        try:
            apt = ["apt-get", "-q", *(sources(work, suite) if suite else [])]
            if suite:
                run([*apt, "update"], timeout=300)
            run([*apt, "download", package], timeout=300, cwd=work)
            archive = next(work.glob("*.deb"))
            if only:
                tar = work / "files.tar"
                with tar.open("wb") as out:
                    run(["dpkg-deb", "--fsys-tarfile", archive], timeout=300, log=out)
                (work / "root").mkdir()
                run(
                    ["tar", "-xf", tar, "-C", work / "root", "--wildcards", f"*{only}*"],
                    timeout=300,
                )
            else:
                run(["dpkg-deb", "-x", archive, work / "root"], timeout=300)
        except LabError as error:
            raise NoServer(f"{package} cannot be had: {error}") from error
        (work / "root").rename(root)


def sources(work: Path, suite: str) -> list[str]:
    """apt's options for another suite of the mirror that this host uses; raises NoServer."""
    found = re.search(r"^URIs:\s*(\S+)", _text("debian.sources"), re.M)
    if found is None:
        raise NoServer("this host's apt has no debian.sources")
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (work / "parts/debian.sources").write_text(
        f"Types: deb\nURIs: {found[1]}\nSuites: {suite}\nComponents: main\nSigned-By: {keys}\n"
    )
    places = {"Etc::SourceList": "/dev/null", "Etc::SourceParts": work / "parts",
              "State::Lists": work / "lists", "Cache": work / "cache"}  # fmt: skip
    return [word for key, path in places.items() for word in ("-o", f"Dir::{key}={path}")]


def _text(name: str) -> str:
    path = Path("/etc/apt/sources.list.d") / name
    return path.read_text() if path.is_file() else ""


@dataclass(frozen=True)
class Server:
    """A running server."""

    socket: Path
    directory: Path
    version: str

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(
            unix_socket=str(self.socket), user="root", charset="utf8mb4", autocommit=True
        )

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement; all run in one session."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def stopped(db: Server) -> Path:
    """The data directory of a server, which is stopped cleanly; its directory vanishes later."""
    with suppress(pymysql.err.Error):  # the connection ends with it
        db.ask("SHUTDOWN")
    log = db.directory / "log"
    for _ in attempts(Deadline.after(SECONDS)):
        if b"Shutdown complete" in log.read_bytes():
            return db.directory / "data"
    raise AssertionError(log.read_text())


@contextmanager
def server(options: Sequence[str] = (), created: Sequence[str] = ()) -> Iterator[Server]:
    """A server without data, network or logs, which root's password-less account can use.

    ``created``: options that its data directory is created with.
    """
    program = daemon()
    share = share_of(program)
    # A socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp") as path:
        top = Path(path)
        common = [
            str(program), "--no-defaults", f"--user={pwd.getpwuid(os.geteuid()).pw_name}",
            f"--datadir={top}/data", f"--lc-messages-dir={share}", "--innodb-log-file-size=8M",
            "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", *created,
            # Each server that starts removes the temporary tables of all from a directory.
            f"--tmpdir={top}/tmp",
        ]  # fmt: skip
        (top / "data").mkdir()
        (top / "tmp").mkdir()
        try:
            run([*common, "--bootstrap"], timeout=SECONDS, stdin=system_tables(share))
        except CommandFailed as failed:
            raise AssertionError(failed.stderr[-4000:]) from failed
        socket = top / "s"
        argv = [*common, "--skip-networking", f"--socket={socket}", f"--pid-file={top}/pid"]
        with (
            (top / "log").open("wb") as log,
            subprocess.Popen([*argv, *options], stdout=log, stderr=log) as process,
        ):
            try:
                yield Server(socket, top, _ready(process, socket, top / "log"))
            finally:
                process.kill()
                process.wait(SECONDS)


def share_of(program: Path) -> Path:
    """The messages and system tables of a server, whose directory and files MariaDB 11 renamed."""
    places = [program.parents[1] / "share" / name for name in ("mariadb", "mysql")]
    return next((path for path in places if _tables(path)), places[-1])


def _tables(share: Path, part: str = "") -> list[Path]:
    return sorted(share.glob(f"m*_system_tables{part}.sql"))


def system_tables(share: Path, socket_user: str = "NULL") -> bytes:
    """What mariadb-install-db gives to a server, less what depends on the host's name.

    ``socket_user``: a quoted name of who may log in by the socket as root, without a password.
    """
    text = "".join(path.read_text() for part in ("", "_data") for path in _tables(share, part))
    lines = [line for line in text.splitlines() if "@current_hostname" not in line]
    first = "create database mysql;\nuse mysql;\nset @skip_auth_anonymous=1;\n"
    first += f"set @auth_root_socket={socket_user};\n"
    return (first + "\n".join(lines)).encode()


def _ready(process: subprocess.Popen[bytes], socket: Path, log: Path) -> str:
    """The server's version, once it answers; the socket is there before that."""
    for _ in attempts(Deadline.after(SECONDS)):
        assert process.poll() is None, log.read_text()
        if b"ready for connections" in log.read_bytes():
            [[version]] = Server(socket, socket.parent, "").ask("SELECT VERSION()")
            return str(version)
    raise AssertionError(log.read_text())
