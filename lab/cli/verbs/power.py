"""``lab start``, ``lab stop``, ``lab promote``, ``lab extend``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.complete import labs, labs_and_nodes
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import expiry, lab_text


@manual("lab start shop", "lab start shop --node n2")
def start(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Start a stopped lab, or one node, and wait for it."""
    from lab.requests.labs import StartLab

    app = app_of(ctx)
    how = parse_format(output)
    one = flags.maybe_node(node) or ""
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open(doing="stopping the started nodes") as session:
        lab = pick(session, name)
        app.if_interrupted(f"`lab start {lab}` starts it again")
        view = session.run(StartLab(lab=lab, node=one), timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


@manual("lab stop shop", "lab stop shop --node n2 --force    # as if its power failed")
def stop(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    node: flags.Node = "",
    force: Annotated[
        bool, typer.Option("--force", help="Immediately, without a shutdown.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Stop a lab, or one node of it; its disks stay."""
    from lab.requests.labs import StopLab

    app = app_of(ctx)
    how = parse_format(output)
    one = flags.maybe_node(node) or ""
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(f"nodes of {lab} may still run; `lab stop {lab}` stops them")
        view = session.run(StopLab(lab=lab, node=one, force=force))
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


@manual("lab promote shop n2", "lab promote n2", "lab promote shop n2 --force    # n1 is lost")
def promote(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] NODE",
            show_default=False,
            autocompletion=labs_and_nodes,
            help="The lab (optional, as for other commands), and the node, as n2 or 2.",
        ),
    ],
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if the node that takes writes is lost; it is powered off."
        ),
    ] = False,
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Let another node take the writes of a lab."""
    from lab.requests.labs import Promote

    app = app_of(ctx)
    how = parse_format(output)
    lab, word = flags.lab_and("a node", words, "lab promote shop n2")
    node = flags.node(word)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    with app.open() as session:
        lab = pick(session, lab)
        app.if_interrupted(
            f"`lab status {lab}` shows which node takes writes;"
            f" `lab promote {lab} {node}` again completes the promotion"
        )
        view = session.run(Promote(lab=lab, node=node, force=force), timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


@manual("lab extend shop 2h", "lab extend 1d", "lab extend shop none    # no end")
def extend(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] TTL",
            show_default=False,
            autocompletion=labs,
            help="The lab (optional, as for other commands), and the time from now, or none.",
        ),
    ],
    output: flags.Output = "table",
) -> None:
    """Set a new lease, counted from now."""
    from lab.requests.labs import ChangeLab

    app = app_of(ctx)
    how = parse_format(output)
    name, word = flags.lab_and("a time", words, "lab extend shop 2h")
    ttl = flags.lease("TTL", word)
    no_end = "every lab of a service has a lease with an end"
    opened = app.open_here(no_end, "give a time, such as 8h") if ttl is None else app.open()
    with opened as session:
        asked = ChangeLab(lab=pick(session, name), ttl=ttl, endless=ttl is None)
        view = session.run(asked)
    lease = expiry(view.expires_at, app.now()) or "never"
    emit(view, how, table=lambda: f"{view.name} expires: {lease}\n", names=lambda: [view.name])
