"""Host and guest of the platform tests, talking over a pair of sockets instead of a port."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.errors import CommandFailed, NotReady
from lab.wait import Deadline, until
from testvm import agent, wire
from testvm.session import Session

FACTS = {"zfs": "2.3.9"}


@dataclass
class Guest:
    """An agent in a thread, and the host's end of what it listens to."""

    channel: socket.socket
    switched_off: threading.Event = field(default_factory=threading.Event)

    def session(self, seconds: float = 10.0) -> Session:
        return Session(self.channel, Deadline.after(seconds))


@pytest.fixture
def guest() -> Iterator[Guest]:
    ours, theirs = socket.socketpair()
    guest = Guest(ours)

    def serve() -> None:
        with suppress(agent.Gone):
            agent.serve(agent.Link(theirs.fileno()), lambda: FACTS, guest.switched_off.set)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield guest
    ours.close()
    thread.join(10)
    theirs.close()
    assert not thread.is_alive()


def run(guest: Guest, script: str, cwd: Path = Path("/"), **env: str) -> tuple[int, bytes]:
    out = io.BytesIO()
    status = guest.session().run(["sh", "-c", script], cwd=str(cwd), env=env, out=out)
    return status, out.getvalue()


def test_output_and_status_come_back(guest: Guest, tmp_path: Path) -> None:
    script = 'pwd; echo "$WORD" >&2; printf "\\377\\000"; exit 3'
    status, out = run(guest, script, cwd=tmp_path, WORD="é")
    assert status == 3
    assert out == f"{tmp_path}\né\n".encode() + b"\xff\x00"


def test_output_comes_as_it_is_written(guest: Guest, tmp_path: Path) -> None:
    """Protects who watches: a run of minutes must not be silent until its end."""
    gate = tmp_path / "gate"

    class Watching(io.BytesIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            gate.touch()
            return super().write(data)

    out = Watching()
    script = f"echo first; while [ ! -e {gate} ]; do sleep 0.01; done; echo second"
    assert guest.session().run(["sh", "-c", script], cwd="/", env={}, out=out) == 0
    assert out.getvalue() == b"first\nsecond\n"


def test_death_by_signal_is_a_status_as_in_a_shell(guest: Guest) -> None:
    assert run(guest, "kill -9 $$")[0] == 137


def test_a_program_that_does_not_exist_is_an_error(guest: Guest) -> None:
    with pytest.raises(CommandFailed, match="/no/such"):
        guest.session().run(["/no/such"], cwd="/", env={}, out=io.BytesIO())
    assert run(guest, "echo on")[1] == b"on\n"


def test_a_daemon_does_not_hold_up_the_end(guest: Guest) -> None:
    """Protects from waiting for what a test left running with its output open."""
    status, out = run(guest, "sleep 20 & echo $!")
    assert status == 0
    os.kill(int(out), 9)


def wait_for(path: Path) -> int:
    """The process id that a command wrote to ``path``."""
    text = until(lambda: (path.exists() and path.read_text().strip()) or None, Deadline.after(10))
    assert text
    return int(text)


def ended(pid: int) -> bool:
    def gone() -> bool | None:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z" or None

    return until(gone, Deadline.after(10)) is True


def begin(guest: Guest, script: str) -> None:
    guest.channel.sendall(wire.encode({"run": ["sh", "-c", script], "cwd": "/", "env": {}}))


def test_command_dies_when_the_host_goes_away(guest: Guest, tmp_path: Path) -> None:
    """Protects the next run in a kept guest from what Ctrl-C left of this one."""
    begin(
        guest, f"sleep 60 & echo $! >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait"
    )
    pid = wait_for(tmp_path / "pid")
    guest.channel.close()
    assert ended(pid)


def test_command_dies_when_the_host_opens_another_session(guest: Guest, tmp_path: Path) -> None:
    begin(guest, f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; yes")
    pid = wait_for(tmp_path / "pid")
    guest.session().hello("again")
    assert ended(pid)
    assert run(guest, "echo new")[1] == b"new\n"


def test_session_ends_at_its_deadline(guest: Guest) -> None:
    began = time.monotonic()
    with pytest.raises(NotReady, match="in time"):
        guest.session(0.3).run(["sleep", "5"], cwd="/", env={}, out=io.BytesIO())
    assert time.monotonic() - began < 4


def test_session_tells_that_the_guest_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.close()
        with pytest.raises(NotReady, match="ended"):
            Session(ours, Deadline.after(10)).hello("token")
