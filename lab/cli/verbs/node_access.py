"""``lab exec``, ``lab ssh``, ``lab logs``, ``lab console``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.child import run_child
from lab.cli.terminal.in_node import run_in_node
from lab.errors import CommandFailed, InvalidSpec
from lab.suggest import did_you_mean
from lab.texts import harmless

if TYPE_CHECKING:
    from lab.cli.app import App

HOUR = 3600.0


@manual(
    "lab exec shop -- uname -a",
    "lab exec shop --node n2 -- systemctl restart mariadb",
    "lab exec --stdin -- mariadb < dump.sql",
    "lab exec shop --agent -- ip link",
    takes_command=True,
)
def execute(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass stdin to the command.")
    ] = False,
    agent: Annotated[
        bool,
        typer.Option(
            "--agent",
            help="By the guest agent: without a network, 64 KiB in and 1 MiB out at most.",
        ),
    ] = False,
    timeout: flags.Timeout = "",
) -> int:
    """Run a command in a node as root and exit with its status.

    Its streams go through SSH, so they have no limit, and signals are passed to it. It ends when
    all programs that have its stdout did: one in the background needs another (`>/dev/null 2>&1`).
    With --agent its output is printed when it has ended.
    """
    app = app_of(ctx)
    argv = app.command("lab exec shop -- uname -a")
    where = flags.node(node)
    limit = flags.timeout(timeout, HOUR)
    if agent:
        return _by_agent(app, name, where, argv, stdin=stdin, timeout=limit)
    with app.open() as session:
        opened = session.ssh(pick(session, name), where)
    with opened as way:
        return run_in_node(
            way.argv, where, argv, app.interrupts, stdin=stdin, timeout=limit, env=way.env
        )


def _by_agent(
    app: App, name: str, node: str, argv: Sequence[str], *, stdin: bool, timeout: float
) -> int:
    from lab.lifecycle.labs.node_access import MOST_IN

    # One byte more than the agent takes: that much is refused there.
    sent = sys.stdin.buffer.read(MOST_IN + 1) if stdin else b""
    try:
        with app.open() as session:
            printed = session.execute(pick(session, name), node, argv, stdin=sent, timeout=timeout)
    except CommandFailed as error:
        if error.argv[:1] != tuple(argv[:1]):
            raise  # a program that lab runs, not the user's command
        text = harmless(error.stderr) if sys.stderr.isatty() else error.stderr
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        return error.status if 0 < error.status < 256 else 128 - error.status
    if sys.stdout.isatty():
        sys.stdout.write(harmless(printed.decode(errors="replace")))
        return 0
    sys.stdout.flush()
    sys.stdout.buffer.write(printed)
    return 0


@manual("lab ssh shop", "lab ssh shop --node n3 -- journalctl -n 20", takes_command=True)
def ssh(ctx: typer.Context, name: flags.Name = "", node: flags.Node = "") -> int:
    """Open a shell in a node, or run a command there over SSH."""
    app = app_of(ctx)
    where = flags.node(node)
    with app.open() as session:
        opened = session.ssh(pick(session, name), where)
    with opened as found:
        argv = [*found.argv, *(app.after_dashes or ())]
        return run_child(argv, app.interrupts, env=found.env)


@manual(
    "lab logs shop",
    "lab logs shop --node n2 -f",
    "lab logs shop --source console -n 500",
)
def logs(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="SOURCE",
            autocompletion=complete.sources,
            help="engine (its error log), journal or console.",
        ),
    ] = "engine",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new lines as they are written.")
    ] = False,
    lines: Annotated[
        str, typer.Option("-n", "--lines", metavar="N", help="Number of lines, from the end.")
    ] = "100",
) -> None:
    """Print the last lines of a node's log."""
    app = app_of(ctx)
    where = flags.node(node)
    if source not in complete.SOURCES:
        known = ", ".join(complete.SOURCES)
        hint = did_you_mean(source, complete.SOURCES, otherwise=f"one of {known}")
        raise InvalidSpec(f"--source: unknown log {source!r}", hint=hint)
    count = flags.whole("--lines", lines)
    if count < 0:
        raise InvalidSpec(f"--lines: {count} is negative")
    with app.open() as session:
        meant = pick(session, name)
        terminal = sys.stdout.isatty()
        for found in session.logs(meant, where, source, follow=follow, lines=count):
            line = harmless(found) if terminal else found
            sys.stdout.write(line if line.endswith("\n") else f"{line}\n")
            if follow:
                sys.stdout.flush()


@manual("lab console shop --node n2")
def console(ctx: typer.Context, name: flags.Name = "", node: flags.Node = "") -> int:
    """Connect the terminal to a node's console; Ctrl-] leaves it."""
    app = app_of(ctx)
    where = flags.node(node)
    with app.open() as session:
        found = session.console(pick(session, name), where)
    return run_child(found.argv, app.interrupts, env=found.env)
