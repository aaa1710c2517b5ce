"""``lab bench experiment``: published experiments, repeated in kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.bench import experiments
from lab.bench.experiments import EXPERIMENTS, PROFILES, Experiment, ExperimentName
from lab.bench.plot import bars
from lab.bench.workloads import Scale
from lab.cli import flags
from lab.cli.app import NOT_REMOTE, NOT_REMOTE_HINT, App, app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.cli.verbs.bench import LEASE, OwnLab, made, opened, remove
from lab.errors import InvalidSpec
from lab.paths import writing
from lab.suggest import did_you_mean
from lab.undo import Undo
from lab.units import counted

if TYPE_CHECKING:
    from lab.views.benches import BenchView

_BLUEPRINT = "single"


@manual(
    "lab bench experiment dump-import --plot import.svg",
    "lab bench experiment create-tables --count 1000 --engine mysql:9.7",
)
@flags.expand
def experiment(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            autocompletion=lambda: list(EXPERIMENTS),
            help=f"One of {', '.join(EXPERIMENTS)}.",
        ),
    ],
    *,
    count: Annotated[
        str,
        typer.Option(
            "--count", metavar="N", show_default=False, help="Rows, or tables; default 2000 or 200."
        ),
    ] = "",
    plot: Annotated[
        str,
        typer.Option("--plot", metavar="FILE", show_default=False, help="Write a plot as SVG."),
    ] = "",
    cluster: OwnLab,
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Repeat a published experiment with a lab of each profile.

    The original's figures are beside ours, with the factor by which ours is smaller. The labs are
    made for it and removed; the runs are kept, with the label experiment-NAME.
    """
    app, how, what = app_of(ctx), parse_format(output), _named(name)
    app.here(NOT_REMOTE, NOT_REMOTE_HINT)
    size = flags.whole("--count", count) if count else experiments.experiment(what).usual
    if size < 1:
        raise InvalidSpec(f"--count: {size} is not enough")
    if cluster.profile:
        raise InvalidSpec("--profile: an experiment has a lab of each profile: leave it out")
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    cluster = replace(cluster, blueprint=cluster.blueprint or _BLUEPRINT)
    views = [_one(app, what, size, replace(cluster, profile=one), limit) for one in PROFILES]
    its = experiments.experiment(what)
    if plot:
        with writing(Path(plot)):
            Path(plot).write_text(_plot(its, size, views), encoding="utf-8")
    emit(views, how, table=lambda: _text(its, size, views), names=lambda: [one.id for one in views])


def _named(name: str) -> ExperimentName:
    for known in EXPERIMENTS:
        if name == known:
            return known
    raise InvalidSpec(
        f"there is no experiment {name[:80]!r}",
        hint=did_you_mean(name, EXPERIMENTS, otherwise=f"experiments: {', '.join(EXPERIMENTS)}"),
    )


def _one(app: App, name: ExperimentName, size: int, cluster: OwnLab, limit: float) -> BenchView:
    """A run with a lab of one profile, which is made for it and removed."""
    from lab.requests.benches import RunBench

    its = experiments.experiment(name)
    scale = Scale(rows=size) if its.unit == "rows" else Scale(tables=size)
    asked = made(app, cluster, "", LEASE)
    run = RunBench(
        lab=asked.name, workload=its.workload, warm_up=0.0, tables=scale.tables, rows=scale.rows,
        label=f"experiment-{name}",
    )  # fmt: skip
    with Undo() as undo:
        undo.push("the lab", lambda: remove(app, asked.name))
        with opened(app) as session:
            session.run(asked, timeout=limit)
            view = session.run(run)
        undo.keep()
    remove(app, asked.name)
    return view


def _seconds(its: Experiment, view: BenchView) -> float:
    return sum(one.measured.seconds for one in view.steps if one.name == its.step)


def _notes(its: Experiment, size: int, views: Sequence[BenchView]) -> list[str]:
    found = [
        f"original: {its.source}",
        f"ours: {size} {its.unit}, {its.factor(size):g} times fewer",
    ]
    if any(view.emulated for view in views):
        found.append("guests were emulated: compare the bars with each other only")
    return found


def _plot(its: Experiment, size: int, views: Sequence[BenchView]) -> str:
    found = [(view.profile, _seconds(its, view)) for view in views]
    engine = views[0].engine
    return bars(f"{its.title}, {engine}", f"seconds for {size} {its.unit}", found,
                _notes(its, size, views))  # fmt: skip


def _text(its: Experiment, size: int, views: Sequence[BenchView]) -> str:
    theirs = [
        ("original", one.where, f"{one.seconds:.0f}", f"{its.original / one.seconds:.0f}", one.note)
        for one in its.published
    ]
    ours = [
        ("ours", f"profile {view.profile}", f"{(took := _seconds(its, view)):.2f}",
         f"{size / took:.0f}" if took else "-", counted(view.steps[0].threads, "thread"))
        for view in views
    ]  # fmt: skip
    rows = table(
        ("", "WHERE", "SECONDS", f"{its.unit.upper()}/S", "NOTE"), [*theirs, *ours], right={2, 3}
    )
    return rows + "".join(f"{line}\n" for line in _notes(its, size, views))
