"""``lab bench compare``: two labs, round by round from warm snapshots of them.

Each side is prepared and warmed up once, then captured with its RAM. Every round begins from that
snapshot, so each begins at the same moment of the same cluster, with the same pages in memory.
Where the host has processors for both, the sides run at the same time, each on processors of its
own, which are exchanged every round (a duet); else they take turns, A B, then B A, and who does not
run is paused. Rounds of A and a branch of it come first: they show what differs between equal labs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from lab.bench import stats, workloads
from lab.bench.sysbench import HISTOGRAM_STEP, Measured
from lab.errors import HostUnfit, InvalidSpec, LabError, NotReady
from lab.host import process
from lab.lifecycle.bench import measure, results
from lab.lifecycle.bench.client import bench_of
from lab.lifecycle.bench.run import check, leave
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.core.waiting import refuse_waiting
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.sleep import sleep
from lab.lifecycle.nodes.asleep import awake
from lab.lifecycle.nodes.inspect import nodes_of, record_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.names import LAB_NAME_LIMIT
from lab.requests.benches import CompareBench
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.state.records import LabRecord
from lab.undo import Undo
from lab.values import dataclass
from lab.views.benches import CompareView, Round
from lab.views.labs import LabView

_LEASE = 86400.0
"""Of what is left of a comparison whose command is killed: a snapshot of each lab, a twin of A."""


@dataclass(frozen=True)
class Side:
    """A lab of a comparison, and the label of the snapshot from which each round begins."""

    lab: str
    label: str
    reset_to: str
    """Where a reset of the lab goes meanwhile: to where it went before."""


@dataclass(frozen=True)
class _Order:
    kind: Literal["duet", "turns"]
    why: str


def compare(ctx: Context, asked: CompareBench, *, timeout: float) -> CompareView:
    """Compare two labs and record the result; afterwards both are as they were before.

    What others write to them meanwhile is lost. ``timeout``: seconds that nodes may take to be
    ready after a rollback. Raises NotFound, InvalidSpec, HostUnfit, Conflict while another
    benchmark or another command works on one of them, NotReady, CommandFailed.
    """
    check(asked)
    if asked.a == asked.b:
        raise InvalidSpec(f"{asked.a} is both A and B", hint="`lab branch` makes a twin of a lab")
    for name in (asked.a, asked.b):
        refuse_waiting(ctx, name)
        interrupted.check(ctx, name)
        bench_of(ctx, name, proxied=asked.proxied)  # raises, before anything is done
    if ctx.hypervisor.memory is None:
        raise HostUnfit(
            "rounds begin from RAM, which cannot be captured on this host",
            hint="`lab bench run` measures one lab",
        )
    order, at = _order(ctx, asked), time.time()
    ctx.progress.note("bench", f"{order.kind}: {order.why}")
    with ExitStack() as stack:
        for name in sorted((asked.a, asked.b)):
            stack.enter_context(lock(ctx.home, "bench", name, wait=False))
        a = stack.enter_context(_prepared(ctx, asked, asked.a, timeout))
        b = stack.enter_context(_prepared(ctx, asked, asked.b, timeout))
        run = _duet if order.kind == "duet" else _turns
        with _twin(ctx, a, timeout) as twin:
            equal = run(ctx, asked, (a, twin), timeout, "A and A")
        rounds = run(ctx, asked, (a, b), timeout, "A and B")
        # Before the labs are put back: that may fail, and hours were measured.
        view = _view(ctx, asked, at, order, equal, rounds)
        results.add_comparison(ctx, view, f"{asked.a}/{asked.b}")
    return view


def _order(ctx: Context, asked: CompareBench) -> _Order:
    """Whether the sides run at the same time; raises HostUnfit if they cannot, and are to."""
    nodes = [nodes_of(ctx, name) for name in (asked.a, asked.b)]
    need, have = [sum(n.size.cpus for n in side) for side in nodes], len(process.processors())
    hidden = {n.guest for side in nodes for n in side} - set(ctx.hypervisor.processes())
    figures = f"{have} processors for {need[0]} and {need[1]} of the two labs' nodes"
    if asked.order == "turns":
        return _Order("turns", "as requested")
    why = figures if have < 2 else ""
    why = "the processes of guests are not seen here" if hidden else why or _unpinned(ctx, nodes)
    if why:
        if asked.order == "duet":
            raise HostUnfit(f"no duet is possible: {why}", hint="--order turns")
        return _Order("turns", why)
    if asked.order == "duet":
        return _Order("duet", f"as requested, on {figures}")
    # Sides exchange their halves, so each must hold the larger one.
    return _Order("duet" if min(map(len, process.halves())) >= max(need) else "turns", figures)


def _unpinned(ctx: Context, sides: Sequence[Sequence[Node]]) -> str:
    """Why guests cannot be kept on halves of the processors; empty if they can."""
    processes = ctx.hypervisor.processes()
    for node in (node for side in sides for node in side):
        try:
            for half in process.halves():
                process.pin(processes[node.guest], half)
        except HostUnfit as error:
            return str(error)
        finally:
            process.release(processes[node.guest])
    return ""


@contextmanager
def _prepared(ctx: Context, asked: CompareBench, name: str, timeout: float) -> Iterator[Side]:
    """A side with data in it, warmed up, captured and asleep; as it was before after the block."""
    record = record_of(ctx, name)
    with ExitStack() as kept, Undo() as undo:
        awake(ctx, name)
        bench = bench_of(ctx, name, proxied=asked.proxied)
        undo.push(f"the benchmark of {name}", lambda: leave(bench))
        with lock(ctx.home, "use", name, shared=True, wait=False):
            measure.prepare(bench, asked)
            measure.warm_up(bench, asked, asked.threads)
            bench.end()
        taken = snapshot.take(ctx, TakeSnapshot(lab=name, name="bench", ttl=_LEASE))
        side = Side(name, taken.label, record.reset_to)
        undo.push(f"the snapshot of {name}", lambda: _forget(ctx, side, record))
        undo.push(f"the lock of {name}'s snapshot", kept.close)
        undo.push(f"the state of {name}", lambda: _again(ctx, side, timeout))
        # However long it takes: nobody removes it meanwhile, though its lease ends.
        kept.enter_context(snapshot.kept(ctx, name, side.label))
        if not taken.warm:
            ctx.progress.note("bench", f"{name} boots in each round: {taken.why_cold}")
        sleep(ctx, name)
        yield side
        view = _again(ctx, side, timeout)
        undo.keep()
    leave(bench_of(ctx, name, proxied=asked.proxied, view=view))
    _forget(ctx, side, record)


def _forget(ctx: Context, side: Side, before: LabRecord) -> None:
    """Remove the snapshot of a side; resets go to the one that they went to before."""
    snapshot.remove_unused(ctx, side.lab, side.label)
    with suppress(LabError):
        ctx.store.labs.update(side.lab, at=before.at, reset_to=before.reset_to)


def _again(ctx: Context, side: Side, timeout: float) -> LabView:
    """Put a side back to its snapshot, from which it runs."""
    view = rollback(ctx, RollBack(lab=side.lab, to=side.label), timeout=timeout)
    # Now, not at the end: a comparison that is killed must not change it.
    ctx.store.labs.update(side.lab, reset_to=side.reset_to)
    return view


@contextmanager
def _twin(ctx: Context, side: Side, timeout: float) -> Iterator[Side]:
    """Another lab that is as a side is, for the block."""
    name = f"{side.lab[: LAB_NAME_LIMIT - 10]}-twin-{secrets.token_hex(2)}"
    asked = BranchLab(lab=side.lab, at=side.label, name=name, ttl=_LEASE)
    with Undo() as undo:
        undo.push(f"the lab {name}", lambda: _removed(ctx, name))
        branch(ctx, asked, timeout=timeout)
        taken = snapshot.take(ctx, TakeSnapshot(lab=name, name="bench", ttl=_LEASE))
        sleep(ctx, name)
        yield Side(name, taken.label, "")
        undo.keep()
    _removed(ctx, name)


def _removed(ctx: Context, name: str) -> None:
    with suppress(LabError):
        down(ctx, name)


def _turns(
    ctx: Context, asked: CompareBench, sides: tuple[Side, Side], timeout: float, what: str
) -> list[Round]:
    """Rounds in which one side runs after the other; the order alternates."""

    def one(number: int) -> Round:
        found: dict[int, Measured] = {}
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            view = _again(ctx, sides[index], timeout)
            with _used(ctx, sides[index]):
                bench = bench_of(ctx, sides[index].lab, proxied=asked.proxied, view=view)
                run = measure.begin(bench, asked, _first_step(asked), asked.threads, asked.seconds)
                found[index] = measure.finished(run, bench, asked, asked.seconds)
            sleep(ctx, sides[index].lab)
        return _round("a" if number % 2 == 0 else "b", found[0], found[1])

    return _rounds(ctx, asked, one, what)


def _duet(
    ctx: Context, asked: CompareBench, sides: tuple[Side, Side], timeout: float, what: str
) -> list[Round]:
    """Rounds in which both sides run at the same time; processors are exchanged."""
    halves = process.halves()

    def one(number: int) -> Round:
        views = {}
        for side in sides:  # the first one waits, paused, for the second
            views[side.lab] = _again(ctx, side, timeout)
            sleep(ctx, side.lab)
        for side in sides:
            awake(ctx, side.lab)
        turned = halves if number % 2 == 0 else halves[::-1]
        for side, own in zip(sides, turned, strict=True):
            _pin(ctx, side, own)
        benches = [
            bench_of(ctx, side.lab, proxied=asked.proxied, view=views[side.lab]) for side in sides
        ]
        start = partial(
            measure.begin, asked=asked, step=_first_step(asked), threads=asked.threads,
            seconds=asked.seconds,
        )  # fmt: skip
        with _used(ctx, sides[0]), _used(ctx, sides[1]):
            runs = each(start, benches)
            first, second = each(
                lambda pair: measure.finished(*pair, asked, asked.seconds),
                list(zip(runs, benches, strict=True)),
            )
        for side in sides:
            sleep(ctx, side.lab)
        skew = abs(runs[0].began - runs[1].began)
        return replace(_round("a" if number % 2 == 0 else "b", first, second), skew=skew)

    try:
        return _rounds(ctx, asked, one, what)
    finally:
        for side in sides:
            measure.release(ctx, nodes_of(ctx, side.lab))


def _used(ctx: Context, side: Side) -> AbstractContextManager[bool]:
    """In the block nobody puts the lab of a side to sleep, whose clients are not seen outside."""
    return lock(ctx.home, "use", side.lab, shared=True, wait=False)


def _pin(ctx: Context, side: Side, to: Sequence[int]) -> None:
    processes = ctx.hypervisor.processes()
    for node in nodes_of(ctx, side.lab):
        if node.guest in processes:
            process.pin(processes[node.guest], to)


def _first_step(asked: CompareBench) -> str:
    return workloads.workload(asked.workload).steps[0]


def _rounds(
    ctx: Context, asked: CompareBench, one: Callable[[int], Round], what: str
) -> list[Round]:
    found = []
    for number in range(asked.rounds):
        with ctx.progress.step("round", f"round {number + 1} of {asked.rounds}, {what}"):
            found.append(one(number))
    return found


def _round(first: Literal["a", "b"], a: Measured, b: Measured) -> Round:
    """A round; raises NotReady if nothing was measured in it."""
    if not a.events or not b.events or a.latency is None or b.latency is None:
        raise NotReady(
            "a run ended without one event: there is nothing to compare",
            hint="a longer --seconds, or fewer rows",
        )
    return Round(first, a.tps, b.tps, a.latency.p95, b.latency.p95)


def _view(
    ctx: Context,
    asked: CompareBench,
    at: float,
    order: _Order,
    equal: Sequence[Round],
    rounds: Sequence[Round],
) -> CompareView:
    scale = workloads.workload(asked.workload).scaled(asked.scale)
    tps = stats.compare([r.b / r.a for r in equal], [r.b / r.a for r in rounds], more=True)
    p95 = None
    if all(r.a_p95 > 0 and r.b_p95 > 0 for r in (*equal, *rounds)):
        p95 = stats.compare(
            [r.b_p95 / r.a_p95 for r in equal],
            [r.b_p95 / r.a_p95 for r in rounds],
            more=False,
            least=2 * HISTOGRAM_STEP,
        )
    return CompareView(
        results.new_id(), at, asked.workload, asked.label, asked.said_a or asked.a,
        asked.said_b or asked.b, ctx.hypervisor.capabilities().accelerator, order.kind, order.why,
        asked.threads, asked.seconds, asked.rate, scale.tables, scale.rows, scale.warehouses,
        tuple(equal), tuple(rounds), tps, p95, asked.expect,
    )  # fmt: skip
