"""What guests print: lines without end cost no memory and no seat, and command no terminal."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from lab.cli.terminal.failure import describe
from lab.cli.terminal.output import emit
from lab.errors import LabError
from lab.lifecycle.labs import node_access
from lab.lifecycle.labs.query import program
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.ssh import ssh_command
from lab.names import GuestName
from lab.observe.account import Account
from lab.run import LONGEST_LINE, lines
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World, named
from tests.support.serve_world import Site, site

ENDLESS = ["sh", "-c", "exec tr '\\0' x </dev/zero"]
DRIPPING = ["sh", "-c", "while printf x; do sleep 0.02; done"]
NASTY = "\x1b]52;c;bWluZQ==\x07\x1b[2J\x9b31mred\r\x08"
"""Sets the clipboard, clears the screen, and so on."""


def test_a_line_without_end_is_cut() -> None:
    """Protects who follows a log, and the memory of the service that does it for others."""
    tracemalloc.start()
    try:
        with closing(lines(ENDLESS, idle=0.2)) as found:
            assert [len(line or "") for line in islice(found, 500)] == [LONGEST_LINE] * 500
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_long_line_is_cut_though_it_ends() -> None:
    """Nothing of it is lost."""
    argv = ["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo; echo; echo end"]
    found = [line for line in lines(argv, idle=5) if line is not None]
    assert max(map(len, found)) == LONGEST_LINE
    assert "".join(found[:-2]) == "x" * 200_000
    assert found[-2:] == ["", "end"]


def test_who_reads_is_asked_though_something_comes() -> None:
    """Protects seats: whether somebody listens still is looked at by the clock, not in silence."""
    with closing(lines(DRIPPING, idle=0.2)) as found:
        began = time.monotonic()
        assert list(islice(found, 3)) == [None] * 3
        assert time.monotonic() - began < 6.0


def test_a_console_without_lines(tmp_path: Path) -> None:
    """Protects from a log that is one line."""
    with World(tmp_path).open() as ctx:
        up(ctx, named("shop", nodes=1))
        path = ctx.home.console_log(GuestName("lab-shop-n1"))
        path.write_bytes(b"x" * 3_000_000)
        found = list(node_access.logs(ctx, "shop", "n1", "console", lines=2))
        assert len(found) == 2
        assert max(map(len, found)) <= LONGEST_LINE
        with closing(node_access.follow(ctx, "shop", "n1", "console", lines=2, idle=0.1)) as grows:  # type: ignore[type-var]
            assert max(len(line or "") for line in islice(grows, 3)) <= LONGEST_LINE


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.make("shop")
        yield found


@pytest.mark.parametrize("script", [ENDLESS[2], DRIPPING[2]], ids=["endless", "dripping"])
def test_a_seat_is_given_back(
    here: Site, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects other projects' logs: who has gone keeps no seat, whatever the guest prints."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    address = here.client.base_url
    headers = f"Host: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer {here.admin}"
    with socket.create_connection((address.host, address.port or 80)) as plain:
        path = "/v1/labs/shop/nodes/n1/logs"
        plain.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        assert b"200 OK" in plain.recv(4096)
        assert here.service.core.limits.followers.used() == 1
        time.sleep(0.7)
    assert until(lambda: here.service.core.limits.followers.used() == 0, Deadline.after(5))


def shown(world: World, *argv: str) -> str:
    """What `lab ARGV` shows on a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "LAB_HOME": str(world.root), "TERM": "dumb",
           "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake"}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "lab", *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:
                break
            text += more
        process.wait(10)
    os.close(ours)
    return text.decode()


def test_a_terminal_is_not_commanded(tmp_path: Path) -> None:
    """Protects who looks at a log: a guest sets neither their clipboard nor their screen."""
    world = World(tmp_path)
    with world.open() as ctx:
        up(ctx, named("shop", nodes=1))
        path = ctx.home.console_log(GuestName("lab-shop-n1"))
        path.write_text(f"before\tit {NASTY} after\n")
    text = shown(world, "logs", "shop", "--source", "console").replace("\r\n", "\n")
    assert text == "before\tit \\x1b]52;c;bWluZQ==\\x07\\x1b[2J\\x9b31mred\\r\\x08 after\n"
    env = {**os.environ, "LAB_HOME": str(world.root), "LAB_HYPERVISOR": "fake",
           "LAB_STORAGE": "fake"}  # fmt: skip
    argv = [sys.executable, "-m", "lab", "logs", "shop", "--source", "console"]
    piped = subprocess.run(argv, env=env, capture_output=True, check=True).stdout.decode()
    assert NASTY in piped, "a pipe gets what the guest wrote"


def test_errors_command_no_terminal() -> None:
    """Their details are lines of guests' logs."""
    text = describe(LabError(f"a {NASTY}", hint=f"b {NASTY}", details=[f"c\t{NASTY}\nd"]))
    assert all(char.isprintable() or char in "\n\t" for char in text)
    assert "c\t\\x1b" in text


def test_views_command_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server answers is in them."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", terminal)
        emit([NASTY], "name", table=str, names=lambda: [NASTY])
        seen = screen.read(4096) or b""
    assert b"\x1b" not in seen
    assert b"mine" not in seen or b"\\x1b" in seen
    assert "\x9b".encode() not in seen


def test_ssh_takes_no_options_from_files() -> None:
    """Protects the user's agent: others may be root in a node too."""
    argv = ssh_command(Path("/private"), "127.0.0.1", 2222)
    assert argv[:3] == ["ssh", "-F", "none"]
    options = subprocess.run(
        [argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=False
    ).stdout
    if options:
        assert "forwardagent no" in options


def test_the_client_program_gives_servers_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the user's files: a server may ask for another than LOAD DATA LOCAL names."""
    client = tmp_path / "bin" / "mariadb"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent))
    with program(Account("lab", "secret", ca="/ca.pem"), 3306, tmp_path / "options") as found:
        text = (tmp_path / "options").read_text()
        assert found.argv == [str(client), f"--defaults-file={tmp_path / 'options'}"]
    assert "local-infile=0\n" in text
    assert "ssl-ca=/ca.pem\nssl-verify-server-cert\n" in text
