"""``lab ls``, ``lab status``, ``lab wait``."""

from __future__ import annotations

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.output import emit, parse_format
from lab.cli.show import lab_text, labs_text, status_text
from lab.cli.verbs import manual


@manual("lab ls", "lab ls -o name", "lab ls -o json | jq -r '.[].dsn'")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List the labs."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.labs()
    if not views and how == "table":
        app.say("no labs; `lab up pxc` makes one")
        return
    emit(
        views,
        how,
        table=lambda: labs_text(views, app.now()),
        names=lambda: [view.name for view in views],
    )


@manual("lab status", "lab status shop -o yaml")
def status(ctx: typer.Context, name: flags.Name = "", output: flags.Output = "table") -> None:
    """Look at a lab: nodes, how to reach it, what is amiss."""
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
