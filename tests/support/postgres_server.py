"""A PostgreSQL server of its own for a test, on a socket in a directory that vanishes."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.run import run

NEEDED = "PostgreSQL's server is not installed (Debian: postgresql)"
_DEBIAN = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """Where ``initdb`` and ``pg_ctl`` are, the newest; Debian keeps them out of PATH."""
    if found := shutil.which("pg_ctl"):
        return Path(found).parent
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "pg_ctl").exists()]
    return max(versions, key=lambda path: int(path.parent.name), default=None)


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database, as SQLAlchemy writes it."""
    where = programs()
    assert where is not None, NEEDED
    # Not below pytest's directory: the server does not run as root, who alone can enter that.
    root = Path(tempfile.mkdtemp(prefix="lab-pg-"))
    user = _user()
    os.chown(root, user.pw_uid, user.pw_gid)
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    prefix = become if os.geteuid() == 0 else []

    def tool(name: str, *args: str) -> None:
        run([*prefix, str(where / name), "-D", str(root / "data"), *args], timeout=60, cwd=root)

    try:
        tool("initdb", "--auth=trust", "--username=lab", "--no-sync", "--encoding=UTF8")
        flags = f"-c listen_addresses='' -k {root} -c fsync=off"
        tool("pg_ctl", "-w", "-l", str(root / "log"), "-o", flags, "start")
        try:
            yield f"postgresql+psycopg://lab@/postgres?host={root}"
        finally:
            tool("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(root)


def _user() -> pwd.struct_passwd:
    """Who the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    names = {one.pw_name: one for one in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]
