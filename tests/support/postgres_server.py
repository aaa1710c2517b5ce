"""A PostgreSQL server of its own for a test, on a socket in a directory that vanishes."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.errors import CommandFailed
from lab.run import run

NEEDED = "PostgreSQL's server is not installed (Debian: postgresql)"
_DEBIAN = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """Where ``initdb`` and ``pg_ctl`` are, the newest; Debian keeps them out of PATH."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent  # a link leads to the others
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "pg_ctl").exists()]
    return max(versions, key=lambda path: int(path.parent.name), default=None)


@dataclass
class Postgres:
    """A server that can be stopped and started."""

    url: str
    """Of its database, as SQLAlchemy writes it."""
    tool: Callable[..., None]
    flags: str
    root: Path
    """Where its socket is."""
    port: int = 0
    """At the loopback; 0: none."""

    @property
    def plain(self) -> str:
        """The URL as PostgreSQL's own programs write it."""
        return self.url.replace("+psycopg", "")

    def at(self, *ports: int) -> str:
        """The URL of its database at other ports of the loopback, of the one that takes writes."""
        hosts, at = ",".join(["127.0.0.1"] * len(ports)), ",".join(map(str, ports))
        place = f"host={hosts}&port={at}&target_session_attrs=read-write"
        return f"postgresql+psycopg://lab@/postgres?{place}"

    def start(self) -> None:
        self.tool("pg_ctl", "-w", "-o", self.flags, "start")

    def stop(self, how: str = "immediate") -> None:
        self.tool("pg_ctl", "-w", "-m", how, "stop")

    def promote(self) -> None:
        """Have a standby take writes."""
        self.tool("pg_ctl", "-w", "promote")


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database, as SQLAlchemy writes it."""
    with postgres() as found:
        yield found.url


@contextmanager
def postgres(*, tcp: bool = False, connections: int = 100) -> Iterator[Postgres]:
    """A server with an empty database; ``tcp``: also at a port of the loopback."""
    with _place() as (root, tool):
        tool("initdb", "--auth=trust", "--username=lab", "--no-sync", "--encoding=UTF8")
        port = _free_port() if tcp else 5432  # the number is also in the socket's name
        place = f"host={root}" if port == 5432 else f"host={root}&port={port}"
        found = Postgres(
            f"postgresql+psycopg://lab@/postgres?{place}", tool,
            _flags(root, port, tcp=tcp, connections=connections), root, port if tcp else 0,
        )  # fmt: skip
        with _running(found):
            yield found


@contextmanager
def standby_of(
    primary: Postgres, *, tcp: bool = False, connections: int = 100
) -> Iterator[Postgres]:
    """A standby of a server, for which that waits at each commit; ``promote`` makes it the primary.

    The URL has both: clients find the one that takes writes. ``tcp``, ``connections``: as the
    server has them.
    """
    with _place() as (root, tool):
        where = primary.port or 5432
        how = ("-h", str(primary.root), "-p", str(where), "-U", "lab", "-R")
        tool("pg_basebackup", *how, "--checkpoint=fast", "--no-sync")
        port = _free_port() if tcp else 5432
        place = f"host={primary.root},{root}&port={where},{port}&target_session_attrs=read-write"
        found = Postgres(
            f"postgresql+psycopg://lab@/postgres?{place}", tool,
            _flags(root, port, tcp=tcp, connections=connections), root, port if tcp else 0,
        )  # fmt: skip
        with _running(found):
            yield found


@contextmanager
def _running(server: Postgres) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        with suppress(CommandFailed):  # a test has stopped it
            server.stop()


@contextmanager
def _place() -> Iterator[tuple[Path, Callable[..., None]]]:
    """A directory for a server, and what runs PostgreSQL's programs on its data."""
    where = programs()
    assert where is not None, NEEDED
    # Not below pytest's directory: the server does not run as root, who alone can enter that.
    root = Path(tempfile.mkdtemp(prefix="lab-pg-"))
    user = _user()
    os.chown(root, user.pw_uid, user.pw_gid)
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    prefix = become if os.geteuid() == 0 else []

    def tool(name: str, *args: str) -> None:
        log = ("-l", str(root / "log")) if name == "pg_ctl" else ()
        argv = [*prefix, str(where / name), "-D", str(root / "data"), *log, *args]
        run(argv, timeout=60, cwd=root)

    try:
        yield root, tool
    finally:
        shutil.rmtree(root)


def _flags(root: Path, port: int, *, tcp: bool, connections: int) -> str:
    at = f"-c listen_addresses='{'127.0.0.1' if tcp else ''}' -c port={port} -k {root}"
    return f"{at} -c fsync=off -c max_connections={connections}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _user() -> pwd.struct_passwd:
    """Who the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    names = {one.pw_name: one for one in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]
