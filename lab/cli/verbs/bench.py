"""``lab bench``: labs are measured, and compared with each other."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.bench.workloads import WORKLOADS, WorkloadName
from lab.cli import flags
from lab.cli.app import NOT_REMOTE, NOT_REMOTE_HINT, App, app_of
from lab.cli.manual import manual
from lab.cli.terminal.bench_text import compare_text, history_text, list_text, run_text
from lab.cli.terminal.output import emit, parse_format
from lab.errors import InvalidSpec, NotFound
from lab.suggest import did_you_mean
from lab.undo import Undo
from lab.units import counted
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.bench.stats import VerdictWord
    from lab.cli.backend.session import Session
    from lab.requests.labs import CreateLab
    from lab.views.benches import BenchView, CompareView

LEASE = 86400.0
"""Seconds of lease of a disposable lab, besides the time that is measured."""
_OF_ROUND = 120.0
"""Seconds that a round may take besides its run."""
_BASELINE_LIMIT = 64 << 20
"""Bytes of a file with a baseline."""

_Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        show_default=False,
        autocompletion=lambda: list(WORKLOADS),
        help=f"One of {', '.join(WORKLOADS)}.",
    ),
]
_Threads = Annotated[
    str, typer.Option("--threads", metavar="N,...", help="Numbers of threads, one step each.")
]
_Seconds = Annotated[
    str, typer.Option("--seconds", metavar="TIME", help="How long a step runs, such as 60 or 5m.")
]
_WarmUp = Annotated[
    str,
    typer.Option("--warm-up", metavar="TIME", help="A run before the first that is not counted."),
]
_Tables = Annotated[
    str, typer.Option("--tables", metavar="N", show_default=False, help="Tables; default 1 or 200.")
]
_Rows = Annotated[
    str,
    typer.Option(
        "--rows", metavar="N", show_default=False, help="Rows of each table; default 10000."
    ),
]
_Warehouses = Annotated[
    str,
    typer.Option("--warehouses", metavar="N", show_default=False, help="Of tpcc-like; default 1."),
]
_Rate = Annotated[
    str,
    typer.Option(
        "--rate",
        metavar="N",
        show_default=False,
        help="Open loop: so many events begin each second, whether or not others have ended.",
    ),
]
_Proxied = Annotated[bool, typer.Option("--proxied", help="Connect through the lab's proxy.")]
_Label = Annotated[
    str,
    typer.Option("--label", metavar="TEXT", show_default=False, help="A name for the result."),
]
_Which = Annotated[
    str, typer.Argument(metavar="RESULT", show_default=False, help="An id, or a label.")
]
_BlueprintFlag = Annotated[
    str,
    typer.Option(
        "--blueprint",
        metavar="BLUEPRINT",
        show_default=False,
        help="Of a lab that is made for this, and removed; default: that of ./lab.toml.",
    ),
]


@dataclass(frozen=True)
class OwnLab(flags.Cluster):
    """The flags of a lab that is made for a benchmark."""

    blueprint: _BlueprintFlag = ""


@dataclass(frozen=True)
class Load:
    """The flags that say what is run."""

    seconds: _Seconds = "60s"
    warm_up: _WarmUp = "10s"
    tables: _Tables = ""
    rows: _Rows = ""
    warehouses: _Warehouses = ""
    rate: _Rate = ""
    proxied: _Proxied = False
    label: _Label = ""

    @property
    def values(self) -> dict[str, Any]:
        """The fields of a request; raises InvalidSpec."""
        found = {
            "seconds": flags.seconds("--seconds", self.seconds),
            "warm_up": flags.seconds("--warm-up", self.warm_up),
            "proxied": self.proxied,
            "label": self.label,
        }
        for name in ("tables", "rows", "warehouses", "rate"):
            if text := getattr(self, name):
                found[name] = flags.whole(f"--{name}", text)
        return found


@manual(
    "lab bench run oltp_read_write shop --threads 1,2,4 --seconds 60",
    "lab bench run tpcc-like --blueprint galera --nodes 3 --proxy haproxy --proxied",
    "lab bench run oltp_point_select shop --rate 200 --label nightly",
)
@flags.expand
def run(
    ctx: typer.Context,
    workload: _Workload,
    lab: flags.Lab = "",
    *,
    load: Load,
    threads: _Threads = "1",
    cluster: OwnLab,
    ttl: flags.Ttl = "",
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Measure a lab with a workload of sysbench, or one of ours.

    It runs in the lab's client, a node of its own (`lab up --client`). Without LAB, a lab as the
    flags say is made for it, and removed. The data are in a database of their own.
    """
    from lab.requests.benches import RunBench

    app, how = app_of(ctx), parse_format(output)
    values = {"workload": _workload(workload), **load.values, "threads": _threads(threads)}
    app.here(NOT_REMOTE, NOT_REMOTE_HINT)
    if lab:
        _refuse_flags(cluster, ttl, timeout)
        with opened(app) as session:
            view = session.run(RunBench(lab=lab, **values))
    else:
        lease = (values["seconds"] + _OF_ROUND) * len(values["threads"]) + values["warm_up"]
        asked = made(app, cluster, ttl, lease)
        limit = flags.timeout(timeout, app.settings().ready_timeout)
        with Undo() as undo:
            undo.push("the lab", lambda: remove(app, asked.name))
            with opened(app) as session:
                session.run(asked, timeout=limit)
                view = session.run(RunBench(lab=asked.name, **values))
            undo.keep()
        remove(app, asked.name)
    emit(view, how, table=lambda: run_text(view), names=lambda: [view.id])


