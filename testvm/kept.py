"""A guest that keeps running, for who writes tests: boot once, run many times."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from lab.errors import Conflict, LabError, NotFound
from lab.locks import flock
from lab.run import run
from lab.wait import Deadline
from testvm import machine
from testvm.checkout import archive
from testvm.release import ROOT, Release
from testvm.runner import CHECKOUT, check, describe, environment
from testvm.session import Session

BOOT_SECONDS = 180.0
DAY = 86400.0
LEAVE = b"\x1d"
"""Ctrl-]: ends the view of the console."""


def keep(
    cache: Path,
    image: Path,
    release: Release,
    say: Callable[[str], object],
    *,
    accelerator: machine.Accelerator,
    memory: int,
    load: machine.Load = machine.Load.TESTS,
    given: Path | None = None,
) -> None:
    """Boot ``image`` and keep it running until it is switched off or we are interrupted."""
    agent, console = _sockets(cache, release)
    with (
        _alone(cache / f"{release.suite}.kept", f"a {release.suite} guest is kept already"),
        machine.initrd(image) as initrd,
    ):
        for path in (agent, console):
            path.unlink(missing_ok=True)
        argv = machine.argv(
            image, initrd, accelerator, _listening(agent), console=_listening(console),
            memory=memory, once=False, load=load, given=given,
        )  # fmt: skip
        threading.Thread(target=_announce, args=(cache, release, say), daemon=True).start()
        try:
            run(argv, timeout=DAY)
        finally:
            for path in (agent, console):
                path.unlink(missing_ok=True)


def execute(
    cache: Path, release: Release, argv: Sequence[str], out: BinaryIO, *, timeout: float = DAY
) -> int:
    """Copy the checkout into the kept guest and run ``argv`` there; its exit status.

    Raises NotFound if there is none, Conflict if something runs in it.
    """
    deadline = Deadline.after(timeout)
    with _session(cache, release, deadline) as session:
        session.unpack(CHECKOUT, archive(ROOT))
        return session.run(argv, cwd=CHECKOUT, env=environment(release), out=out)


def console(cache: Path, release: Release) -> None:
    """Connect this terminal to the shell on the kept guest's console, until Ctrl-]."""
    _, path = _sockets(cache, release)
    with _connected(path, release) as channel, _raw_terminal():
        channel.sendall(b"\n")
        while True:
            readable, _, _ = select.select([channel, sys.stdin], [], [])
            if channel in readable:
                data = channel.recv(4096)
                if not data:
                    return
                os.write(sys.stdout.fileno(), data)
            if sys.stdin in readable:
                data = os.read(sys.stdin.fileno(), 4096)
                if not data or LEAVE in data:
                    return
                channel.sendall(data)


def _listening(path: Path) -> str:
    return f"socket,path={machine.escaped(path)},server=on,wait=off"


def _announce(cache: Path, release: Release, say: Callable[[str], object]) -> None:
    deadline = Deadline.after(BOOT_SECONDS)
    agent, _ = _sockets(cache, release)
    while not agent.exists() and not deadline.passed:
        threading.Event().wait(0.1)
    try:
        with _session(cache, release, deadline) as session:
            check(session.facts, release)
            say(describe(session.facts))
            say(f"run in it: {_command('exec', release)} -- pytest ARGS")
    except LabError as error:
        say(f"{error}; its console: {_command('console', release)}")


def _command(verb: str, release: Release) -> str:
    return f".venv/bin/python -m testvm {verb} --release {release.suite}"


@contextlib.contextmanager
def _session(cache: Path, release: Release, deadline: Deadline) -> Iterator[Session]:
    agent, _ = _sockets(cache, release)
    with (
        _connected(agent, release) as channel,
        _alone(cache / f"{release.suite}.session", f"something runs in the {release.suite} guest"),
    ):
        session = Session(channel, deadline)
        session.hello(secrets.token_hex(8))
        yield session


def _sockets(cache: Path, release: Release) -> tuple[Path, Path]:
    return cache / f"{release.suite}.agent", cache / f"{release.suite}.console"


def _connected(path: Path, release: Release) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(str(path))
    except OSError:
        channel.close()
        raise NotFound(
            f"no {release.suite} guest is kept running",
            hint=f"start one, in another terminal: make test-zfs-keep ZFS_RELEASES={release.suite}",
        ) from None
    return channel


@contextlib.contextmanager
def _alone(path: Path, busy: str) -> Iterator[None]:
    with path.open("a") as file:
        if not flock.try_take(file.fileno()):
            raise Conflict(busy, hint="wait for it, or end it")
        yield


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
