"""``lab snapshot ...`` and ``lab rollback``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import age, lab_text, moment
from lab.cli.terminal.table import table

if TYPE_CHECKING:
    from lab.lifecycle.core.views import SnapshotView


@manual("lab snapshot take shop", "lab snapshot take shop --label before-upgrade")
def take(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    label: Annotated[
        str,
        typer.Option("--label", metavar="LABEL", show_default=False, help="A name for it."),
    ] = "",
    output: flags.Output = "table",
) -> None:
    """Take a snapshot of a running or stopped lab.

    It contains all disks of all nodes at one moment.
    """
    from lab.schedule import check_name

    app = app_of(ctx)
    how = parse_format(output)
    what = check_name(label) if label else "manual"
    with app.open() as session:
        view = session.take_snapshot(pick(session, name), what)
    emit(view, how, table=lambda: f"{view.label}\n", names=lambda: [view.label])


@manual("lab snapshot ls shop", "lab snapshot ls -o json")
def ls(ctx: typer.Context, *, name: flags.Name = "", output: flags.Output = "table") -> None:
    """List the snapshots of a lab, oldest first."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.snapshots(pick(session, name))
    emit(
        views,
        how,
        table=lambda: _table(views, app.now()),
        names=lambda: [view.label for view in views],
    )


@manual("lab snapshot rm shop before-upgrade", "lab snapshot rm shop hourly.20261121t110000")
def rm(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The lab.")],
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL...", show_default=False, help="Labels, as in `lab snapshot ls`."
        ),
    ],
) -> None:
    """Remove snapshots; the lab stays as it is."""
    app = app_of(ctx)
    with app.open() as session:
        session.remove_snapshots(pick(session, name), labels)
    app.say(f"removed {len(labels)} snapshot{'s' * (len(labels) > 1)} of {name}")


@manual("lab snapshot prune shop")
def prune(ctx: typer.Context, *, name: flags.Name = "") -> None:
    """Remove snapshots beyond the schedule's count."""
    app = app_of(ctx)
    with app.open() as session:
        done = session.prune_snapshots(pick(session, name))
    app.say("\n".join(done) or "nothing to remove")


@manual(
    "lab rollback shop                     # to its state after creation",
    "lab rollback shop --to before-upgrade",
    "lab rollback shop --node n2",
)
def rollback(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    to: Annotated[
        str,
        typer.Option("--to", metavar="LABEL", help="A snapshot, or the newest of that name."),
    ] = "origin",
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Put a lab, or one node, back to a snapshot.

    Data written since then is lost; snapshots, ports and passwords stay.
    """
    app = app_of(ctx)
    how = parse_format(output)
    one = flags.maybe_node(node)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open() as session:
        view = session.rollback(pick(session, name), to, node=one, timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


def _table(views: Sequence[SnapshotView], now: float) -> str:
    return table(
        ("LABEL", "NAME", "TAKEN", "AGE"),
        [
            (
                view.label,
                view.name,
                moment(view.at) if view.at is not None else "-",
                age(view.at, now) if view.at is not None else "-",
            )
            for view in views
        ],
    )
