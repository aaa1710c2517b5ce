"""The guest's program for members of a group, run here against a pretended server."""

from __future__ import annotations

import shutil
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests.unit.guest.test_identity_in_guest import program

pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")

_BUSY = "Another instance of START/STOP GROUP_REPLICATION command is executing."
_RUNS = "The START GROUP_REPLICATION command failed since the group is already running."


@dataclass
class Server:
    """What a member answers, and the statements that it was given, but for questions.

    ``busy``: so often STOP GROUP_REPLICATION is refused as START still runs.
    """

    state: str = "ONLINE"
    busy: int = 0
    error: str = ""
    given: list[str] = field(default_factory=list)

    def answer(self, statement: str) -> list[tuple[str, ...]] | str:
        """Rows, or the text of an error."""
        if statement.startswith("SELECT"):
            return self.rows(statement)
        self.given.append(statement)
        if statement == "STOP GROUP_REPLICATION":
            self.busy -= 1
            if self.busy >= 0:
                return _BUSY
            self.state = "OFFLINE"
        if statement == "START GROUP_REPLICATION":
            if self.state != "OFFLINE":
                return _RUNS
            self.state = "ONLINE"
        return []

    def rows(self, question: str) -> list[tuple[str, ...]]:
        if "UNION ALL SELECT 'recovery error'" in question:
            rows: list[tuple[str, ...]] = [("member", self.state), ("executed", "")]
            return [*rows, ("recovery error", self.error)] if self.error else rows
        if "SUM(MEMBER_STATE" in question:
            return [(self.state, "3", "2")]
        return [("127.0.0.1",)] if question == "SELECT @@report_host" else []


class Session(socketserver.StreamRequestHandler):
    """The least of the protocol of MySQL's clients."""

    def handle(self) -> None:
        server: Server = self.server.server  # type: ignore[attr-defined]
        self.put(0, b"hello")
        self.take()
        self.put(2, b"\0")
        while (packet := self.take()) is not None:
            found = server.answer(packet[1:].decode())
            if isinstance(found, str):
                packets = [b"\xff" + bytes(8) + found.encode()]
            elif found:
                rows = [b"".join(_text(value) for value in row) for row in found]
                packets = [b"\1", b"column", b"\xfe", *rows, b"\xfe"]
            else:
                packets = [b"\0"]
            for number, one in enumerate(packets, 1):
                self.put(number, one)

    def put(self, number: int, packet: bytes) -> None:
        self.wfile.write(struct.pack("<I", len(packet) | number << 24) + packet)

    def take(self) -> bytes | None:
        head = self.rfile.read(4)
        return self.rfile.read(int.from_bytes(head[:3], "little")) if len(head) == 4 else None


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


@dataclass
class Guest:
    """A directory that the program takes for a guest."""

    root: Path
    server: Server

    def __post_init__(self) -> None:
        program("mysql.pl", self.root, self.root / "sock")
        changes = [(f"/run/lab-{name}", f"{self.root}/{name}") for name in ("leaves", "joined")]
        group = ("/etc/lab/group", f"{self.root}/group")
        self.program = program("regroup", self.root, self.root / "sock", group, *changes)
        # No peer is reached, and a port that nobody else listens at.
        (self.root / "group").write_text("")
        self.program.write_text(self.program.read_text().replace("$ASK = 33062", "$ASK = 0"))
        systemctl = self.root / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self.root}/asked\necho active\n')
        systemctl.chmod(0o755)

    @property
    def joined(self) -> Path:
        return self.root / "joined"

    def popen(self, order: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["perl", self.program, order, "mysql.service"],
            env={"PATH": f"{self.root}:/usr/bin:/bin"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, order: str, stdin: str = "") -> str:
        with self.popen(order) as process:
            said, _ = process.communicate(stdin, timeout=30)
            assert process.returncode == 0
        return said

    def restarts(self) -> bool:
        asked = self.root / "asked"
        # A shell makes the file before it writes to it.
        said = until(lambda: asked.exists() and asked.read_text(), Deadline.after(20))
        return said == "restart --no-block lab-group.service\n"


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    server = Server()
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "sock"), Session) as listener:
        listener.daemon_threads = True
        listener.server = server  # type: ignore[attr-defined]
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        yield Guest(tmp_path, server)
        listener.shutdown()
        thread.join()


def test_who_leaves_executes_statements_before_it_joins_again(guest: Guest) -> None:
    """Protects recovery, which logs in as it was last given; STOP waits for a START that ends."""
    guest.server.state, guest.server.busy = "RECOVERING", 2
    guest.joined.touch()
    login = "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'x'"
    guest.run("leave", f"{login}\n")
    assert guest.restarts()
    assert guest.server.given == [*["STOP GROUP_REPLICATION"] * 3, login]
    assert not guest.joined.exists()
    assert not (guest.root / "leaves").exists()


def test_who_leaves_needs_no_statements(guest: Guest) -> None:
    guest.run("leave")
    assert guest.restarts()
    assert guest.server.given == ["STOP GROUP_REPLICATION"]


def test_what_the_host_is_given(guest: Guest) -> None:
    """Protects who joins from an order to leave: only what was in the group can have left."""
    assert "joined" not in guest.run("state")
    assert "recovery error" not in guest.run("state")
    guest.server.error = "1045"
    guest.joined.touch()
    said = guest.run("state").splitlines()
    assert {"server\tactive", "joined\tyes", "recovery error\t1045"} <= set(said)


def test_who_was_in_the_group_notes_it(guest: Guest) -> None:
    """The note is of this start of the server."""
    guest.joined.touch()
    guest.server.state = "OFFLINE"
    with guest.popen("join") as process:
        try:
            assert until(lambda: not guest.joined.exists(), Deadline.after(20))
            guest.server.state = "RECOVERING"
            assert until(guest.joined.exists, Deadline.after(20))
        finally:
            process.kill()
    assert guest.server.given == []


def test_a_member_in_error_starts_a_group(guest: Guest) -> None:
    """START is refused until the plugin has stopped, though the member has left its group."""
    guest.server.state = "ERROR"
    guest.run("bootstrap")
    assert [one for one in guest.server.given if "bootstrap" not in one] == [
        "STOP GROUP_REPLICATION", "START GROUP_REPLICATION",
    ]  # fmt: skip
    assert guest.server.given[-1].endswith("bootstrap_group = OFF")