@manual(
    'lab bench compare oltp_insert --blueprint single --a "--profile durable"'
    ' --b "--profile disposable"',
    "lab bench compare oltp_read_write --lab-a shop --lab-b shop-try --rounds 12",
)
@flags.expand
def compare(
    ctx: typer.Context,
    workload: _Workload,
    *,
    a: Annotated[
        str,
        typer.Option("--a", metavar="FLAGS", show_default=False, help="Flags of `lab up` for A."),
    ] = "",
    b: Annotated[
        str,
        typer.Option("--b", metavar="FLAGS", show_default=False, help="Flags of `lab up` for B."),
    ] = "",
    lab_a: Annotated[
        str, typer.Option("--lab-a", metavar="LAB", show_default=False, help="A lab that exists.")
    ] = "",
    lab_b: Annotated[
        str, typer.Option("--lab-b", metavar="LAB", show_default=False, help="Another one.")
    ] = "",
    load: Load,
    threads: Annotated[str, typer.Option("--threads", metavar="N", help="Threads.")] = "1",
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="N", help="Rounds of A and B, and of A and A.")
    ] = "8",
    order: Annotated[
        str,
        typer.Option("--order", metavar="auto|duet|turns", help="At the same time, or in turns."),
    ] = "auto",
    expect: Annotated[
        str,
        typer.Option(
            "--expect", metavar="PERCENT", show_default=False, help="The expected effect, as +5%."
        ),
    ] = "",
    cluster: OwnLab,
    ttl: flags.Ttl = "",
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Compare two labs that differ in anything, round by round.

    Every round begins from a snapshot of each lab with its RAM, so at the same moment of the same
    cluster. Rounds of A and A come first; B is faster or slower only if the interval of the ratio
    excludes 1 and the effect is larger than what A and A show.

    The flags in --a and --b are added to those that both have.
    """
    from lab.requests.benches import CompareBench

    app, how = app_of(ctx), parse_format(output)
    values = {
        "workload": _workload(workload), **load.values,
        "threads": flags.whole("--threads", threads), "rounds": flags.whole("--rounds", rounds),
        "order": _order(order), "expect": expect,
    }  # fmt: skip
    app.here(NOT_REMOTE, NOT_REMOTE_HINT)
    limit = flags.timeout(timeout, app.settings().ready_timeout)
    if bool(lab_a) != bool(lab_b):
        raise InvalidSpec("--lab-a and --lab-b name the two labs: give both")
    if lab_a:
        if a or b:
            raise InvalidSpec("--a and --b are of labs that are made: leave them or --lab-a out")
        _refuse_flags(cluster, ttl)
        asked = CompareBench(a=lab_a, b=lab_b, **values)
        with opened(app) as session:
            view = session.run(asked, timeout=limit)
    else:
        view = _compare_new(app, cluster, (a, b), values, ttl, limit)
    emit(view, how, table=lambda: compare_text(view), names=lambda: [view.id])


def _compare_new(
    app: App,
    cluster: OwnLab,
    given: tuple[str, str],
    values: dict[str, Any],
    ttl: str,
    limit: float,
) -> CompareView:
    """Compare two labs that are made for this, and removed."""
    from lab.requests.benches import CompareBench

    if given[0].split() == given[1].split():
        raise InvalidSpec(
            "A and B have the same flags: there is nothing to compare",
            hint='such as --a "--profile durable" --b "--profile balanced"',
        )
    both = " ".join(flags.words(_without_blueprint(cluster)))
    lease = (values["seconds"] + _OF_ROUND) * values["rounds"] * 4
    sides = [made(app, _side(cluster, f"--{name}", text), ttl, lease)
             for name, text in zip("ab", given, strict=True)]  # fmt: skip
    said = [
        " ".join(filter(None, (side.blueprint, both, text.strip())))
        for side, text in zip(sides, given, strict=True)
    ]
    asked = CompareBench(a=sides[0].name, b=sides[1].name, said_a=said[0], said_b=said[1], **values)
    with Undo() as undo:
        for side in sides:
            undo.push("the lab", partial(remove, app, side.name))
        with opened(app) as session:
            for side in sides:
                session.run(side, timeout=limit)
            view = session.run(asked, timeout=limit)
        undo.keep()
    for side in sides:
        remove(app, side.name)
    return view


def _without_blueprint(cluster: OwnLab) -> OwnLab:
    return replace(cluster, blueprint="")


def _side(cluster: OwnLab, flag: str, text: str) -> OwnLab:
    """The flags of one side: those of both, and its own, which win; raises InvalidSpec."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidSpec(f"{flag}: {error}") from None

    def parsed(*, side: OwnLab) -> OwnLab:
        return side

    program = typer.Typer(add_completion=False)
    program.command(flag, add_help_option=False)(flags.expand(parsed))
    own: OwnLab = typer.main.get_command(program).main(words, prog_name=flag, standalone_mode=False)
    values = {}
    for field in fields(OwnLab):
        common, mine = getattr(cluster, field.name), getattr(own, field.name)
        if isinstance(common, list) and isinstance(mine, list):
            mine = [*common, *mine]
        values[field.name] = mine or common
    return OwnLab(**values)


