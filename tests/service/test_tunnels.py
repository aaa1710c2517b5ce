"""SSH and consoles through the service: to a real SSH server, on a real terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fastapi.routing import APIWebSocketRoute
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection

from lab.api.app import ROUTERS
from lab.api.routes import tunnels
from lab.client import Client
from lab.client.tunnel import open_tunnel
from lab.errors import Forbidden, LimitReached, NotFound, NotReady, Unauthorized
from lab.lifecycle.service import token as tokens
from lab.names import Owner
from tests.support.serve_world import Site, site
from tests.support.ssh_server import ssh_server

LAB = [sys.executable, "-m", "lab"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("tunnels")) as found:
        found.make("shop", token=found.token("maker"))
        yield found


@pytest.fixture
def guest(here: Site) -> Iterator[None]:
    """The SSH server of n1."""
    with ssh_server(here, "shop"):
        yield


@pytest.fixture
def env(here: Site, tmp_path: Path) -> Mapping[str, str]:
    (tmp_path / "lab").mkdir()  # not to be taken for the program
    return {**os.environ, "LAB_URL": str(here.client.base_url), "LAB_TOKEN": here.token(),
            "LAB_HOME": str(tmp_path / "none"), "TMPDIR": str(tmp_path), "TERM": "xterm",
            "PYTHONSAFEPATH": "1"}  # fmt: skip


def lab(env: Mapping[str, str], *words: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    done = subprocess.run([*LAB, *words], env=env, cwd=env["TMPDIR"], input=stdin,
                          capture_output=True, timeout=60, check=False)  # fmt: skip
    return done.returncode, done.stdout, done.stderr.decode()


def tunnel(here: Site, token: str = "", kind: str = "ssh", node: str = "n1") -> ClientConnection:
    return open_tunnel(str(here.client.base_url), token or here.token(), "shop", node, kind)


def until_free(here: Site) -> None:
    end = time.monotonic() + 10
    while here.service.core.limits.tunnels.used():
        assert time.monotonic() < end, "a seat is not given back"
        time.sleep(0.02)


@pytest.mark.usefixtures("guest")
def test_ssh_runs_a_command(here: Site, env: Mapping[str, str], tmp_path: Path) -> None:
    """Protects `lab ssh -- CMD`: output, exit code, much data, and that no key stays behind."""
    assert lab(env, "ssh", "shop", "--", "uptime") == (0, b"ran uptime\n", "")
    assert lab(env, "ssh", "--", "fail")[:2] == (7, b"ran fail\n")
    data = b"0123456789abcdef" * 40_000 + b"\n"
    assert lab(env, "ssh", "shop", "--", "cat", stdin=data) == (0, data, "")
    assert [path.name for path in tmp_path.iterdir()] == ["lab"]
    until_free(here)
    opened = [e for e in here.ask("GET", "/v1/audit").json()["items"] if e["action"] == "openSsh"]
    assert {(e["status"], e["target"], e["project"]) for e in opened} == {
        (101, "/v1/labs/shop/nodes/n1/ssh", "shop")}  # fmt: skip


@pytest.mark.usefixtures("guest")
def test_a_node_with_another_key_is_refused(here: Site, env: Mapping[str, str]) -> None:
    """Protects from who answers in a node's place: its key is pinned, through the tunnel too."""
    known = here.service.core.settings.home.private(Owner("lab", "shop")) / "known_hosts"
    host, kind, _ = known.read_text().split()
    other = "AAAAC3NzaC1lZDI1NTE5AAAAIGJ0c2VvZmFub3RoZXJob3N0a2V5bm90dGhpc29u"
    known.write_text(f"{host} {kind} {other}\n")
    code, out, reported = lab(env, "ssh", "shop", "--", "uptime")
    assert (code, out) == (255, b"")
    assert "verification failed" in reported
    assert env["LAB_TOKEN"] not in reported


@pytest.mark.usefixtures("guest")
def test_ssh_on_a_terminal(env: Mapping[str, str]) -> None:
    """Protects the shell: it gets a terminal, and what is typed."""
    shown, code = on_terminal(env, "ssh", "shop", typed={"terminal xterm": b"hello\n"})
    assert "you said hello" in shown
    assert code == 0


def test_a_console_on_a_terminal(here: Site, env: Mapping[str, str]) -> None:
    """Protects `lab console`: what the node prints is shown as it comes, and Ctrl-] leaves."""
    log = here.service.core.settings.home.console_log("lab-shop-n1")
    with log.open("a") as file:
        file.write("login: \n")
    shown, code = on_terminal(env, "console", "shop", typed={"login: ": b"\x1d"})
    assert "Ctrl-] leaves" in shown
    assert code == 0
    until_free(here)
    assert running("tail -f") == []


