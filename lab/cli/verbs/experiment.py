"""``lab bench experiment``: published experiments, repeated in kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.bench import costs, experiments
from lab.bench.costs import Prices
from lab.bench.experiments import EXPERIMENTS, Experiment, ExperimentName, Variant
from lab.bench.plot import Table, bars, bars_as_png, need_png, page
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
from lab.units import counted, format_size
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.views.benches import BenchView

_BLUEPRINT = "single"
_KINDS = ("", ".svg", ".png", ".html")
"""How the file of a plot may end."""
_UNKNOWN = "unknown"
_COSTS = ("", "WHERE", "GB ON DISK", "SCALED", "COST A MONTH")


@manual(
    "lab bench experiment dump-import --plot import.svg",
    "lab bench experiment dump-import --plot import.png",
    "lab bench experiment create-tables --count 1000 --engine mysql:9.7",
    "lab bench experiment buffer-pool --plot pool.html",
    "lab bench experiment tpcc --prices prices.toml",
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
            "--count", metavar="N", show_default=False, help="Its size: rows, tables, warehouses."
        ),
    ] = "",
    plot: Annotated[
        str,
        typer.Option(
            "--plot",
            metavar="FILE",
            show_default=False,
            help="Write a plot as SVG; as PNG if FILE ends with .png; with the tables as a page"
            " if it ends with .html.",
        ),
    ] = "",
    prices: Annotated[
        str,
        typer.Option(
            "--prices",
            metavar="FILE",
            show_default=False,
            help="tpcc: also print what each profile would cost a month, by the prices in FILE"
            " (TOML).",
        ),
    ] = "",
    cluster: OwnLab,
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Repeat a published experiment, beside the original's figures.

    There is a lab of each profile, or of each size of the buffer pool; the factor by which ours is
    smaller is said. The labs are made for it and removed; the runs are kept, with the label
    experiment-NAME.
    """
    app, how, what = app_of(ctx), parse_format(output), _named(name)
    app.here(NOT_REMOTE, NOT_REMOTE_HINT)
    its = experiments.experiment(what)
    size = flags.whole("--count", count) if count else its.usual
    if size < 1:
        raise InvalidSpec(f"--count: {size} is not enough")
    sides = experiments.variants(what, size)
    if cluster.profile and any(side.profile for side in sides):
        raise InvalidSpec("--profile: this experiment has a lab of each profile: leave it out")
    if prices and not its.costs:
        costly = ", ".join(one for one in EXPERIMENTS if experiments.experiment(one).costs)
        raise InvalidSpec(f"--prices: {what} is not about costs", hint=f"only of: {costly}")
    if prices and how != "table":
        raise InvalidSpec(f"--prices: costs are a table, not part of -o {how}: leave out one")
    priced = costs.read(Path(prices)) if prices else None
    kind = Path(plot).suffix.lower()
    if kind not in _KINDS:
        raise InvalidSpec(f"--plot: {plot} is no .svg, .png or .html", hint="name one of these")
    if plot and not Path(plot).parent.is_dir():
        raise InvalidSpec(f"--plot: {Path(plot).parent} is no directory", hint="create it first")
    if kind == ".png":
        need_png()
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    cluster = replace(cluster, blueprint=cluster.blueprint or _BLUEPRINT)
    found = Found(
        its,
        size,
        [(side, _one(app, what, size, cluster, side, limit)) for side in sides],
        priced,
    )
    if plot:
        with writing(Path(plot)):
            Path(plot).write_bytes(_plot(found, kind))
    views = [view for _, view in found.runs]
    emit(views, how, table=lambda: _text(found), names=lambda: [one.id for one in views])


@dataclass(frozen=True)
class Found:
    """An experiment, its size, and the run with the lab of each variant."""

    its: Experiment
    size: int
    runs: Sequence[tuple[Variant, BenchView]]
    prices: Prices | None = None
    """Those of the user, if costs are computed."""


def _named(name: str) -> ExperimentName:
    for known in EXPERIMENTS:
        if name == known:
            return known
    raise InvalidSpec(
        f"there is no experiment {name[:80]!r}",
        hint=did_you_mean(name, EXPERIMENTS, otherwise=f"experiments: {', '.join(EXPERIMENTS)}"),
    )


