"""``lab engine ...``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import facts, table
from lab.units import format_time

if TYPE_CHECKING:
    from lab.views.catalog import EngineView

_HERE = "builds are added on the host that runs them: they are foreign programs"


@manual(
    "lab engine add mariadb-11.4.5 --from mariadb-11.4.5-linux-systemd-x86_64.tar.gz",
    "lab engine add mine --from ~/server/build/install --force",
)
def add(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="What --engine will take.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PATH",
            show_default=False,
            help="A tar archive, a zip, a directory with an installed build, a Debian package, or a"
            " directory of these.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace an added engine of that name.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Add a build of a server as an engine.

    Its programs say what it is; they run without network, as nobody. Labs with `--engine NAME` get
    it on the Debian release that has the libraries it needs.
    """
    from lab.requests.host import AddEngine

    app = app_of(ctx)
    how = parse_format(output)
    with app.open_here(_HERE, doing="removing what was unpacked") as session:
        view = session.run(AddEngine(name=name, source=source, force=force))
    emit(view, how, table=lambda: _shown(view), names=lambda: [view.name])


@manual("lab engine rm mariadb-11.4.5")
def rm(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", show_default=False, autocompletion=complete.added_engines,
            help="An added engine.",
        ),
    ],
) -> None:  # fmt: skip
    """Remove an added engine; images and labs that were made of it stay."""
    from lab.requests.host import RemoveEngine

    app = app_of(ctx)
    with app.open_here(_HERE) as session:
        session.run(RemoveEngine(name=name))
    app.say(f"removed engine {name}")


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


def _shown(view: EngineView) -> str:
    return facts(
        [
            ("engine", view.name),
            ("server", view.server),
            ("features", ", ".join(view.features) or "-"),
            ("guests", view.packages[0]),
            ("blueprints", ", ".join(view.blueprints)),
            ("content", view.content),
        ]
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
        "RUN BY: who ran labs on it last, this host and the tests of lab's project",
    ]
    notes += [f"{view.server}: {view.why}" for view in views if view.why]
    return rows + "".join(f"{note}\n" for note in notes)


def _run_by(view: EngineView) -> str:
    """Who ran it, and the day: this host, if it has a template of it; the project's tests."""
    by = [f"this host, {format_time(view.formed_at)[:10]}"] if view.formed_at else []
    by += [f"project, {view.tested}"] if view.tested else []
    return "; ".join(by) or "nobody"
