"""``lab reset`` and ``lab standby``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import App, app_of, pick
from lab.cli.complete import snapshots
from lab.cli.manual import manual
from lab.cli.terminal.output import Format, emit, parse_format
from lab.cli.terminal.show import lab_text, labs_text

_To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="LABEL",
        autocompletion=snapshots,
        show_default=False,
        help="A snapshot, or the newest of that name; default: the one that the lab was put back to"
        " last, its origin at first.",
    ),
]


@manual("lab reset shop --to loaded", "lab reset shop        # once more")
def reset(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    to: _To = "",
    once: Annotated[
        bool, typer.Option("--once", help="Make no standby for the next reset.")
    ] = False,
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Put a lab back to a snapshot by its standby.

    A standby is the lab's nodes once more, as at the snapshot, restored and paused: the lab is
    ready again in a fraction of a second. Then the next one is made in the background. A reset
    that finds none takes as long as `lab rollback`.
    """
    from lab.requests.labs import ResetLab

    app = app_of(ctx)
    how = parse_format(output)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(
            f"if the reset had begun, `lab start {lab}` completes it; `lab status {lab}` shows it"
        )
        view = session.run(ResetLab(lab=lab, to=to, once=once), timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


@manual("lab standby shop --to loaded", "lab standby shop --remove", "lab standby --ahead")
def standby(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    to: _To = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the standby.")] = False,
    ahead: Annotated[
        bool,
        typer.Option(
            "--ahead", help="Not of a lab: whole labs for the next `lab up` (the setting standby)."
        ),
    ] = False,
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Make a standby of a lab for the next reset.

    A standby is the lab's nodes once more, as at a snapshot: restored, checked and paused. It takes
    about 100 MiB of memory a node, and no processor; it is used for an hour.
    """
    from lab.errors import InvalidSpec
    from lab.requests.labs import DropStandby, MakeStandby

    app = app_of(ctx)
    how = parse_format(output)
    if ahead:
        if name or to:
            raise InvalidSpec("labs ahead are like the lab that was created last: name no lab")
        _ahead(app, how, timeout, remove=remove)
        return
    if to and remove:
        raise InvalidSpec("--to names the snapshot of a standby to make: leave it or --remove out")
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open(doing="removing the standby") as session:
        lab = pick(session, name)
        asked = DropStandby(lab=lab) if remove else MakeStandby(lab=lab, to=to)
        view = session.run(asked, timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


def _ahead(app: App, how: Format, timeout: str, *, remove: bool) -> None:
    from lab.requests.labs import DropAhead, MakeAhead

    limit = flags.timeout(timeout, app.settings().ready_timeout)
    doing = "removing what is not complete"
    with app.open_here("labs are made ahead", "a service has pools", doing=doing) as session:
        views = session.run(DropAhead() if remove else MakeAhead(), timeout=limit)
    emit(
        views, how, table=lambda: labs_text(views, app.now()), names=lambda: [v.name for v in views]
    )