def _one(
    app: App, name: ExperimentName, size: int, cluster: OwnLab, side: Variant, limit: float
) -> BenchView:
    """A run with a lab of one variant, which is made for it and removed."""
    from lab.requests.benches import RunBench

    its = experiments.experiment(name)
    scale = its.scale(size)
    options = [*(cluster.set or ()), *side.options]
    asked = made(
        app, replace(cluster, profile=side.profile or cluster.profile, set=options), "", LEASE
    )
    run = RunBench(
        lab=asked.name, workload=its.workload, threads=(its.threads,), seconds=its.seconds,
        warm_up=its.warm_up, tables=scale.tables, rows=scale.rows, warehouses=scale.warehouses,
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


def _figure(its: Experiment, view: BenchView) -> float:
    """What is compared of a run: seconds, or transactions a second."""
    steps = [one.measured for one in view.steps if one.name == its.step]
    return sum(one.seconds if its.timed else one.tps for one in steps)


def _unit(its: Experiment, size: int) -> str:
    return f"seconds for {size} {its.unit}" if its.timed else "transactions a second"


def _used(view: BenchView) -> list[int] | None:
    """Bytes on disk of each server; None if those of any were not observed."""
    used = [one.disk for one in view.steps[0].nodes if one.counters]
    known = [one for one in used if one is not None]
    return known if known and len(known) == len(used) else None


def _on_disk(view: BenchView) -> str:
    used = _used(view)
    return f"{format_size(sum(used))} on disk" if used else ""


def _notes(found: Found) -> list[str]:
    its, size = found.its, found.size
    threads = counted(its.threads, "thread")
    notes = [
        f"original: {its.source}",
        f"ours: {size} {its.unit}, {its.factor(size):g} times fewer; {threads}",
    ]
    if any(view.emulated for _, view in found.runs):
        notes.append("guests were emulated: compare the figures of ours with each other only")
    return notes


def _plot(found: Found, kind: str) -> bytes:
    """The plot as a file whose name ends with ``kind``."""
    values = [(side.name, _figure(found.its, view)) for side, view in found.runs]
    title, unit = f"{found.its.title}, {found.runs[0][1].engine}", _unit(found.its, found.size)
    if kind == ".png":
        return bars_as_png(title, unit, values, _notes(found))
    if kind == ".html":
        notes = [*_notes(found), *_cost_notes(found)]
        return page(title, _tables(found), bars(title, unit, values), notes).encode()
    return bars(title, unit, values, _notes(found)).encode()


def _head(found: Found) -> tuple[str, ...]:
    if found.its.timed:
        return ("", "WHERE", "SECONDS", f"{found.its.unit.upper()}/S", "NOTE")
    return ("", "WHERE", "TRX/S", "NOTE")


def _rows(found: Found) -> list[tuple[str, ...]]:
    """The figures of the original, then ours."""
    its, rows = found.its, list[tuple[str, ...]]()
    for one in its.published:
        rate = (f"{one.figure:.0f}", f"{its.original / one.figure:.0f}")
        figures = rate if its.timed else (f"{one.figure:.1f}",)
        rows.append(("original", one.where, *figures, one.note))
    for side, view in found.runs:
        figure = _figure(its, view)
        rate = (f"{figure:.2f}", f"{found.size / figure:.0f}" if figure else "-")
        figures = rate if its.timed else (f"{figure:.1f}",)
        rows.append(("ours", side.name, *figures, _on_disk(view)))
    return rows


def _costs(found: Found, prices: Prices) -> list[tuple[str, ...]]:
    """The costs in the original, then ours."""
    rows: list[tuple[str, ...]] = [
        ("original", one.where, "", "", f"{one.month:.2f} {one.currency}")
        for one in found.its.costs
    ]
    nodes = [(side, _used(view)) for side, view in found.runs]
    # Of several nodes their mean: the cluster of the prices has a number of its own.
    means = [(side, round(sum(used) / len(used)) if used else None) for side, used in nodes]
    reference = means[0][1]
    for side, used in means:
        scaled = prices.scaled(used, reference)
        rows.append((
            "ours", side.name,
            _UNKNOWN if used is None else f"{used / 1e9:.3f}",
            _UNKNOWN if scaled is None else f"{scaled:.1f}",
            _UNKNOWN if scaled is None else f"{prices.month(scaled):.2f} {prices.currency}",
        ))  # fmt: skip
    return rows


def _cost_notes(found: Found) -> tuple[str, ...]:
    if not found.prices:
        return ()
    first = found.runs[0][0].name
    ours = (
        f"costs of ours: {found.prices.cluster_text} with {first}, with others in proportion to"
        " what was measured, of which the system and logs are a part"
    )
    return (ours, "costs of the original: at the prices of its time, which are not those given")


def _tables(found: Found) -> list[Table]:
    tables: list[Table] = [(_head(found), _rows(found))]
    if found.prices:
        tables.append((_COSTS, _costs(found, found.prices)))
    return tables


def _text(found: Found) -> str:
    figures, *more = _tables(found)
    text = table(*figures, right={2, 3} if found.its.timed else {2})
    for costs_of in more:
        text += "\n" + table(*costs_of, right={2, 3, 4})
    return text + "".join(f"{line}\n" for line in [*_notes(found), *_cost_notes(found)])
