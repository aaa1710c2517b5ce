"""``lab ls``, ``lab status``, ``lab wait``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text, labs_text, status_text
from lab.errors import NotReady
from lab.observe.states import READY
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.views.labs import LabStatus, LabView


WaitFor = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="CONDITION",
        show_default=False,
        autocompletion=complete.conditions,
        help="ready (default), online, synced, caught-up, primary=NODE, or a SELECT statement;"
        " may be repeated.",
    ),
]
ExitCode = Annotated[
    bool,
    typer.Option("--exit-code", help="Exit with status 7 unless every lab shown is ready."),
]


@manual("lab ls", "lab ls -o name", "lab ls -o json | jq -r '.[].dsn'")
def ls(ctx: typer.Context, *, exit_code: ExitCode = False, output: flags.Output = "table") -> int:
    """List the labs and their states."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.labs()
    if not views and how == "table":
        app.say("no labs; `lab up pxc` creates one")
        return 0
    emit(
        views,
        how,
        table=lambda: labs_text(views, app.now()),
        names=lambda: [view.name for view in views],
    )
    app.say_asleep(views)
    return _code(views) if exit_code else 0


@manual("lab status", "lab status shop -o yaml", "lab status shop --exit-code -o name")
def status(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    exit_code: ExitCode = False,
    output: flags.Output = "table",
) -> int:
    """Show a lab: nodes, addresses, and the requirements of each node."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        found = session.status(pick(session, name))
    emit(
        found,
        how,
        table=lambda: _text(found, app.now()),
        names=lambda: [found.lab.name],
    )
    app.say_asleep([found.lab])
    return _code([found.lab]) if exit_code else 0


def _text(found: LabStatus, now: float) -> str:
    from lab.cli.terminal.tree import topology_text

    drawn = topology_text(found.lab, sys.stdout)
    return "\n".join(filter(None, (status_text(found, now), drawn)))


def _code(views: Sequence[LabView]) -> int:
    return 0 if all(view.state in READY for view in views) else NotReady.exit_code


@manual("lab wait shop --timeout 2m", "lab wait shop --for primary=n2 --for 'SELECT 1'")
def wait(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    conditions: WaitFor = None,
    node: flags.Node = "",
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Wait until every node is ready, or conditions hold."""
    app = app_of(ctx)
    how = parse_format(output)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    from lab.lifecycle.labs.conditions import parse, until
    from lab.requests.labs import WakeLab

    wanted = [parse(text) for text in conditions or ["ready"]]
    deadline = Deadline.after(limit)
    with app.open() as session:
        lab = pick(session, name)
        if any(one.kind == "ready" for one in wanted):  # where that cannot come true, it says so
            view = session.wait(lab, timeout=limit)
        elif session.lab(lab).state == "asleep":  # the other conditions only look
            session.run(WakeLab(lab=lab))
        if any(one.kind != "ready" for one in wanted):
            where = flags.maybe_node(node)
            ask, look = partial(session.query, lab, where), partial(session.lab, lab)
            view = until(wanted, look, ask, max(deadline.left, 1.0), node=where)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
