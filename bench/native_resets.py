"""How tests put one server's data back without guests: a copy, a dump, a restart.

The server is a process of this host, of the version that a lab's nodes have and with a node's
option file; its data directory is on tmpfs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from bench.labs import Failed
from bench.native import PATH, connected, engine
from lab.blueprints import Member, blueprint_of
from lab.config.profile import EngineProfile
from lab.errors import LabError
from lab.guest.network import inner_address
from lab.run import run
from lab.sizes import NodeSize
from lab.spec import LabSpec

TABLES, ROWS = 20, 1000
_NAME = "tests"
_SECONDS = 120.0
_COUNT = f"SELECT COUNT(*) FROM tests.t{TABLES}"  # noqa: S608
BY_COPY = "one `mysqld` on tmpfs: ended, its data directory copied back, started"
BY_DUMP = "one `mysqld` on tmpfs: `mysql` loads a dump while it runs"
BY_RESTART = "one `mysqld` on tmpfs: shut down and started, its data stay"


def dump() -> str:
    """SQL that makes the database ``tests`` as it is when a test begins: some 4 MB."""
    lines = ["DROP DATABASE IF EXISTS tests;", "CREATE DATABASE tests;", "USE tests;"]
    text = "x" * 180
    for number in range(1, TABLES + 1):
        lines.append(f"CREATE TABLE t{number} (id INT PRIMARY KEY, k INT, text TEXT, KEY (k));")
        rows = ",".join(f"({row},{row % 97},'{text}')" for row in range(ROWS))
        lines.append(f"INSERT INTO t{number} VALUES {rows};")  # noqa: S608
    return "\n".join(lines) + "\n"


def resets(root: Path, runs: int) -> dict[str, list[float]]:
    """Seconds from the begin of each way to an answer of the server, by the way. Raises Failed."""
    seconds: dict[str, list[float]] = {BY_COPY: [], BY_DUMP: [], BY_RESTART: []}
    script, data, seed = root / "dump.sql", root / "var/lib" / _NAME, root / "var/lib/mysql"
    script.write_text(dump())
    with _on_tmpfs(data), ExitStack() as ends:
        _copied(seed, data)
        server = _Server(root)
        ends.callback(server.kill)
        server.start()
        server.load(script)
        server.stop()
        kept = data.parent / f"{_NAME}.kept"
        ends.callback(shutil.rmtree, kept, ignore_errors=True)
        run(["cp", "-a", data, kept], timeout=_SECONDS)
        server.start()

        def copied() -> None:
            server.kill()
            _copied(kept, data)
            server.start()

        def restarted() -> None:
            server.stop()
            server.start()

        ways: dict[str, Callable[[], None]] = {
            BY_COPY: copied, BY_DUMP: lambda: server.load(script), BY_RESTART: restarted,
        }  # fmt: skip
        for _ in range(runs):
            for way, reset in ways.items():
                began = time.perf_counter()
                reset()
                server.check()
                seconds[way].append(time.perf_counter() - began)
    return seconds


@contextmanager
def _on_tmpfs(directory: Path) -> Iterator[None]:
    directory.mkdir()
    try:
        run(["mount", "-t", "tmpfs", "-o", "size=2g", "lab-bench", directory], timeout=_SECONDS)
    except LabError as error:
        raise Failed(f"no tmpfs can be mounted here: {error}") from error
    try:
        yield
    finally:
        run(["umount", directory], timeout=_SECONDS)


def _copied(source: Path, data: Path) -> None:
    """Replace what is in ``data`` by a copy of ``source``."""
    for path in data.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    run(["cp", "-a", f"{source}/.", data], timeout=_SECONDS)


class _Server:
    """A server in ``root`` on the data directory of this module's name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._socket = root / f"run/mysqld/{_NAME}.sock"
        spec = LabSpec("single", engine="mysql")
        plan = blueprint_of(spec)
        (node,) = plan.plan(spec.size)
        member = Member(node.name, 1, inner_address(1), node.role)
        files = plan.files(member, [member], engine(), NodeSize().memory, EngineProfile())
        text = files[engine().config_path].content.decode()
        text = text.replace("/run/mysqld/mysqld.", f"/run/mysqld/{_NAME}.")
        text = text.replace("/var/lib/mysql", f"/var/lib/{_NAME}")
        (root / f"etc/{_NAME}.cnf").write_text(f"{text}\n[mysqld]\nskip_networking = ON\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = ["chroot", str(self._root), "/usr/sbin/mysqld",
                f"--defaults-file=/etc/{_NAME}.cnf", "--user=mysql"]  # fmt: skip
        with (self._root / f"var/log/{_NAME}.log").open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env=PATH)
        with ExitStack() as ends:
            connected(self._socket, ends)

    def stop(self) -> None:
        """Shut it down, as a container's or a service's stop does."""
        if self._process:
            self._process.terminate()
            self._process.wait(_SECONDS)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait(_SECONDS)

    def load(self, script: Path) -> None:
        argv = ["chroot", str(self._root), "mysql", "--user=root",
                f"--socket=/run/mysqld/{_NAME}.sock"]  # fmt: skip
        with script.open("rb") as text:
            done = subprocess.run(
                argv, stdin=text, capture_output=True, env=PATH, timeout=_SECONDS, check=False
            )
        if done.returncode:
            raise Failed(f"the dump was not loaded: {done.stderr.decode(errors='replace')[:200]}")

    def check(self) -> None:
        with ExitStack() as ends, suppress(pymysql.Error):
            session: Any = connected(self._socket, ends)
            with session.cursor() as cursor:
                cursor.execute(_COUNT)
                if cursor.fetchone() == (ROWS,):
                    return
        raise Failed("the server does not have the rows of the dump")
