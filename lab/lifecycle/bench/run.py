"""``lab bench run``: a workload on a lab, with a growing number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab import options
from lab.bench import workloads
from lab.errors import InvalidSpec, LabError
from lab.lifecycle.bench import measure, results
from lab.lifecycle.bench.client import DATABASE, Bench, bench_of
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import refuse_waiting
from lab.lifecycle.nodes.asleep import awake
from lab.locks.named import lock
from lab.requests.benches import LoadRequest, RunBench
from lab.undo import Undo
from lab.views.benches import BenchStep, BenchView, Check


def run(ctx: Context, asked: RunBench) -> BenchView:
    """Run a workload on a lab and record the result.

    What is in the lab stays as it is: the data are in a database of their own, which is removed at
    the end. After a kill the next benchmark of the lab removes it. Raises NotFound, InvalidSpec for
    a lab without a client, Conflict while another benchmark or another command works on it,
    NotReady, CommandFailed with what sysbench said.
    """
    check(asked)
    refuse_waiting(ctx, asked.lab)
    interrupted.check(ctx, asked.lab)
    with (
        lock(ctx.home, "bench", asked.lab, wait=False),
        lock(ctx.home, "use", asked.lab, shared=True, wait=False),
    ):
        awake(ctx, asked.lab)
        bench = bench_of(ctx, asked.lab, proxied=asked.proxied)
        at, found = time.time(), []
        with Undo() as undo:
            undo.push(f"the benchmark of {asked.lab}", lambda: leave(bench))
            measure.prepare(bench, asked)
            measure.warm_up(bench, asked, asked.threads[0])
            work = workloads.workload(asked.workload)
            for threads in asked.threads:
                found += [measure.step(bench, asked, name, threads) for name in work.steps]
                if work.counted and work.prepares and threads != asked.threads[-1]:
                    measure.prepare(bench, asked)  # its events have used the data up
            checked = measure.checks(bench, asked)
            undo.keep()
        leave(bench)
        view = _view(bench, asked, at, found, checked)
        results.add_run(ctx, view)
    return view


def check(asked: LoadRequest) -> None:
    """Raise InvalidSpec for numbers that the workload does not have."""
    unused = workloads.workload(asked.workload).unused(asked.scale)
    if unused:
        raise InvalidSpec(
            f"the workload {asked.workload} has no {unused[0]}", hint=f"leave out --{unused[0]}"
        )
    if asked.rate and workloads.workload(asked.workload).script == "create_tables":
        raise InvalidSpec("create-tables makes one table after the other: it has no rate")


def leave(bench: Bench) -> None:
    """End what runs in the client, and remove the data; notes what could not be done."""
    name = bench.record.name
    left: dict[str, Callable[[], None]] = {
        f"the client of {name} may still run sysbench": bench.end,
        f"the database {DATABASE} of {name} was not removed": lambda: measure.drop(bench),
    }
    for what, end in left.items():
        try:
            end()
        except LabError as error:
            bench.ctx.progress.note("bench", f"{what}: {error}; the next benchmark of it does that")


def _view(
    bench: Bench,
    asked: RunBench,
    at: float,
    steps: list[BenchStep],
    checked: tuple[Check, ...],
) -> BenchView:
    record, scale = bench.record, workloads.workload(asked.workload).scaled(asked.scale)
    return BenchView(
        results.new_id(), at, record.name, asked.workload, asked.label, record.blueprint,
        f"{record.engine} {record.engine_version}", record.profile,
        options.described(options.shown(record.options)),
        bench.ctx.hypervisor.capabilities().accelerator, bench.through.name,
        "open" if asked.rate else "closed", asked.rate, asked.seconds, asked.warm_up,
        scale.tables, scale.rows, scale.warehouses, tuple(steps), checked,
    )  # fmt: skip
