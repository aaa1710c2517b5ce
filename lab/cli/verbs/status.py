"""``lab ls``, ``lab status``, ``lab wait``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text, labs_text, status_text
from lab.errors import NotReady
from lab.lifecycle.core.views import READY

if TYPE_CHECKING:
    from lab.lifecycle.core.views import LabView


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
        table=lambda: status_text(found, app.now()),
        names=lambda: [found.lab.name],
    )
    return _code([found.lab]) if exit_code else 0


def _code(views: Sequence[LabView]) -> int:
    return 0 if all(view.state in READY for view in views) else NotReady.exit_code


@manual("lab wait shop --timeout 2m")
def wait(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Wait until every node of a lab is ready."""
    app = app_of(ctx)
    how = parse_format(output)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open() as session:
        view = session.wait(pick(session, name), timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
