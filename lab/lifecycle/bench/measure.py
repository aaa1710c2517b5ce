"""One step of a benchmark: data, the run itself, and what it did to servers and to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lab.bench import counters, sysbench, workloads
from lab.bench.sysbench import Measured
from lab.bench.workloads import Workload
from lab.errors import Conflict, LabError, NotFound, StatementRefused
from lab.host import process
from lab.host.process import Used
from lab.lifecycle.bench.client import DATABASE, Bench, Run
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import images_of
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.requests.benches import LoadRequest
from lab.units import counted
from lab.values import dataclass
from lab.views.benches import BenchStep, Check, NodeUse
from lab.wait import Deadline

_GRACE = 120.0
"""Seconds more than requested after which a run must have ended: threads end their events."""
_LONGEST = 6 * 3600.0
"""Seconds that making the data, or a number of events, may take."""
_COUNTER_SECONDS = 10.0
_EXISTS = 1007
"""ER_DB_CREATE_EXISTS."""
_MARK = "made_by_lab_bench"
"""A table that only the database of a benchmark has."""


@dataclass(frozen=True)
class Seen:
    """What was seen of the nodes at one moment, by name."""

    counters: Mapping[str, Mapping[str, int]]
    used: Mapping[str, Used]


def prepare(bench: Bench, asked: LoadRequest) -> None:
    """Make the database of a benchmark, and its data; what one that was killed left is replaced.

    Raises NotReady and CommandFailed.
    """
    work, progress = workloads.workload(asked.workload), bench.ctx.progress
    with progress.step("data", f"making the data of {asked.workload}"):
        release(bench.ctx, bench.nodes)
        drop(bench)
        try:
            bench.execute(f"CREATE DATABASE {DATABASE}")
        except StatementRefused as error:
            if error.status != _EXISTS:
                raise
            raise Conflict(
                f"the lab {bench.record.name} has a database {DATABASE} without the mark of a"
                " benchmark, which would replace it",
                hint="drop it if it is empty, as a benchmark that was killed leaves it; else rename"
                " it",
            ) from None
        bench.execute(f"CREATE TABLE {DATABASE}.{_MARK} (id INT PRIMARY KEY)")
        if work.prepares:
            options = work.options(work.scaled(asked.scale), work.steps[0])
            run = bench.begin(work.script, "prepare", ["--rand-seed=1", *options])
            output = run.output(Deadline.after(_LONGEST), progress.halt)
            _check_prepared(output, work)


def release(ctx: Context, nodes: Sequence[Node]) -> None:
    """Have guests run on all processors again, which a duet restricts."""
    processes = ctx.hypervisor.processes()
    for node in nodes:
        if node.guest in processes:
            process.release(processes[node.guest])


def _check_prepared(output: bytes, work: Workload) -> None:
    if b"FATAL" in output:
        sysbench.parse(output, work.script)  # raises, with what it said


def drop(bench: Bench) -> None:
    """Remove the database of a benchmark, and none that others made.

    Raises NotReady and CommandFailed.
    """
    try:
        bench.execute(f"SELECT COUNT(*) FROM {DATABASE}.{_MARK}")  # noqa: S608  # our own names
    except StatementRefused:
        return
    bench.execute(f"DROP DATABASE {DATABASE}")


def warm_up(bench: Bench, asked: LoadRequest, threads: int) -> None:
    """Run the workload for a while, unless it has a number of events, and forget the result."""
    work = workloads.workload(asked.workload)
    if asked.warm_up and not work.counted:
        with bench.ctx.progress.step("warm", f"warming up for {asked.warm_up:g} s"):
            measure(bench, asked, "", threads, asked.warm_up)


def measure(bench: Bench, asked: LoadRequest, step: str, threads: int, seconds: float) -> Measured:
    """Run a workload once, without further looks at servers; raises NotReady, CommandFailed."""
    return finished(begin(bench, asked, step, threads, seconds), bench, asked, seconds)


def begin(bench: Bench, asked: LoadRequest, step: str, threads: int, seconds: float) -> Run:
    """Start a run of a workload; raises NotReady, CommandFailed."""
    work = workloads.workload(asked.workload)
    scale = work.scaled(asked.scale)
    events = work.events(scale)
    options = sysbench.options(
        threads, seconds=0 if events else max(1, round(seconds)), events=events, rate=asked.rate
    )
    return bench.begin(work.script, "run", [*options, *work.options(scale, step)])


def finished(run: Run, bench: Bench, asked: LoadRequest, seconds: float) -> Measured:
    """What a run measured, once it has ended; raises NotReady, CommandFailed."""
    counted, progress = workloads.workload(asked.workload).counted, bench.ctx.progress
    output = run.output(
        Deadline.after(_LONGEST if counted else seconds + _GRACE),
        progress.halt,
        # Each look costs the client a process, whose time the servers may lack.
        most=2.0 if counted else min(10.0, max(1.0, seconds / 5)),
        note=lambda line: progress.update("bench", line[:80]),
    )
    return sysbench.parse(output, run.script)


def step(bench: Bench, asked: LoadRequest, name: str, threads: int) -> BenchStep:
    """Measure one step, with what it did to servers and to the host."""
    called = f"{asked.workload}{f' ({name})' if name else ''}, {counted(threads, 'thread')}"
    with bench.ctx.progress.step("bench", called):
        before = look(bench)
        measured = measure(bench, asked, name, threads, asked.seconds)
        return BenchStep(name, threads, measured, used_since(bench, before))


def look(bench: Bench) -> Seen:
    """The counters of all servers, and what the processes of all guests have used."""
    return Seen(_counters(bench), _used(bench, bench.nodes))


def used_since(bench: Bench, before: Seen) -> tuple[NodeUse, ...]:
    """What each node needed since ``before``."""
    after, disk = look(bench), _on_disk(bench)
    return tuple(
        NodeUse(
            node.name,
            node.role,
            counters.rise(before.counters.get(node.name, {}), after.counters.get(node.name, {})),
            *_rise(before.used.get(node.name), after.used.get(node.name)),
            disk.get(node.name),
        )
        for node in bench.nodes
    )


def checks(bench: Bench, asked: LoadRequest) -> tuple[Check, ...]:
    """Whether the data are consistent after the run of a workload that has conditions."""
    if asked.workload != "tpcc-like":
        return ()
    found = []
    for what, statement in workloads.CHECKS:
        broken = None
        with suppress(LabError):
            (rows,) = bench.execute(statement.format(db=DATABASE))
            broken = int(str(rows.rows[0][0]))
        found.append(Check(what, broken))
    return tuple(found)


def _counters(bench: Bench) -> dict[str, dict[str, int]]:
    account = account_of(bench.ctx.home, bench.record)

    def ask(node: Node) -> tuple[str, dict[str, int]]:
        try:
            (rows,) = bench.ctx.ways.sql_all(
                account, node.sql_port, [counters.QUESTION], timeout=_COUNTER_SECONDS
            )
        except LabError:
            return node.name, {}
        return node.name, counters.read(rows.rows)

    return dict(each(ask, [node for node in bench.nodes if node.has_server]))


def _used(bench: Bench, nodes: Sequence[Node]) -> dict[str, Used]:
    processes, found = bench.ctx.hypervisor.processes(), {}
    for node in nodes:
        if node.guest in processes and (one := process.used(processes[node.guest])):
            found[node.name] = one
    return found


def _rise(before: Used | None, after: Used | None) -> tuple[float | None, int | None]:
    if before is None or after is None or after.cpu < before.cpu:
        return None, None
    known = before.written is not None and after.written is not None
    return (
        round(after.cpu - before.cpu, 2),
        (after.written or 0) - (before.written or 0) if known else None,
    )


def _on_disk(bench: Bench) -> dict[str, int]:
    images = images_of(bench.ctx, bench.record, bench.nodes)
    found = {}
    for node in bench.nodes:
        with suppress(NotFound):
            found[node.name] = sum(map(bench.ctx.storage.used, volumes_of(node, images)))
    return found
