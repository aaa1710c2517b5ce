"""Logs that are followed through the service, and who stops listening."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.client import Client
from lab.errors import CommandFailed, LimitReached, NotFound
from tests.support.serve_world import Site, site


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.make("shop")
        yield found


@pytest.fixture
def client(here: Site) -> Iterator[Client]:
    with Client(str(here.client.base_url), here.admin) as found:
        yield found


def until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def console(here: Site) -> Path:
    return here.service.core.settings.home.console_log("lab-shop-n1")


def ssh(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``ssh`` be this."""
    program = directory / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_each_line_comes_when_it_is_written(here: Site, client: Client) -> None:
    before = client.logs("shop", "n1", "console")
    with closing(client.follow("shop", "n1", "console", lines=1)) as found:  # type: ignore[type-var]
        assert next(found) == before[-1]
        for text in ("one", "tw\N{LATIN SMALL LETTER O WITH DIAERESIS}"):
            with console(here).open("a") as file:
                file.write(f"{text}\n")
            assert next(found) == text
        assert here.service.core.limits.followers.used() == 1
    until(lambda: here.service.core.limits.followers.used() == 0)


def test_who_leaves_ends_what_runs_for_him(
    here: Site, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the host from SSH connections that nobody reads."""
    pid = tmp_path / "pid"
    ssh(tmp_path, f"echo $$ > {pid}; echo a line; exec sleep 60", monkeypatch)
    with closing(client.follow("shop", "n1")) as found:  # type: ignore[type-var]
        assert next(found) == "a line"
        process = int(pid.read_text())
        os.kill(process, 0)
    until(lambda: not Path(f"/proc/{process}").exists())
    assert here.service.core.limits.followers.used() == 0


def test_what_ends_it_is_told(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from taking a node that went away for one that is silent."""
    ssh(tmp_path, "echo a line; exit 255", monkeypatch)
    found = client.follow("shop", "n1", "journal")
    assert next(found) == "a line"
    with pytest.raises(CommandFailed) as failed:
        next(found)
    assert failed.value.status == 255
    with pytest.raises(NotFound, match="no node n7"):
        next(client.follow("shop", "n7", "console"))


@pytest.mark.rare
def test_a_busy_log_ends_with_its_token(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects what is said in a node from a token that was revoked."""
    ssh(tmp_path, "while echo a line; do sleep 0.1; done", monkeypatch)
    text = here.token("gone", project="admin")
    with Client(str(here.client.base_url), text) as client:
        found = client.follow("shop", "n1")
        assert next(found) == "a line"
        (token,) = [one for one in here.service.core.store.tokens.all() if one.name == "gone"]
        here.service.core.store.tokens.update(token.id, revoked_at=time.time())
        list(found)  # it ends


def test_a_console_ends_with_its_lab(here: Site, client: Client) -> None:
    """Protects seats from those who listen to what is gone."""
    found = client.follow("shop", "n1", "console")
    next(found)
    here.ask("DELETE", "/v1/labs/shop?wait=20")
    list(found)  # it ends
    until(lambda: here.service.core.limits.followers.used() == 0)


def test_not_too_many_at_once(here: Site, client: Client) -> None:
    """Protects requests from followers, and lets the service end while some listen."""
    several = [
        client.follow("shop", "n1", "console")
        for _ in range(here.service.core.limits.followers.per_token)
    ]
    for one in several:
        next(one)
    with pytest.raises(LimitReached):
        next(client.follow("shop", "n1", "console"))
    assert client.logs("shop", "n1", "console")
    here.service.stop()
    for one in several:
        list(one)  # it ends


def test_the_command_line(here: Site) -> None:
    """Protects `lab logs -f`: it prints lines as they come, until it is interrupted."""
    env = {**os.environ, "LAB_URL": str(here.client.base_url), "LAB_TOKEN": here.admin}
    argv = [sys.executable, "-m", "lab", "logs", "shop", "--source", "console", "-f", "-n", "1"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "restored" in process.stdout.readline()
        with console(here).open("a") as file:
            file.write("later\n")
        assert process.stdout.readline() == "later\n"
        process.terminate()
    assert process.returncode == 130
    until(lambda: here.service.core.limits.followers.used() == 0)
