"""Into a node: programs, shells, consoles, logs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.context import Context
from lab.lifecycle.look import node_of, record_of
from lab.names import GuestName, Owner
from lab.run import lines as lines_of
from lab.suggest import did_you_mean

_LOG_SECONDS = 30.0
_SOURCES = ("engine", "journal", "console")


def execute(
    ctx: Context, name: str, node: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
) -> bytes:
    """Run a program in a node, as root, through the guest agent; returns its stdout.

    Raises NotFound, CommandFailed (non-zero exit) or NotReady (after ``timeout`` seconds).
    """
    guest = _running(ctx, name, node)
    return ctx.hypervisor.channel(guest).run(argv, stdin=stdin, timeout=timeout)


def ssh_argv(ctx: Context, name: str, node: str) -> list[str]:
    """The command that opens a shell in a node; its host key is known, nothing is asked."""
    found = node_of(ctx, name, node)
    if not found.ssh_port:
        record_of(ctx, name)
    private = ctx.home.private(Owner("lab", name))
    options = {
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(private / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
    }
    argv = ["ssh", "-i", str(private / "id_ed25519"), "-p", str(found.ssh_port)]
    for option, value in options.items():
        argv += ["-o", f"{option}={value}"]
    return [*argv, f"root@{found.ssh_host}"]


def console_argv(ctx: Context, name: str, node: str) -> list[str]:
    """The command that connects a terminal to a node's console."""
    return ctx.hypervisor.console_argv(_running(ctx, name, node))


def logs(
    ctx: Context, name: str, node: str, source: str, *, follow: bool, lines: int
) -> Iterator[str]:
    """The last ``lines`` lines of a log, and with ``follow`` what comes after.

    ``source``: ``engine`` (the server's own), ``journal`` (all of the guest's) or
    ``console``. Raises InvalidSpec, NotFound, NotReady or CommandFailed.
    """
    if source not in _SOURCES:
        known = f"sources: {', '.join(_SOURCES)}"
        hint = did_you_mean(source, _SOURCES, otherwise=known)
        raise InvalidSpec(f"there is no log {source!r}", hint=hint)
    if source == "console":
        return _file(ctx.home.console_log(node_of(ctx, name, node).guest), lines, follow=follow)
    argv = ["journalctl", "--no-pager", "-o", "short-iso", "-n", str(lines)]
    if source == "engine":
        argv += ["-u", "mariadb.service", "-u", "mysql.service", "-o", "cat"]
    if follow:
        return lines_of([*ssh_argv(ctx, name, node), " ".join([*argv, "-f"])])
    text = execute(ctx, name, node, argv, timeout=_LOG_SECONDS)
    return iter(text.decode(errors="replace").splitlines())


def _running(ctx: Context, name: str, node: str) -> GuestName:
    guest = node_of(ctx, name, node).guest
    if guest not in ctx.hypervisor.guests():
        raise NotFound(
            f"{node} of {name} does not run", hint=f"`lab start {name} --node {node}` starts it"
        )
    return guest


def _file(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError:
        raise NotFound(f"there is no console log {path}") from None
    with file:
        for line in deque(file, maxlen=lines):
            yield line.rstrip("\r\n")
        while follow:
            line = file.readline()
            if line:
                yield line.rstrip("\r\n")
            else:
                time.sleep(0.2)
