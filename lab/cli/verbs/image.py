"""``lab image ...``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import age, seconds_or_dash, size_or_dash
from lab.cli.terminal.table import facts, table

if TYPE_CHECKING:
    from lab.views.catalog import ImageView

Which = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE",
        show_default=False,
        autocompletion=complete.images,
        help="A recipe or a key.",
    ),
]


@manual("lab image build mariadb", "lab image build mariadb --rebuild")
def build(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            show_default=False,
            autocompletion=complete.recipes,
            help="A recipe, a directory of images/, or an engine such as mariadb:10.11.",
        ),
    ],
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build it even if it exists.")] = False,
    output: flags.Output = "table",
) -> None:
    """Build an image, unless it exists."""
    from lab.requests.images import BuildImage

    app = app_of(ctx)
    how = parse_format(output)
    with app.open(doing="removing the unfinished image") as session:
        view = session.run(BuildImage(recipe=recipe, rebuild=rebuild))
    emit(view, how, table=lambda: shown(view, app.now()), names=lambda: [view.key])


@manual("lab image ls", "lab image ls -o json")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List the images."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.images()
    if not views and how == "table":
        app.say("no images; `lab up` builds the one it needs")
        return
    emit(
        views,
        how,
        table=lambda: _table(views, app.now()),
        names=lambda: [view.key for view in views],
    )


@manual("lab image show mariadb")
def show(ctx: typer.Context, which: Which, output: flags.Output = "table") -> None:
    """Show the details of an image."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        view = session.image(which)
    emit(view, how, table=lambda: shown(view, app.now()), names=lambda: [view.key])


@manual("lab image rm mariadb")
def rm(ctx: typer.Context, which: Which) -> None:
    """Remove an image that no template or lab uses."""
    from lab.requests.images import DeleteImage

    app = app_of(ctx)
    with app.open() as session:
        app.if_interrupted(f"`lab image rm {which}` again removes the rest")
        session.run(DeleteImage(which=which))
    app.say(f"removed image {which}")


def _table(views: Sequence[ImageView], now: float) -> str:
    return table(
        ("KEY", "RECIPE", "ENGINE", "STATE", "SIZE", "BUILD", "AGE", "USED BY", "USE", "LAST USE"),
        [
            (
                view.key,
                view.recipe,
                f"{view.engine} {view.engine_version}".strip(),
                view.state,
                size_or_dash(view.size),
                seconds_or_dash(view.build_seconds),
                age(view.created_at, now),
                str(len(view.used_by)) if view.used_by else "-",
                view.use,
                f"{age(view.used_at, now)} ago" if view.used_at else "never",
            )
            for view in views
        ],
        right={4, 5},
    )


def shown(view: ImageView, now: float) -> str:
    """The details of an image, a line each."""
    return facts(
        [
            ("key", view.key),
            ("recipe", view.recipe),
            ("engine", f"{view.engine} {view.engine_version}".strip()),
            ("state", view.state),
            ("size", size_or_dash(view.size)),
            ("build", seconds_or_dash(view.build_seconds)),
            ("age", age(view.created_at, now)),
            ("used by", ", ".join(view.used_by)),
            ("use", view.use),
            ("last use", f"{age(view.used_at, now)} ago" if view.used_at else "never"),
            *view.facts.items(),
        ]
    )
