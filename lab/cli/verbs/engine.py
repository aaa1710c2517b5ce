"""``lab engine ...``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.units import format_time

if TYPE_CHECKING:
    from lab.views.catalog import EngineView


@manual("lab engine ls", "lab engine ls -o name")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List what `--engine` takes, and what is built of it."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.engines()
    emit(
        views,
        how,
        table=lambda: _table(views),
        names=lambda: dict.fromkeys(view.name for view in views),
    )


def _table(views: Sequence[EngineView]) -> str:
    rows = table(
        ("ENGINE", "SERVER", "BLUEPRINTS", "PACKAGES", "BUILD", "IMAGES", "TEMPLATES", "RUN BY"),
        [
            (
                f"{view.name} *" if view.default else view.name,
                view.server,
                ",".join(view.blueprints),
                view.packages[1] if len(view.packages) > 1 else view.packages[0],
                view.build,
                str(len(view.images)) if view.images else "-",
                str(len(view.templates)) if view.templates else "-",
                _run_by(view),
            )
            for view in views
        ],
        right={5, 6},
    )
    notes = [
        "* the default series of its engine",
        "RUN BY: who ran labs on it last, this host or the tests of lab's project",
    ]
    notes += [f"{view.server}: {view.why}" for view in views if view.why]
    return rows + "".join(f"{note}\n" for note in notes)


def _run_by(view: EngineView) -> str:
    """Who ran it, and the day: this host, if it has a template of it."""
    if view.formed_at:
        return f"this host, {format_time(view.formed_at)[:10]}"
    return f"project, {view.tested}" if view.tested else "nobody"