def made(app: App, cluster: OwnLab, ttl: str, lease: float) -> CreateLab:
    """The request for a disposable lab with a client; raises InvalidSpec."""
    from msgspec import structs

    creation = flags.Creation(name=f"bench-{secrets.token_hex(4)}", ttl=ttl)
    spec = flags.wanted(app.settings(), replace(cluster, client=True), creation)
    asked = flags.creation_of(spec, creation)
    return asked if ttl else structs.replace(asked, ttl=LEASE + lease)


def remove(app: App, name: str) -> None:
    """Remove a lab that was made for a benchmark, if it is there."""
    from lab.requests.labs import DeleteLab

    try:
        with app.open() as session:
            session.run(DeleteLab(lab=name))
    except NotFound:
        pass


def opened(app: App) -> AbstractContextManager[Session]:
    """A session on this host; raises InvalidSpec if a service elsewhere is meant."""
    return app.open_here(NOT_REMOTE, NOT_REMOTE_HINT, doing="ending the benchmark")


def _workload(text: str) -> WorkloadName:
    for known in WORKLOADS:
        if text == known:
            return known
    raise InvalidSpec(
        f"there is no workload {text[:80]!r}",
        hint=did_you_mean(text, WORKLOADS, otherwise=f"workloads: {', '.join(WORKLOADS)}"),
    )


def _threads(text: str) -> tuple[int, ...]:
    return tuple(flags.whole("--threads", part.strip()) for part in text.split(","))


def _order(text: str) -> str:
    if text not in ("auto", "duet", "turns"):
        raise InvalidSpec(f"--order: {text[:80]!r} is not one of auto, duet, turns")
    return text


def _refuse_flags(cluster: OwnLab, ttl: str, timeout: str = "") -> None:
    """Raise InvalidSpec if flags describe a lab where one that exists is named."""
    words = flags.words(replace(cluster, blueprint=""))
    named = {"--blueprint": cluster.blueprint, "--ttl": ttl, "--timeout": timeout}
    words += [flag for flag, value in named.items() if value]
    if words:
        given = words[0]
        raise InvalidSpec(f"{given} is of a lab that is made: leave it or the lab's name out")


@manual("lab bench ls", "lab bench ls --workload oltp_read_write")
def ls(
    ctx: typer.Context,
    *,
    workload: Annotated[
        str,
        typer.Option(
            "--workload", metavar="WORKLOAD", show_default=False, help="Only of this one."
        ),
    ] = "",
    output: flags.Output = "table",
) -> None:
    """List the results of benchmarks, and where they change.

    Change points are looked for in runs that are alike, by a rank test, from 20 of them on.
    """
    app, how = app_of(ctx), parse_format(output)
    only = _workload(workload) if workload else ""
    with app.benches() as kept:
        found = [one for one in kept.summaries() if only in ("", one.workload)]
        views = kept.runs(only) if how == "table" else []
    emit(
        found,
        how,
        table=lambda: list_text(found) + history_text(views),
        names=lambda: [one.id for one in found],
    )


@manual("lab bench show 5f0e2a11", "lab bench show nightly -o json")
def show(ctx: typer.Context, which: _Which, *, output: flags.Output = "table") -> None:
    """Show a result; as JSON with its series and all counters."""
    from lab.views.benches import BenchView

    app, how = app_of(ctx), parse_format(output)
    with app.benches() as kept:
        view = kept.show(which)
    emit(
        view,
        how,
        table=lambda: run_text(view) if isinstance(view, BenchView) else compare_text(view),
        names=lambda: [view.id],
    )


@manual("lab bench rm 5f0e2a11")
def rm(ctx: typer.Context, which: _Which) -> None:
    """Remove a result."""
    with app_of(ctx).benches() as kept:
        kept.remove(which)


