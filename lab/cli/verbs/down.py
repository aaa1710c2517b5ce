"""``lab down``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.errors import InvalidSpec, LabError
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
            metavar="NAME",
            show_default=False,
            autocompletion=complete.labs,
            help="The labs; optional if lab.toml names one or there is only one.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All labs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Protected labs as well.")] = False,
) -> int:
    """Remove labs and all their data."""
    app = app_of(ctx)
    if names and every:
        raise InvalidSpec("names cannot be combined with --all")
    for name in names or ():
        check_lab_name(name)
    with app.open() as session:
        if every:
            meant = session.names()
            if not meant:
                app.say("no labs to remove")
            _agree(meant, yes=yes)
        else:
            meant = list(dict.fromkeys(names or [pick(session, "")]))
        return _remove(app, session, meant, force=force)


def _remove(app: App, session: Session, names: list[str], *, force: bool) -> int:
    """Remove all that can be removed; the exit code is that of the first failure."""
    from lab.cli.terminal.failure import describe

    failed: list[LabError] = []
    for name in names:
        began = time.monotonic()
        try:
            # A removal that has begun is completed; an interrupt takes effect between two.
            with app.interrupts.shield(f"removing {name}"):
                session.down(name, force=force)
        except LabError as error:
            if len(names) == 1:
                raise
            failed.append(error)
            sys.stderr.write(describe(error))
        else:
            app.say(f"removed {name} in {time.monotonic() - began:.1f} s")
        if app.interrupts.came:
            raise KeyboardInterrupt
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
