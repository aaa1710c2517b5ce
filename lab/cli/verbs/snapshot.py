"""``lab snapshot ...`` and ``lab rollback``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.complete import removable_snapshots, snapshots
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import age, lab_text, left, moment
from lab.cli.terminal.table import table
from lab.units import counted, format_size

if TYPE_CHECKING:
    from lab.views.snapshots import SnapshotView

Label = Annotated[
    str,
    typer.Argument(
        metavar="LABEL",
        show_default=False,
        autocompletion=snapshots,
        help="A label, as in `lab snapshot ls`, or the newest of that name.",
    ),
]


@manual(
    "lab snapshot take shop",
    "lab snapshot take shop --label before-upgrade --protect",
    "lab snapshot take shop --disks-only --ttl 2h",
)
def take(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    label: Annotated[
        str,
        typer.Option("--label", metavar="LABEL", show_default=False, help="A name for it."),
    ] = "",
    disks_only: Annotated[
        bool, typer.Option("--disks-only", help="Without the RAM of running nodes.")
    ] = False,
    ttl: Annotated[
        str,
        typer.Option(
            "--ttl",
            metavar="TIME",
            show_default=False,
            help="Remove it after this time, such as 2h, once no lab or snapshot needs it.",
        ),
    ] = "",
    protect: Annotated[
        bool, typer.Option("--protect", help="It is removed only with --force.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Take a snapshot of a running or stopped lab.

    It contains all disks of all nodes at one moment and, if all of them run, their RAM.
    """
    from lab.requests.snapshots import TakeSnapshot
    from lab.schedule import check_name

    app = app_of(ctx)
    how = parse_format(output)
    what = check_name(label) if label else "manual"
    lasts = flags.lease("--ttl", ttl) if ttl else None
    with app.open(doing="removing the unfinished snapshot") as session:
        asked = TakeSnapshot(
            lab=pick(session, name),
            name=what,
            disks_only=disks_only,
            ttl=lasts,
            protected=protect,
        )
        view = session.run(asked)
    emit(view, how, table=lambda: f"{view.label}\n", names=lambda: [view.label])
    app.say(_about(view))


@manual("lab snapshot ls shop", "lab snapshot ls shop --tree", "lab snapshot ls -o json")
def ls(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    tree: Annotated[
        bool, typer.Option("--tree", help="Show which descends from which, and branches.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """List the snapshots of a lab, oldest first."""
    from lab.cli.terminal.tree import tree_text

    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.snapshots(pick(session, name))
    emit(
        views,
        how,
        table=lambda: tree_text(views, app.now(), sys.stdout) if tree else _table(views, app.now()),
        names=lambda: [view.label for view in views],
    )


@manual("lab snapshot protect shop before-upgrade")
def protect(ctx: typer.Context, name: flags.Lab, label: Label) -> None:
    """Protect a snapshot: it does not expire, `rm` needs --force."""
    _protect(ctx, name, label, protected=True)


@manual("lab snapshot unprotect shop before-upgrade")
def unprotect(ctx: typer.Context, name: flags.Lab, label: Label) -> None:
    """End the protection of a snapshot."""
    _protect(ctx, name, label, protected=False)


def _protect(ctx: typer.Context, name: str, label: str, *, protected: bool) -> None:
    from lab.requests.snapshots import ChangeSnapshot

    app = app_of(ctx)
    with app.open() as session:
        asked = ChangeSnapshot(lab=pick(session, name), label=label, protected=protected)
        view = session.run(asked)
    app.say(f"{view.label} of {name} is {'' if view.protected else 'not '}protected")


@manual(
    "lab snapshot rm shop before-upgrade",
    "lab snapshot rm shop hourly.20261121t110000",
    "lab snapshot rm shop before-upgrade --force    # although it is protected",
)
def rm(
    ctx: typer.Context,
    name: flags.Lab,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL...",
            show_default=False,
            autocompletion=removable_snapshots,
            help="Labels, as in `lab snapshot ls`.",
        ),
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Protected snapshots as well.")] = False,
) -> None:
    """Remove snapshots; the lab stays as it is."""
    from lab.requests.snapshots import DeleteSnapshots

    app = app_of(ctx)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(
            f"some may be removed; `lab snapshot ls {lab}` lists those that are left"
        )
        session.run(DeleteSnapshots(lab=lab, labels=tuple(labels), force=force))
    app.say(f"removed {counted(len(labels), 'snapshot')} of {name}")


@manual("lab snapshot prune shop")
def prune(ctx: typer.Context, *, name: flags.Name = "") -> None:
    """Remove snapshots that expired or exceed the schedule's count."""
    from lab.requests.snapshots import PruneSnapshots

    app = app_of(ctx)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(f"some may be removed; `lab snapshot prune {lab}` removes the rest")
        done = session.run(PruneSnapshots(lab=lab))
    app.say("\n".join(done) or "nothing to remove")


@manual(
    "lab rollback shop                     # to its state after creation",
    "lab rollback shop --to before-upgrade",
    "lab rollback shop --to before-upgrade --cold",
    "lab rollback shop --node n2",
)
def rollback(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="LABEL",
            autocompletion=snapshots,
            help="A snapshot, or the newest of that name.",
        ),
    ] = "origin",
    cold: Annotated[
        bool, typer.Option("--cold", help="Cold boot: do not restore RAM from the snapshot.")
    ] = False,
    keep_sessions: flags.KeepSessions = False,
    timeout: flags.Timeout = "",
    output: flags.Output = "table",
) -> None:
    """Put a lab, or one node, back to a snapshot.

    Data written since then is lost; snapshots, ports and passwords stay. Nodes resume from the
    snapshot's RAM if it has it, else they boot; a single node always boots.
    """
    from lab.requests.labs import RollBack

    app = app_of(ctx)
    how = parse_format(output)
    one = flags.maybe_node(node) or ""
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(
            f"if the rollback had begun, {lab} is stopped and `lab start {lab}` completes it;"
            f" `lab status {lab}` shows it"
        )
        asked = RollBack(lab=lab, to=to, node=one, cold=cold, keep_sessions=keep_sessions)
        view = session.run(asked, timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


def _about(view: SnapshotView) -> str:
    """For how long nodes were paused, and what RAM the snapshot has, or why it has none."""
    has = f"{format_size(view.ram)} of RAM on disk" if view.warm else f"disks only: {view.why_cold}"
    return f"nodes were paused for {view.pause:.2f} s; {has}" if view.pause else has


def _table(views: Sequence[SnapshotView], now: float) -> str:
    return table(
        ("LABEL", "NAME", "TAKEN", "AGE", "RAM", "EXPIRES", "PROTECTED"),
        [
            (
                view.label,
                view.name,
                moment(view.at) if view.at is not None else "-",
                age(view.at, now) if view.at is not None else "-",
                format_size(view.ram) if view.warm else "-",
                left(view.expires_at, now),
                "yes" if view.protected else "-",
            )
            for view in views
        ],
        right={4},
    )
