"""Benchmarks that are killed: labs are as whole as before, and the next benchmark works."""

from __future__ import annotations

from typing import Any

import pytest

from lab.errors import CommandFailed, Conflict
from lab.lifecycle.bench import results
from lab.lifecycle.bench.client import DATABASE
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.perform import perform
from lab.lifecycle.snapshots import snapshot
from lab.requests.benches import CompareBench, RunBench
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, lab_request

pytestmark = pytest.mark.rare
FAST: dict[str, Any] = {"seconds": 2.0, "warm_up": 1.0}


def make(ctx: Context, name: str) -> None:
    up(ctx, lab_request("single", name, client=True))
    query(ctx, name, None, "CREATE TABLE t (a INT)")
    query(ctx, name, None, "INSERT INTO t VALUES (1)")


def is_whole(ctx: Context, name: str) -> None:
    """The user's rows are there, and no data of a benchmark."""
    assert query(ctx, name, None, "SELECT COUNT(*) FROM t").rows == ((1,),)
    with pytest.raises(CommandFailed):
        query(ctx, name, None, f"CREATE TABLE {DATABASE}.probe (a INT)")


def test_a_run_is_killed_at_each_step(world: World) -> None:
    with world.open() as ctx:
        make(ctx, "shop")
    baseline = world.there()

    def run(ctx: Context) -> None:
        perform(ctx, RunBench(lab="shop", workload="oltp_insert", **FAST))

    step = 0
    while name := world.killed(run, step):
        with world.open() as ctx:
            gc(ctx)
            run(ctx)
            is_whole(ctx, "shop")
        assert world.there() == baseline, f"after a kill at {name}, step {step}"
        step += 3


def test_a_comparison_is_killed_at_many_steps(world: World) -> None:
    """Protects both labs: the next comparison works, and puts them back to what they were.

    What is left until then, a twin and two snapshots, has leases.
    """
    with world.open() as ctx:
        for name in ("a", "b"):
            make(ctx, name)
        good = snapshot.take(ctx, TakeSnapshot(lab="a", name="good")).label
        rollback(ctx, RollBack(lab="a", to=good), timeout=20)

    def run(ctx: Context) -> None:
        asked = CompareBench(a="a", b="b", workload="oltp_insert", order="turns", rounds=1, **FAST)
        perform(ctx, asked, timeout=20)

    step, finished = 1, False
    while not finished:
        finished = not world.killed(run, step)
        with world.open() as ctx:
            gc(ctx)
            for record in ctx.store.labs.all():
                assert record.name in ("a", "b") or record.expires_at, record
                for one in snapshot.snapshots(ctx, record.name):
                    assert one.name in ("origin", "good") or one.expires_at, one
            cut = [name for name in ("a", "b") if interrupted.exists(ctx, name)]
            for name in cut:
                with pytest.raises(Conflict, match="was interrupted") as refused:
                    run(ctx)
                *_, label = (refused.value.hint or "").partition("`")[2].partition("`")[0].split()
                rollback(ctx, RollBack(lab=name, to=label), timeout=20)
            run(ctx)
            for name in ("a", "b"):
                assert lab(ctx, name).state == "ready"
                is_whole(ctx, name)
            if "a" not in cut:
                assert ctx.store.labs.get("a").reset_to == good, f"step {step}"
            rollback(ctx, RollBack(lab="a", to=good), timeout=20)
        step += 37
    with world.open() as ctx:
        assert results.summaries(ctx)
