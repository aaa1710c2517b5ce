"""Into a node: programs, shells, consoles, logs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from lab.errors import InvalidSpec, NotFound, NotReady
from lab.hypervisor import TooLong
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.asleep import awake
from lab.lifecycle.nodes.inspect import known_guests, node_of, record_of
from lab.lifecycle.nodes.running import require_running, require_state
from lab.lifecycle.nodes.ssh import SshLogin, known_as, ssh_command
from lab.locks.named import lock
from lab.names import GuestName, Owner
from lab.run import LONGEST_LINE
from lab.run import lines as lines_of
from lab.suggest import did_you_mean
from lab.wait import Deadline

_LOG_SECONDS = 30.0
_AGENT_SECONDS = 10.0
"""How long an agent may take to answer: it executes one request at a time."""
_IDLE = 1.0
_SOURCES = ("engine", "journal", "console")
MOST_IN = 64 << 10
MOST_OUT = 1 << 20
"""Bytes of stdin, and of each stream of output, of a program that the guest agent runs: all of
them are one request and one answer, which libvirt bounds, and a guest takes minutes to decode."""
_BY_SSH = "`lab exec` without --agent has no limit, nor has SSH through the API"


def execute(
    ctx: Context, name: str, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
) -> bytes:
    """Run a program in a node, as root, through the guest agent; returns its stdout.

    It needs no network. Raises NotFound, InvalidSpec (more than ``MOST_IN`` bytes of ``stdin``),
    CommandFailed (non-zero exit), TooLong (more than ``MOST_OUT`` bytes of output) or NotReady
    (after ``timeout`` seconds, or soon if the agent does not answer).
    """
    if len(stdin) > MOST_IN:
        raise InvalidSpec(
            f"the guest agent takes {MOST_IN >> 10} KiB of stdin, not {len(stdin)} bytes",
            hint=_BY_SSH,
        )
    guest = _running(ctx, name, node)
    # So that nobody puts the lab to sleep meanwhile, which neither servers nor ports would show.
    with lock(ctx.home, "use", name, shared=True, deadline=Deadline.after(timeout)):
        channel = ctx.hypervisor.channel(guest)
        if not channel.ping(min(timeout, _AGENT_SECONDS)):
            raise NotReady(
                f"the guest agent of {node} of {name} does not answer",
                hint=f"`lab logs {name} --node {node} --source console` shows what the guest does",
            )
        try:
            return channel.run(argv, stdin=stdin, timeout=timeout, most=MOST_OUT)
        except TooLong as error:
            error.hint = _BY_SSH
            raise


def ssh_argv(ctx: Context, name: str, node: str) -> list[str]:
    """The command that opens a shell in a node; its host key is known, nothing is asked.

    Raises NotFound, NotReady if it does not run.
    """
    return ssh_command(ctx.home.private(Owner("lab", name)), *_ssh_place(ctx, name, node))


def ssh_login(ctx: Context, name: str, node: str) -> SshLogin:
    """What ssh needs for a node elsewhere than here; raises NotFound, NotReady."""
    host, port = _ssh_place(ctx, name, node)
    private = ctx.home.private(Owner("lab", name))
    try:
        key = (private / "id_ed25519").read_text(encoding="utf-8")
        known = (private / "known_hosts").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotReady(f"the lab {name} has no key for SSH (yet)") from None
    lines = [line for line in known.splitlines() if line.split()[:1] == [known_as(host, port)]]
    return SshLogin(host, port, key, "".join(f"{line}\n" for line in lines))


def _ssh_place(ctx: Context, name: str, node: str) -> tuple[str, int]:
    """The address and port, on the host of the labs, at which a node takes SSH."""
    found = node_of(ctx, name, node)
    if not found.ssh_port:
        record_of(ctx, name)
    _running(ctx, name, node)  # else another may listen at its port
    return found.ssh_host, found.ssh_port


def console_argv(ctx: Context, name: str, node: str) -> list[str]:
    """The command that connects a terminal to a node's console."""
    awake(ctx, name)
    guest = node_of(ctx, name, node).guest
    if guest not in known_guests(ctx):
        require_state(name, node, "stopped")
    return ctx.hypervisor.console_argv(guest)


def logs(ctx: Context, name: str, node: str, source: str, *, lines: int) -> Iterator[str]:
    """The last ``lines`` lines of a log.

    ``source``: ``engine`` (the server's own), ``journal`` (all of the guest's) or
    ``console``. Raises InvalidSpec, NotFound, NotReady or CommandFailed.
    """
    if source == "console":
        with _console(ctx, name, node) as file:
            return iter([line.rstrip("\r\n") for line in deque(_cut(file), maxlen=lines)])
    argv = _journal(ctx, name, node, source, lines)
    text = execute(ctx, name, node, argv, timeout=_LOG_SECONDS)
    return iter(text.decode(errors="replace").splitlines())


def follow(
    ctx: Context, name: str, node: str, source: str, *, lines: int, idle: float = _IDLE
) -> Iterator[str | None]:
    """Yield the lines of ``logs``, then each new line, until it is closed or the node ends.

    None whenever nothing came for ``idle`` seconds. The context is not used once this returned.
    """
    if source == "console":
        path = ctx.home.console_log(node_of(ctx, name, node).guest)
        return _growing(_console(ctx, name, node), path, lines, idle)
    argv = [*_journal(ctx, name, node, source, lines), "-f"]
    return lines_of([*ssh_argv(ctx, name, node), " ".join(argv)], idle=idle)


def _journal(ctx: Context, name: str, node: str, source: str, lines: int) -> list[str]:
    """The command that prints a log in the guest; raises InvalidSpec if there is none such."""
    if source not in _SOURCES:
        known = f"sources: {', '.join(_SOURCES)}"
        hint = did_you_mean(source, _SOURCES, otherwise=known)
        raise InvalidSpec(f"there is no log {source!r}", hint=hint)
    argv = ["journalctl", "--no-pager", "-o", "short-iso", "-n", str(lines)]
    if source == "engine":
        from lab.lifecycle.images.ready import engine_units

        argv += [*engine_units(ctx, node_of(ctx, name, node).image), "-o", "cat"]
    return argv


def _running(ctx: Context, name: str, node: str) -> GuestName:
    guest = node_of(ctx, name, node).guest
    awake(ctx, name)
    require_running(known_guests(ctx), name, node, guest)
    return guest


def _console(ctx: Context, name: str, node: str) -> TextIO:
    """What a node wrote to its console; raises NotFound."""
    path = ctx.home.console_log(node_of(ctx, name, node).guest)
    try:
        return path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError:
        raise NotFound(f"there is no console log {path}") from None


def _growing(file: TextIO, path: Path, lines: int, idle: float) -> Iterator[str | None]:
    with file:
        for line in deque(_cut(file), maxlen=lines):
            yield line.rstrip("\r\n")
        while True:
            deadline = Deadline.after(idle)
            while not (line := file.readline(LONGEST_LINE)) and not deadline.passed:
                time.sleep(min(0.2, idle))
            if not line and not _is_at(file, path):
                return  # the lab is gone, or has another
            yield line.rstrip("\r\n") if line else None


def _cut(file: TextIO) -> Iterator[str]:
    """The lines of a file; what a guest writes need not have any."""
    return iter(lambda: file.readline(LONGEST_LINE), "")


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
