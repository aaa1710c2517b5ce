"""Results of benchmarks as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench.stats import FEWEST_RESULTS, change_point
from lab.cli.terminal.table import facts, table
from lab.texts import printable
from lab.units import counted, format_duration, format_size
from lab.views.bench_reports import effect, said, when
from lab.views.benches import CLOSED, OPEN, BenchStep, BenchSummary, BenchView, CompareView, Round

_EMULATED = "guests were emulated: compare figures with each other only, not with real hardware"
_SHOWN = 6
"""Counters of a node that are shown, the largest changes first; JSON has all."""


def list_text(found: Sequence[BenchSummary]) -> str:
    """The list of results."""
    rows = [
        (one.id, when(one.at), one.kind, one.workload, one.lab, one.label or "-", one.result)
        for one in found
    ]
    return table(("ID", "TIME", "KIND", "WORKLOAD", "LAB", "LABEL", "RESULT"), rows)


def history_text(views: Sequence[BenchView]) -> str:
    """Where the transactions per second of runs that are alike change, a line for each kind."""
    series: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for view in views:
        for step in view.steps:
            key: tuple[str, ...] = (
                view.workload, view.blueprint, view.engine, view.profile, view.options, step.name,
                counted(step.threads, "thread"), _data(view), f"through {view.through}",
                f"{view.rate}/s" if view.rate else "", view.accelerator,
            )  # fmt: skip
            series.setdefault(key, []).append((view.id, step.measured.tps))
    lines = []
    for key, values in series.items():
        at = change_point([value for _, value in values])
        said = f"changes at {values[at][0]}" if at is not None else "no change point"
        if len(values) < FEWEST_RESULTS:
            said = f"too few results for change points: {len(values)} of {FEWEST_RESULTS}"
        lines.append(f"{', '.join(filter(None, key))}: {said}\n")
    return "".join(lines)


def run_text(view: BenchView) -> str:
    """A run of one lab."""
    head = facts(
        [
            ("id", view.id),
            ("label", view.label),
            ("workload", view.workload),
            ("lab", f"{view.lab}: {view.blueprint}, {view.engine}, profile {view.profile}"),
            ("options", view.options),
            ("data", _data(view)),
            ("through", view.through),
            ("load", f"{OPEN}, {view.rate}/s" if view.rate else CLOSED),
            ("warm-up", format_duration(view.warm_up) if view.warm_up else "none"),
            ("guests", f"{view.accelerator}: {_EMULATED}" if view.emulated else view.accelerator),
        ]
    )
    rows = [
        (
            step.name or "-",
            str(step.threads),
            f"{step.measured.tps:.1f}",
            f"{step.measured.qps:.1f}",
            *_latency(step),
            str(step.measured.ignored),
            _slowest(step),
        )
        for step in view.steps
    ]
    columns = (
        "STEP",
        "THREADS",
        "TPS",
        "QPS",
        "P50",
        "P95",
        "P99",
        "MAX",
        "IGNORED",
        "SLOWEST 1 S",
    )
    text = head + "\n" + table(columns, rows, right=set(range(1, 9)))
    text += "latency in ms, from sysbench's histogram (steps of 1.8 %)\n"
    text += "".join(_uses(step) for step in view.steps)
    for check in view.checks:
        state = "unknown" if check.broken is None else "holds" if not check.broken else "BROKEN"
        text += f"consistency {check.what}: {state}\n"
    if view.workload == "tpcc-like":
        text += "a workload like TPC-C's: not comparable with its published results\n"
    return text


def _data(view: BenchView | CompareView) -> str:
    parts = [
        counted(view.tables, "table") if view.tables else "",
        counted(view.rows, "row") if view.rows else "",
        counted(view.warehouses, "warehouse") if view.warehouses else "",
    ]
    return ", ".join(filter(None, parts))


def _latency(step: BenchStep) -> tuple[str, ...]:
    late = step.measured.latency
    if late is None:
        return ("-",) * 4
    return tuple(f"{value:.2f}" for value in (late.p50, late.p95, late.p99, late.high))


def _slowest(step: BenchStep) -> str:
    """The second in which the fewest transactions ended: a stall."""
    series = step.measured.series
    if not series:
        return "-"
    worst = min(series, key=lambda one: one.tps)
    return f"{worst.tps:.1f} at {worst.at} s"


def _uses(step: BenchStep) -> str:
    """What each node needed in a step, two lines a node at most."""
    lines = []
    for use in step.nodes:
        cpu = "CPU unknown" if use.cpu is None else f"CPU {use.cpu:.1f} s"
        written = "unknown" if use.written is None else format_size(use.written)
        disk = "unknown" if use.disk is None else format_size(use.disk)
        name = f"{step.name} " if step.name else ""
        lines.append(
            f"{name}{counted(step.threads, 'thread')}, {use.node} ({use.role}): {cpu},"
            f" written {written}, on disk {disk}\n"
        )
        rose = sorted(use.counters.items(), key=lambda pair: -pair[1])
        if some := [f"{key} +{value}" for key, value in rose if value][:_SHOWN]:
            lines.append(f"  {', '.join(some)}\n")
    return "".join(lines)


def compare_text(view: CompareView) -> str:
    """A comparison of two labs."""
    text = facts(
        [
            ("id", view.id),
            ("label", view.label),
            ("workload", f"{view.workload}, {counted(view.threads, 'thread')}"),
            ("data", _data(view)),
            ("A", view.a),
            ("B", view.b),
            ("order", f"{view.order}: {view.why}"),
            ("load", f"{OPEN}, {view.rate}/s" if view.rate else CLOSED),
            ("guests", f"{view.accelerator}: {_EMULATED}" if view.emulated else view.accelerator),
        ]
    )
    rows = [
        (
            name, str(number), one.first.upper(), f"{one.a:.2f}", f"{one.b:.2f}",
            f"{one.b / one.a:.3f}", f"{one.a_p95:.2f}", f"{one.b_p95:.2f}", _skew(one),
        )
        for name, rounds in (("A/A", view.equal), ("A/B", view.rounds))
        for number, one in enumerate(rounds, 1)
    ]  # fmt: skip
    columns = ("SIDES", "ROUND", "FIRST", "TPS 1", "TPS 2", "RATIO", "P95 1", "P95 2", "SKEW")
    text += "\n" + table(columns, rows, right={1, 3, 4, 5, 6, 7, 8})
    text += f"transactions/s: {said(view.tps)}: {effect(view.tps)}\n"
    if view.p95:
        text += f"95th percentile: {said(view.p95)}: {effect(view.p95)}\n"
    if view.expect:
        text += f"expected: {view.expect}\n"
    return "".join(f"{printable(line)}\n" for line in text.splitlines())


def _skew(one: Round) -> str:
    return "-" if one.skew is None else f"{one.skew * 1000:.0f} ms"