@manual(
    "lab bench export --format csv > results.csv",
    "lab bench export --label main --format json > baseline.json",
)
def export(
    ctx: typer.Context,
    *,
    form: Annotated[
        str, typer.Option("--format", metavar="csv|json", help="The format of the export.")
    ] = "csv",
    label: Annotated[
        str,
        typer.Option("--label", metavar="TEXT", show_default=False, help="Only of this label."),
    ] = "",
    workload: Annotated[
        str,
        typer.Option(
            "--workload", metavar="WORKLOAD", show_default=False, help="Only of this one."
        ),
    ] = "",
) -> None:
    """Write the runs as CSV, a line a step, or as JSON.

    Apache Otava reads the CSV: the column `time`, attributes up to `threads`, then metrics.
    """
    from lab.cli.terminal.output import as_json
    from lab.views.bench_reports import as_csv

    if form not in ("csv", "json"):
        raise InvalidSpec(f"--format: {form[:80]!r} is neither csv nor json")
    with app_of(ctx).benches() as kept:
        found = kept.runs(_workload(workload) if workload else "", label)
    sys.stdout.write(as_csv(found) if form == "csv" else as_json(found))


@manual(
    "lab bench ci 5f0e2a11 > comment.md          # a comparison",
    "lab bench ci pull --baseline main.json > comment.md",
)
def ci(
    ctx: typer.Context,
    which: _Which,
    *,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="FILE|LABEL",
            show_default=False,
            help="Earlier runs: a file of `lab bench export --format json`, or their label.",
        ),
    ] = "",
) -> int:
    """Print a comment for a pull request; exit 1 if it is slower.

    The exit code is 2 where there are too few rounds or runs for a verdict.

    RESULT is a comparison, or the label of runs, which are compared with the baseline's by a rank
    test: four runs of each at least, and only differences of three times their spread count.
    """
    from lab.bench.stats import changed
    from lab.views.bench_reports import change_comment, comment
    from lab.views.benches import CompareView

    with app_of(ctx).benches() as kept:
        view = kept.show(which)
        if isinstance(view, CompareView):
            if baseline:
                raise InvalidSpec(f"{which} is a comparison, which has both sides: no --baseline")
            sys.stdout.write(comment(view))
            # With a rate so many begin whatever the server does: only their latency differs.
            judged = view.p95 if view.rate and view.p95 else view.tps
            return _status(judged.verdict)
        if not baseline:
            raise InvalidSpec(
                f"{which} is a run: what is it compared with?", hint="--baseline FILE or LABEL"
            )
        now = kept.runs(view.workload, view.label) if view.label else [view]
        before = _baseline(baseline) if Path(baseline).is_file() else kept.runs(label=baseline)
    if view.rate:
        raise InvalidSpec(
            f"{which} has a rate, which the server does not change: compare its latency",
            hint="`lab bench compare --rate` does",
        )
    before, now = ([one for one in found if _alike(one) == _alike(view)] for found in (before, now))
    if not view.steps or not before:
        raise NotFound(
            f"the baseline {baseline} has no run that is like {view.id}: workload, data, blueprint,"
            " profile and options",
            hint="a baseline is a file, or the label of runs: `lab bench ls`",
        )
    last = view.steps[-1]
    numbers = [_tps(before, last.name, last.threads), _tps(now, last.name, last.threads)]
    if not all(numbers):
        raise NotFound(
            f"the baseline {baseline} has no run of {view.workload}"
            f" with {counted(last.threads, 'thread')}"
        )
    found = changed(*numbers, more=True)
    emulated = any(one.emulated for one in (*before, *now))
    sys.stdout.write(change_comment(view.workload, found, *map(len, numbers), emulated=emulated))
    return _status(found.verdict)


def _status(verdict: VerdictWord) -> int:
    """The exit code: a check that could not judge must not pass."""
    return {"slower": 1, "too few rounds": 2, "too few runs": 2}.get(verdict, 0)


def _alike(view: BenchView) -> tuple[object, ...]:
    """What runs have in common that can be compared; engines may differ, as that may be meant."""
    return (
        view.workload, view.blueprint, view.profile, view.options, view.tables, view.rows,
        view.warehouses, view.rate, view.accelerator,
    )  # fmt: skip


def _tps(views: Sequence[BenchView], name: str, threads: int) -> list[float]:
    return [
        step.measured.tps
        for view in views
        for step in view.steps
        if (step.name, step.threads) == (name, threads)
    ]


def _baseline(path: str) -> list[BenchView]:
    import msgspec

    from lab import texts
    from lab.views.benches import BenchView

    try:
        return msgspec.json.decode(texts.read(Path(path), _BASELINE_LIMIT), type=list[BenchView])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"{path} has no runs: {error}") from None
