"""``lab template ...``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import age, seconds_or_dash, size_or_dash
from lab.cli.terminal.table import table
from lab.options import described

if TYPE_CHECKING:
    from lab.views.catalog import TemplateView


@manual("lab template build pxc --nodes 3", "lab template build galera --memory 1G")
@flags.expand
def build(
    ctx: typer.Context,
    *,
    cluster: flags.Cluster,
    output: flags.Output = "table",
) -> None:
    """Form a cluster and capture it as a template for labs."""
    from lab.requests.images import BuildTemplate

    app = app_of(ctx)
    how = parse_format(output)
    spec = flags.wanted(app.settings(), cluster)
    with app.open(doing="removing the unfinished template") as session:
        view = session.run(BuildTemplate.of(spec))
    emit(view, how, table=lambda: shown([view], app.now()), names=lambda: [view.key])


@manual("lab template ls", "lab template ls -o name")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List the templates."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.templates()
    if not views and how == "table":
        app.say("no templates; `lab up` builds the one it needs")
        return
    emit(
        views,
        how,
        table=lambda: shown(views, app.now()),
        names=lambda: [view.key for view in views],
    )


@manual("lab template rm 3f9a0c1d2e4b", "lab template ls -o name | xargs -n1 lab template rm")
def rm(
    ctx: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            show_default=False,
            autocompletion=complete.templates,
            help="A key, as in `lab template ls`.",
        ),
    ],
) -> None:
    """Remove a template that no lab was cloned from."""
    from lab.requests.images import DeleteTemplate

    app = app_of(ctx)
    with app.open() as session:
        app.if_interrupted(f"`lab template rm {key}` again removes the rest")
        session.run(DeleteTemplate(key=key))
    app.say(f"removed template {key}")


def _each(view: TemplateView, what: str, text: Callable[[Any], str]) -> str:
    """What the nodes of a template have, once if it is the same."""
    found = [getattr(node, what) for node in view.each] or [getattr(view, what)]
    return ",".join(dict.fromkeys(map(text, found)))


def _start(view: TemplateView) -> str:
    if view.state == "building":
        return "-"  # its RAM, if it gets any, is captured last
    return "warm" if view.warm else "cold"


def shown(views: Sequence[TemplateView], now: float) -> str:
    """Templates, a line each."""
    return table(
        (
            "KEY", "BLUEPRINT", "OPTIONS", "NODES", "MEMORY", "CPUS", "DISK", "IMAGE", "STATE",
            "START", "SIZE", "FORMED IN", "USE", "LAST USE", "SOURCE", "WHY",
        ),
        [
            (
                view.key,
                view.blueprint,
                described(view.options) or "-",
                str(view.node_count),
                _each(view, "memory", size_or_dash),
                _each(view, "cpus", str),
                _each(view, "disk", size_or_dash),
                _each(view, "image", str),
                view.state,
                _start(view),
                size_or_dash(view.size),
                seconds_or_dash(view.form_seconds),
                view.use,
                f"{age(view.used_at, now)} ago" if view.used_at else "never",
                view.source or "-",
                view.why,
            )
            for view in views
        ],
        right={3, 4, 5, 6, 10, 11},
    )  # fmt: skip
