"""``lab down``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.errors import Conflict, InvalidSpec, LabError
from lab.names import check_lab_name

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.cli.backend.session import Session


@manual("lab down", "lab down shop shop-2", "lab down --all --yes")
def down(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            show_default=False,
            autocompletion=complete.labs,
            help="The labs; optional if lab.toml names one or there is only one.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All labs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Protected labs as well.")] = False,
    defer: Annotated[
        bool,
        typer.Option(
            "--defer", help="End the nodes of labs with branches; remove the rest with the last."
        ),
    ] = False,
) -> int:
    """Remove labs and all their data."""
    app = app_of(ctx)
    if names and every:
        raise InvalidSpec("names cannot be combined with --all")
    for name in names or ():
        check_lab_name(name)
    with app.open() as session:
        code = 0
        if every:
            meant, own = session.names(waiting=True), session.names()
            if not meant:
                app.say("no labs to remove")
            _agree(meant, yes=yes)
            code = _remove_ahead(app, session, [name for name in meant if name not in own])
            left = session.names(waiting=True)  # those of a service's pools
            meant = [name for name in meant if name in left]
        else:
            meant = list(dict.fromkeys(names or [pick(session, "")]))
        return _remove(app, session, meant, force=force, defer=defer) or code


def _remove_ahead(app: App, session: Session, names: Sequence[str]) -> int:
    """Remove the labs that were made ahead, and what is being made; the exit code of a failure."""
    from lab.cli.terminal.failure import describe
    from lab.requests.labs import DropAhead

    if app.settings().url:
        return 0
    try:
        with app.interrupts.shield("removing labs that were made ahead"):
            session.run(DropAhead())
    except LabError as error:
        sys.stderr.write(describe(error))
        return error.exit_code
    finally:
        left = session.names(waiting=True) if names else ()
        for name in names:
            if name not in left:
                app.say(f"removed {name}, which was made ahead")
    if app.interrupts.came:
        raise KeyboardInterrupt
    return 0


def _remove(app: App, session: Session, names: list[str], *, force: bool, defer: bool) -> int:
    """Remove all that can be removed; the exit code is that of the first failure."""
    from lab.cli.terminal.failure import describe
    from lab.requests.labs import DeleteLab

    failed: list[LabError] = []
    done: set[str] = set()
    waiting: list[tuple[str, LabError]] = []
    pending, several = names, len(names) > 1
    while pending:
        waiting = []
        for name in pending:
            began = time.monotonic()
            try:
                # A removal that has begun is completed; an interrupt takes effect between two.
                with app.interrupts.shield(f"removing {name}"):
                    gone = session.run(DeleteLab(lab=name, force=force, defer=defer))
            except LabError as error:
                if not several:
                    raise
                if isinstance(error, Conflict):  # perhaps branches of it come later
                    waiting.append((name, error))
                else:
                    failed.append(error)
                    sys.stderr.write(describe(error))
            else:
                how = "removed" if gone else "ended the nodes of"
                done.add(name)
                app.say(f"{how} {name} in {time.monotonic() - began:.1f} s")
            if app.interrupts.came:
                rest = [one for one in names if one not in done]
                app.if_interrupted(f"not removed: {', '.join(rest)}" if rest else "")
                raise KeyboardInterrupt
        if len(waiting) == len(pending):
            break
        pending = [name for name, _ in waiting]
    for _, conflict in waiting:
        failed.append(conflict)
        sys.stderr.write(describe(conflict))
    return failed[0].exit_code if failed else 0


def _agree(names: list[str], *, yes: bool) -> None:
    if yes or not names:
        return
    if not sys.stdin.isatty():
        raise InvalidSpec(
            f"--all removes {len(names)} labs, and stdin is not a terminal to confirm it",
            hint="add --yes",
            details=names,
        )
    if not typer.confirm(f"Remove {', '.join(names)}?", err=True):
        raise typer.Exit(1)
