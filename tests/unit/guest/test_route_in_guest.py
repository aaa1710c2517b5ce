"""The guest's program that runs MySQL Router, here with a stand-in for Router and for checkers."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")

PROGRAM = ROOT / "images/mysql-router/usr/lib/lab/route"
ROUTER = """#!{python}
import re, socket, sys, time
text = open(sys.argv[2]).read()
open("{started}", "a").write(text + "\\0")
listening = [socket.create_server(("127.0.0.1", int(port)))
             for port in re.findall("bind_port = ([0-9]+)", text)]
time.sleep(600)
"""


@dataclass
class Checkers:
    """Stand-ins for the checkers of servers; ``holds`` has what each answers with 200."""

    net: str
    holds: dict[str, set[str]] = field(default_factory=dict)
    looked: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def run(self, number: int) -> Iterator[None]:
        address, holds, looks = f"{self.net}.{number}", self.holds, self.looked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                looks[address] = looks.get(address, 0) + 1
                self.send_response(200 if self.path in holds[address] else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        with ThreadingHTTPServer((address, 9200), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


@dataclass
class Routed:
    checkers: Checkers
    directory: Path
    seen: int | None = None

    def says(self, *holds: str) -> None:
        """What holds on each server now, with spaces between."""
        for number, paths in enumerate(holds, 1):
            self.checkers.holds[f"{self.checkers.net}.{number}"] = set(paths.split())

    def looks(self, more: int) -> bool:
        """Whether the first server was asked so many times since the last call that said so."""
        now = self.checkers.looked[f"{self.checkers.net}.1"]
        if self.seen is None or now < self.seen + more:
            self.seen = self.seen or now
            return False
        self.seen = None
        return True

    @property
    def started(self) -> list[str]:
        """The option files with which Router was started so far."""
        return (self.directory / "started").read_text().split("\0")[:-1]

    def until(self, rw: str, ro: str) -> None:
        path, wanted = self.directory / "routes", f"rw\t{rw}\nro\t{ro}\n"
        assert until(lambda: path.exists() and path.read_text() == wanted, Deadline.after(20)), (
            path.read_text()
        )


def free_ports() -> tuple[int, int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as b:
        return one.getsockname()[1], b.getsockname()[1]


@pytest.fixture
def routed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Routed]:
    """Three servers, the last one to be read from only if no other can be.

    Its parameter: the strategy for writes.
    """
    checkers = Checkers(f"127.78.{secrets.randbelow(256)}")
    (tmp_path / "router").write_text(
        ROUTER.format(python=sys.executable, started=tmp_path / "started")
    )
    (tmp_path / "router").chmod(0o755)
    (tmp_path / "base").write_text("[DEFAULT]\n")
    strategy = getattr(request, "param", "first-available")
    servers = [f"n{n}\t{checkers.net}.{n}\t{'last' if n == 3 else ''}\n" for n in (1, 2, 3)]
    (tmp_path / "servers").write_text("".join([f"rw\t{strategy}\n", *servers]))
    text, (rw, ro) = PROGRAM.read_text(), free_ports()
    for there, here in (
        ("/usr/bin/mysqlrouter", str(tmp_path / "router")),
        ("/etc/lab/proxy", str(tmp_path / "servers")),
        ("/etc/lab/router.cnf", str(tmp_path / "base")),
        ("rw => 3306, ro => 3307", f"rw => {rw}, ro => {ro}"),
    ):
        assert there in text
        text = text.replace(there, here)
    (tmp_path / "route").write_text(text)
    found = Routed(checkers, tmp_path)
    found.says("/rw", "/ro", "/ro")
    with ExitStack() as stack:
        for number in (1, 2, 3):
            stack.enter_context(checkers.run(number))
        process = stack.enter_context(
            subprocess.Popen(["perl", tmp_path / "route"], env={"RUNTIME_DIRECTORY": str(tmp_path)})
        )
        try:
            yield found
        finally:
            process.terminate()
            process.wait(20)


def test_destinations_follow_roles(routed: Routed) -> None:
    """Protects writes: Router leads to who takes them now, and is started again only for that."""
    routed.until("n1", "n2")
    net = routed.checkers.net
    (text,) = routed.started
    assert f"destinations = {net}.1:3306\nrouting_strategy = first-available" in text
    assert f"destinations = {net}.2:3306\nrouting_strategy = round-robin" in text
    routed.says("", "/rw", "/ro")  # n2 was promoted; only the delayed one is left to read from
    routed.until("n2", "n3")
    assert len(routed.started) == 2
    routed.says("/rw", "", "")  # nobody can be read from but the writer
    routed.until("n1", "n1")
    routed.says("/rw /ro", "/rw /ro", "/rw /ro")  # all are alike
    routed.until("n1 n2 n3", "n2")
    assert len(routed.started) == 4
    # Router passes over who is not there: connections stay.
    routed.says("/rw /ro", "/rw /ro", "")
    assert until(lambda: routed.looks(6), Deadline.after(20))
    assert len(routed.started) == 4


def test_reads_continue_without_a_writer(routed: Routed) -> None:
    """Protects reads where the source is lost: its replicas have data."""
    routed.until("n1", "n2")
    routed.says("", "/ro", "")
    routed.until("", "n2")
    assert "routing:rw" not in routed.started[1]
    routed.says("", "/rw", "/ro")
    routed.until("n2", "n3")


def test_connections_stay_where_a_writer_is_missed_for_a_moment(routed: Routed) -> None:
    routed.until("n1", "n2")
    routed.says("", "/ro", "")
    assert until(lambda: routed.looks(4), Deadline.after(20))
    routed.says("/rw", "/ro", "")
    assert until(lambda: routed.looks(8), Deadline.after(20))
    assert len(routed.started) == 1


@pytest.mark.parametrize("routed", ["round-robin"], indirect=True)
def test_writes_go_to_all_who_take_them(routed: Routed) -> None:
    """Protects a group of several primaries: none of them gets all writes."""
    routed.says("/rw", "/rw", "")
    routed.until("n1 n2", "n1 n2")
    net = routed.checkers.net
    places = f"destinations = {net}.1:3306,{net}.2:3306\nrouting_strategy = round-robin"
    assert places in routed.started[-1]
    routed.says("/rw", "/rw", "/rw")
    routed.until("n1 n2 n3", "n1 n2 n3")
    routed.says("", "/rw", "/rw")
    routed.until("n2 n3", "n2 n3")


def test_without_servers_nothing_is_routed(routed: Routed) -> None:
    routed.until("n1", "n2")
    routed.says("", "", "")
    assert until(lambda: (routed.directory / "routes").read_text() == "", Deadline.after(20))
