"""``lab sleep`` and ``lab wake``."""

from __future__ import annotations

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text


@manual("lab sleep shop")
def sleep(ctx: typer.Context, *, name: flags.Name = "", output: flags.Output = "table") -> None:
    """Pause all nodes of a lab until it is used again.

    It keeps its memory and takes no processor; connections stay open. `lab wake` and commands that
    need its nodes resume it. Connections do so only while a service (`lab serve`) runs here.
    """
    from lab.requests.labs import SleepLab

    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(f"`lab wake {lab}` resumes nodes that are paused")
        view = session.run(SleepLab(lab=lab))
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
    app.say_asleep([view])


@manual("lab wake shop")
def wake(ctx: typer.Context, *, name: flags.Name = "", output: flags.Output = "table") -> None:
    """Resume a lab that is asleep, and set its clocks."""
    from lab.requests.labs import WakeLab

    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        lab = pick(session, name)
        app.if_interrupted(f"`lab wake {lab}` wakes it")
        view = session.run(WakeLab(lab=lab))
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
