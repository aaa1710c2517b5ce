"""Results of benchmarks as other programs and people read them: CSV, and a comment in Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime, timezone

from lab.bench.stats import Change, Comparison
from lab.units import counted
from lab.views.benches import CLOSED, OPEN, BenchStep, BenchView, CompareView

COLUMNS = (
    "time", "id", "label", "lab", "workload", "blueprint", "engine", "profile", "options",
    "accelerator", "loop", "rate", "step", "threads", "tps", "qps", "min_ms", "avg_ms", "p50_ms",
    "p95_ms", "p99_ms", "max_ms", "ignored", "cpu_s", "written_bytes", "disk_bytes",
)  # fmt: skip
"""Of the CSV: when, what was measured (attributes, up to ``threads``), and the metrics."""
_EMULATED = "Guests were emulated: only ratios mean something, no figure is one of real hardware."


def as_csv(views: Sequence[BenchView]) -> str:
    """A line for each step of each run, below the names of columns; what is unknown is empty."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for view in views:
        for step in view.steps:
            rows.writerow(_row(view, step))
    return text.getvalue()


def _row(view: BenchView, step: BenchStep) -> list[object]:
    measured, late = step.measured, step.measured.latency
    latency = (late.low, late.mean, late.p50, late.p95, late.p99, late.high) if late else ("",) * 6
    totals = (
        [one.cpu for one in step.nodes],
        [one.written for one in step.nodes],
        [one.disk for one in step.nodes],
    )
    return [
        when(view.at), view.id, view.label, view.lab, view.workload, view.blueprint, view.engine,
        view.profile, view.options, view.accelerator, view.loop, view.rate, step.name,
        step.threads, f"{measured.tps:.3f}", f"{measured.qps:.3f}", *latency, measured.ignored,
        *(_total(values) for values in totals),
    ]  # fmt: skip


def _total(values: Sequence[float | None]) -> object:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if len(known) == len(values) and known else ""


def when(at: float) -> str:
    """A time of the epoch in UTC, as ISO 8601 has it."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def percent(ratio: float) -> str:
    """A ratio as its difference from 1, such as ``+5.0 %``."""
    return f"{(ratio - 1) * 100:+.1f} %"


def effect(found: Comparison) -> str:
    """An effect with its interval and the noise."""
    one = found.effect
    return (
        f"{percent(one.mid)} ({percent(one.low)} to {percent(one.high)};"
        f" noise {found.noise * 100:.1f} %)"
    )


def said(found: Comparison) -> str:
    """A verdict in words."""
    if found.verdict in ("faster", "slower"):
        return f"B is {found.verdict}"
    return "too few rounds for a verdict" if found.verdict == "too few rounds" else found.verdict


def comment(view: CompareView) -> str:
    """A comparison as a comment for a pull request."""
    lines = [
        f"### {view.workload}: **{said(view.tps)}**",
        "",
        f"A: `{_code(view.a)}`  ",
        f"B: `{_code(view.b)}`",
        "",
        "| metric | B compared with A | verdict |",
        "|---|---|---|",
        f"| transactions/s | {effect(view.tps)} | {view.tps.verdict} |",
    ]
    if view.p95:
        lines.append(f"| 95th percentile | {effect(view.p95)} | {view.p95.verdict} |")
    if view.expect:
        lines += ["", f"Expected: {view.expect}."]
    lines += [
        "",
        (
            f"{len(view.rounds)} rounds of A and B, {len(view.equal)} of A and A (the noise),"
            f" each from the same warm snapshot; {view.order}: {view.why}."
            f" {counted(view.threads, 'thread')}, {view.seconds:g} s."
            f" {OPEN if view.rate else CLOSED}."
        ),
    ]
    if view.emulated:
        lines += ["", _EMULATED]
    return "".join(f"{line}\n" for line in lines)


def change_comment(workload: str, found: Change, base: int, now: int, *, emulated: bool) -> str:
    """Runs compared with a baseline, as a comment for a pull request."""
    lines = [
        f"### {workload}: **{found.verdict}** than the baseline"
        if found.verdict in ("faster", "slower")
        else f"### {workload}: **{found.verdict}**",
        "",
        (
            f"Transactions/s: {percent(found.ratio)}; runs of one side differ by"
            f" {found.spread * 100:.1f} %, p = {found.p:.3f} (rank test), {now} runs, {base} of the"
            " baseline."
        ),
    ]
    if emulated:
        lines += ["", _EMULATED]
    return "".join(f"{line}\n" for line in lines)


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")[:300]