def running(what: str) -> list[str]:
    """The children of this process that run ``what``."""
    shown = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="],
                           capture_output=True, text=True, check=False).stdout  # fmt: skip
    return [line for line in shown.splitlines() if what in line]


def on_terminal(env: Mapping[str, str], *words: str, typed: Mapping[str, bytes]) -> tuple[str, int]:
    """Run `lab` on a terminal; type what ``typed`` says once that is shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *LAB, *words],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=env["TMPDIR"], env=dict(env),
    )  # fmt: skip
    os.close(theirs)
    shown, left, end = b"", dict(typed), time.monotonic() + 30
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 4096)
                except OSError:
                    break
            for text in [text for text in left if text.encode() in shown]:
                os.write(ours, left.pop(text))
        return shown.decode(), process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.usefixtures("guest")
def test_every_tunnel_takes_a_token_that_may(here: Site) -> None:
    """Protects nodes, by every WebSocket that there is, but those of other tests.

    Archives are those of test_archives.py; hosts of a fleet have theirs, in test_fleet_captures.py.
    """
    routes = [route for router in ROUTERS for route in router.routes]
    paths = [route.path for route in routes if isinstance(route, APIWebSocketRoute)]
    into = [f"/v1/labs/{{name}}/nodes/{{node}}/{kind}" for kind in ("ssh", "console")]
    others = ("/archive", "/datasets/upload", "/fleet/archives")
    assert sorted(path for path in paths if not path.endswith(others)) == sorted(into)
    gone = here.token("gone")
    tokens.revoke(here.service.core.store, "gone")
    for kind in ("ssh", "console"):
        for wrong in ("x", here.admin[:-1], gone, here.token("past", lasts=0.001)):
            with pytest.raises(Unauthorized):
                tunnel(here, wrong, kind)
        with pytest.raises(Forbidden, match="scope use"):
            tunnel(here, here.token("looks", scope="read"), kind)
        with pytest.raises(NotFound, match="no lab 'shop'"):
            tunnel(here, here.token("other", project="other"), kind)
        with pytest.raises(NotFound, match="n7"):
            tunnel(here, kind=kind, node="n7")
    for wrong, error in (("x", Unauthorized), (here.token("reads", scope="read"), Forbidden)):
        with Client(str(here.client.base_url), wrong) as client, pytest.raises(error):
            client.datasets.upload(io.BytesIO(b"DO 1;\n"), "x.sql")
    with pytest.raises(NotReady, match="n2 of shop does not answer SSH"):
        tunnel(here, node="n2")
    until_free(here)


def test_execute_keeps_everybody_out(tmp_path: Path) -> None:
    """Protects hosts whose operator wants nobody in nodes."""
    with site(tmp_path, execute=False) as here:
        here.make("shop", token=here.token())
        for kind in ("ssh", "console"):
            with pytest.raises(Forbidden, match="access into nodes is disabled"):
                tunnel(here, kind=kind)
        assert here.ask("GET", "/v1/labs/shop/nodes/n1/ssh").status_code == 403


@pytest.mark.usefixtures("guest")
def test_a_tunnel_ends_with_its_token(here: Site) -> None:
    """Protects from who has got in once: a token that is revoked leads nowhere any more."""
    with tunnel(here, here.token("leaver")) as connection:
        assert bytes(connection.recv(timeout=10, decode=False)).startswith(b"SSH-2.0")
        tokens.revoke(here.service.core.store, "leaver")
        with pytest.raises(ConnectionClosedError, match=r"1008.*token is no longer valid"):
            connection.recv(timeout=20)
    until_free(here)


def test_a_silent_tunnel_ends(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the seats from those who forgot that they are there."""
    monkeypatch.setattr(tunnels, "IDLE", 0.5)
    wanted = pytest.raises(ConnectionClosedError, match=r"idle for 0\.5 s")
    with tunnel(here, kind="console") as connection, wanted:
        list(connection)
    until_free(here)


def test_there_are_so_many_seats(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the service from one who opens tunnels without end."""
    monkeypatch.setattr(here.service.core.limits.tunnels, "in_all", 1)
    with tunnel(here, kind="console"), pytest.raises(LimitReached) as refused:
        tunnel(here, kind="console")
    assert refused.value.retry_after == 10.0
    until_free(here)
