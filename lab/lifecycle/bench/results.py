"""The results of benchmarks that a home keeps."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TypeVar

import msgspec

from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.core.context import Context
from lab.state.records import BenchRecord
from lab.units import counted
from lab.views.bench_reports import effect, said
from lab.views.benches import BenchSummary, BenchView, CompareView

V = TypeVar("V", BenchView, CompareView)


def new_id() -> str:
    """An id that no result has."""
    return secrets.token_hex(4)


def add_run(ctx: Context, view: BenchView) -> None:
    """Record a run."""
    ctx.store.benches.add(
        BenchRecord(
            view.id, view.at, "run", view.workload, view.label, view.lab, msgspec.to_builtins(view)
        )
    )


def add_comparison(ctx: Context, view: CompareView, labs: str) -> None:
    """Record a comparison."""
    ctx.store.benches.add(
        BenchRecord(
            view.id, view.at, "compare", view.workload, view.label, labs, msgspec.to_builtins(view)
        )
    )


def summaries(ctx: Context) -> list[BenchSummary]:
    """All results, oldest first."""
    return [_summary(one) for one in sorted(ctx.store.benches.all(), key=lambda one: one.at)]


def show(ctx: Context, which: str) -> BenchView | CompareView:
    """A result, by its id, or the newest of a label; raises NotFound."""
    record = ctx.store.benches.find(which)
    if record is None:
        labelled = [one for one in ctx.store.benches.all() if one.label == which]
        if not labelled:
            raise NotFound(
                f"there is no benchmark {which[:80]!r}", hint="`lab bench ls` shows their ids"
            )
        record = max(labelled, key=lambda one: one.at)
    return _view(record)


def runs(ctx: Context, workload: str = "", label: str = "") -> list[BenchView]:
    """The runs that are recorded, oldest first; of a workload, of a label, if one is given."""
    found = [
        one
        for one in ctx.store.benches.all()
        if one.kind == "run" and workload in ("", one.workload) and label in ("", one.label)
    ]
    views = []
    for one in sorted(found, key=lambda one: one.at):
        with suppress(InvalidSpec):  # of another version: `lab bench ls` says so
            views.append(_read(one, BenchView))
    return views


def _view(record: BenchRecord) -> BenchView | CompareView:
    return _read(record, BenchView) if record.kind == "run" else _read(record, CompareView)


def _read(record: BenchRecord, kind: type[V]) -> V:
    try:
        return msgspec.convert(record.result, kind)
    except msgspec.ValidationError as error:
        raise InvalidSpec(
            f"the benchmark {record.id} was recorded by another version of lab: {error}"
        ) from None


def _summary(record: BenchRecord) -> BenchSummary:
    try:
        view = _view(record)
    except InvalidSpec:
        text = "recorded by another version of lab"
    else:
        text = described(view)
    return BenchSummary(
        record.id, record.at, record.kind, record.workload, record.label, record.lab, text
    )


def described(view: BenchView | CompareView) -> str:
    """A result in a few words."""
    if isinstance(view, CompareView):
        return f"{said(view.tps)}: {effect(view.tps)}"
    if not view.steps:
        return "nothing measured"
    best = max(view.steps, key=lambda one: one.measured.tps)
    return f"{best.measured.tps:.1f}/s with {counted(best.threads, 'thread')}"


def remove(ctx: Context, which: str) -> None:
    """Remove a result, by its id; raises NotFound."""
    ctx.store.benches.get(which)
    ctx.store.benches.remove(which)
