"""Benchmarks of labs on the fakes: a run, a comparison, and what is left of them."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.errors import Busy, CommandFailed, Conflict, HostUnfit, InvalidSpec, NotFound
from lab.host import process
from lab.hypervisor import GuestChannel
from lab.lifecycle.bench import results
from lab.lifecycle.bench.client import DATABASE, OPTIONS
from lab.lifecycle.core.context import Context
from lab.lifecycle.host import gc as collecting
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.sleep import sleep
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.perform import perform
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.names import GuestName
from lab.requests.benches import CompareBench, RunBench
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.views.bench_reports import COLUMNS, as_csv, comment
from lab.views.benches import BenchView, CompareView
from tests.support.lifecycle_world import World, lab_request

FAST: dict[str, Any] = {"seconds": 2.0, "warm_up": 1.0}


def make(ctx: Context, name: str = "shop", blueprint: str = "single", **values: object) -> None:
    up(ctx, lab_request(blueprint, name, client=True, **values))


def databases(ctx: Context, name: str = "shop") -> bool:
    """Whether the database of a benchmark is in a lab."""
    try:
        query(ctx, name, None, f"CREATE TABLE {DATABASE}.probe (a INT)")
    except CommandFailed:
        return False
    return True


def test_a_ladder_of_threads(world: World) -> None:
    with world.open() as ctx:
        make(ctx, "shop", "galera", nodes=2, proxy="haproxy")
        view = perform(
            ctx,
            RunBench(
                lab="shop", workload="oltp_read_write", threads=(1, 2, 4), label="x", proxied=True,
                **FAST,
            ),
        )  # fmt: skip
        assert [step.threads for step in view.steps] == [1, 2, 4]
        tps = [step.measured.tps for step in view.steps]
        assert tps == sorted(tps)
        assert view.through == "n3", "the proxy"
        assert (view.tables, view.rows, view.loop) == (1, 10_000, "closed")
        uses = {use.node: use for use in view.steps[0].nodes}
        assert uses["n4"].counters == {}
        assert uses["n1"].cpu is None, "guests of the fake are no processes: unknown, not 0"
        assert uses["n1"].disk is not None
        assert not databases(ctx)
        guest = GuestName(ctx.store.nodes.get("shop", "n4").guest)
        assert OPTIONS not in ctx.hypervisor.servers.inside(guest).files  # type: ignore[attr-defined]
        assert results.show(ctx, view.id) == results.show(ctx, "x") == view
        (line,) = results.summaries(ctx)
        assert (line.workload, line.lab) == ("oltp_read_write", "shop")
        down(ctx, "shop")
        assert results.show(ctx, view.id) == view, "it outlives the lab"
        assert collecting.gc(ctx).removed == ()


def test_workloads_of_a_number_of_events(world: World) -> None:
    with world.open() as ctx:
        make(ctx)
        made = perform(ctx, RunBench(lab="shop", workload="create-tables", tables=50, **FAST))
        assert [(step.name, step.measured.events) for step in made.steps] == [
            ("create", 50), ("drop", 50)
        ]  # fmt: skip
        loaded = perform(ctx, RunBench(lab="shop", workload="import", threads=(1, 2), rows=30))
        assert [step.measured.events for step in loaded.steps] == [30, 30]
        opened = perform(ctx, RunBench(lab="shop", workload="tpcc-like", rate=20, **FAST))
        assert (opened.loop, opened.steps[0].measured.tps) == ("open", 20.0)
        assert {check.broken for check in opened.checks} == {None}, "the fake has no such tables"
        text = as_csv(results.runs(ctx))
        assert text.count("\n") == 1 + 2 + 2 + 1
        assert text.startswith(",".join(COLUMNS))


def test_what_is_refused(world: World) -> None:
    with world.open() as ctx:
        up(ctx, lab_request("single", "plain"))
        make(ctx)
        for lab_name, values, message in (
            ("plain", {}, "has no client"),
            ("shop", {"proxied": True}, "has no proxy"),
            ("shop", {"warehouses": 3}, "has no warehouses"),
        ):
            asked = RunBench(lab=lab_name, workload="oltp_insert", **values)
            with pytest.raises(InvalidSpec, match=message):
                perform(ctx, asked)
        with pytest.raises(InvalidSpec, match="has no rate"):
            perform(ctx, RunBench(lab="shop", workload="create-tables", rate=3))
        with pytest.raises(NotFound):
            perform(ctx, RunBench(lab="nowhere", workload="oltp_insert"))
        with lock(ctx.home, "bench", "shop"), pytest.raises(Busy):
            perform(ctx, RunBench(lab="shop", workload="oltp_insert"))
        with pytest.raises(InvalidSpec, match="both A and B"):
            perform(ctx, CompareBench(a="shop", b="shop", workload="oltp_insert"))
        assert results.summaries(ctx) == []


FATAL = b"FATAL: mysql_drv_query() returned error 1146 (no such table)\n"


class Failing:
    """A channel whose benchmark fails at its third run."""

    def __init__(self, channel: GuestChannel, begun: list[str]) -> None:
        self._channel = channel
        self._begun = begun

    def run(self, argv: Sequence[str], **how: object) -> bytes:
        if list(argv[1:2]) == ["begin"]:
            self._begun.append(argv[3])
        if len(self._begun) == 3 and argv[1] == "look":
            return b"done 1\n" + FATAL[int(argv[2]) :]
        return self._channel.run(argv, **how)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)


def failing(ctx: Context) -> Context:
    """``ctx`` in which a benchmark fails."""
    begun: list[str] = []

    class Hypervisor:
        def __getattr__(self, name: str) -> object:
            return getattr(ctx.hypervisor, name)

        def channel(self, guest: GuestName) -> object:
            return Failing(ctx.hypervisor.channel(guest), begun)

    return dataclasses.replace(ctx, hypervisor=Hypervisor())  # type: ignore[arg-type]


def test_a_run_that_fails_leaves_nothing(world: World) -> None:
    """Protects the lab: no data, no program in the client, no result; and sysbench's error."""
    with world.open() as ctx:
        make(ctx)
        asked = RunBench(lab="shop", workload="oltp_insert", **FAST)
        with pytest.raises(CommandFailed) as failed:
            perform(failing(ctx), asked)
        assert "1146" in failed.value.stderr
        assert not databases(ctx)
        assert results.summaries(ctx) == []
        assert perform(ctx, asked).steps, "the next one finds nothing in its way"


def test_a_database_of_that_name_is_the_user_s(world: World) -> None:
    """Protects data: only what a benchmark made is replaced."""
    with world.open() as ctx:
        make(ctx)
        query(ctx, "shop", None, f"CREATE DATABASE {DATABASE}")
        with pytest.raises(Conflict, match="without the mark of a benchmark"):
            perform(ctx, RunBench(lab="shop", workload="oltp_insert", **FAST))
        assert databases(ctx)


def test_a_benchmark_that_cannot_clean_up_says_so(world: World) -> None:
    """Protects the next one from what is left without a word; and the result is kept."""
    with world.open() as ctx:
        make(ctx)

        class Hypervisor:
            """A client whose programs cannot be ended."""

            def __getattr__(self, name: str) -> object:
                return getattr(ctx.hypervisor, name)

            def channel(self, guest: GuestName) -> object:
                real = ctx.hypervisor.channel(guest)

                class Channel:
                    def __getattr__(self, name: str) -> object:
                        return getattr(real, name)

                    def run(self, argv: Sequence[str], **given: Any) -> bytes:
                        if argv[1:] == ["end"]:
                            raise CommandFailed(argv, 1)
                        return real.run(argv, **given)

                return Channel()

        seen = dataclasses.replace(ctx, hypervisor=Hypervisor())  # type: ignore[arg-type]
        view = perform(seen, RunBench(lab="shop", workload="oltp_insert", **FAST))
        assert results.show(ctx, view.id) == view
        assert not databases(ctx)
    assert any("the client of shop may still run sysbench" in note for note in world.notes)


def test_cores_are_not_shared(tmp_path: Path) -> None:
    """Protects the duet: two threads of a core would slow each other down."""
    for number in range(8):
        path = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        path.mkdir(parents=True)
        (path / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    assert process.halves(range(8), tmp_path) == ([0, 4, 1, 5], [2, 6, 3, 7])
    assert process.halves([0, 1], tmp_path / "none") == ([0], [1])


def test_a_planted_slowdown_is_found(world: World) -> None:
    """Protects the verdict, and both labs: afterwards they are as they were before."""
    with world.open() as ctx:
        make(ctx, "a")
        make(ctx, "b", set=("innodb_flush_log_at_trx_commit=1",))
        query(ctx, "a", None, "CREATE TABLE t (a INT)")
        good = snapshot.take(ctx, TakeSnapshot(lab="a", name="good")).label
        rollback(ctx, RollBack(lab="a", to=good), timeout=20)
        asked = CompareBench(a="a", b="b", workload="oltp_write_only", expect="-50%", **FAST)
        view = perform(ctx, asked, timeout=20)
        assert (view.tps.verdict, view.order, len(view.rounds)) == ("slower", "turns", 8)
        assert view.tps.effect.mid == pytest.approx(0.5, abs=0.02)
        assert view.p95 is not None
        assert view.p95.verdict == "slower"
        assert [one.first for one in view.rounds] == ["a", "b"] * 4
        for name, kept in (("a", ["origin", "good"]), ("b", ["origin"])):
            assert lab(ctx, name).state == "ready"
            assert [one.name for one in snapshot.snapshots(ctx, name)] == kept
            assert not databases(ctx, name)
        assert query(ctx, "a", None, "SELECT COUNT(*) FROM t").rows == ((0,),)
        assert ctx.store.labs.get("a").at == good, "a reset goes where it did before"
        shown = results.show(ctx, view.id)
        assert shown == view
        assert isinstance(shown, CompareView)
        assert "**B is slower**" in comment(shown)
        assert "Expected: -50%" in comment(shown)


def test_a_duet_has_processors_of_its_own_for_each_side(world: World) -> None:
    """Protects the pairs: both run at the same time, and exchange processors every round."""
    here = process.processors()
    if len(here) < 2:
        pytest.skip("one processor")
    halves = set(here[: len(here) // 2]), set(here[len(here) // 2 :])
    places: list[tuple[set[int], set[int]]] = []
    with (
        world.open() as ctx,
        subprocess.Popen(["sleep", "600"]) as one,
        subprocess.Popen(["sleep", "600"]) as other,
    ):

        class Hypervisor:
            """Guests that are processes: those of lab b one, all others another."""

            def __getattr__(self, name: str) -> object:
                return getattr(ctx.hypervisor, name)

            def channel(self, guest: GuestName) -> GuestChannel:
                places.append((os.sched_getaffinity(one.pid), os.sched_getaffinity(other.pid)))
                return ctx.hypervisor.channel(guest)

            def processes(self) -> dict[GuestName, int]:
                return {
                    name: other.pid if name.startswith("lab-b-") else one.pid
                    for name in ctx.hypervisor.guests()
                }

        try:
            make(ctx, "a")
            make(ctx, "b")
            seen = dataclasses.replace(ctx, hypervisor=Hypervisor())  # type: ignore[arg-type]
            asked = CompareBench(a="a", b="b", workload="oltp_insert", rounds=2, order="duet",
                                 **FAST)  # fmt: skip
            view = perform(seen, asked, timeout=60)
            assert (view.order, [one.first for one in view.rounds]) == ("duet", ["a", "b"])
            assert all(one.skew is not None for one in view.rounds)
            # A and its twin are one process here, which is pinned twice in the rounds of A and A.
            assert places.index(halves) < places.index(halves[::-1])
            assert os.sched_getaffinity(one.pid) == os.sched_getaffinity(other.pid) == set(here)
            assert [record.name for record in ctx.store.labs.all()] == ["a", "b"], "no twin is left"
        finally:
            one.kill()
            other.kill()
        refused = CompareBench(a="a", b="b", workload="oltp_insert", order="duet")
        with pytest.raises(HostUnfit, match="no duet is possible"):
            perform(ctx, refused)


@pytest.mark.rare
def test_equal_labs_are_called_equal(world: World) -> None:
    random.seed(41)  # of the fake's figures: about 1 of 100 comparisons of equals has a verdict
    with world.open() as ctx:
        make(ctx, "a")
        make(ctx, "b")
        sleep(ctx, "b")
        asked = CompareBench(a="a", b="b", workload="oltp_insert", order="turns", **FAST)
        assert perform(ctx, asked, timeout=20).tps.verdict == "no difference seen"
        assert lab(ctx, "b").state == "ready"


def test_a_comparison_that_fails_leaves_nothing(world: World) -> None:
    with world.open() as ctx:
        make(ctx, "a")
        make(ctx, "b")
        with pytest.raises(CommandFailed):
            perform(
                failing(ctx), CompareBench(a="a", b="b", workload="oltp_insert", **FAST), timeout=20
            )
        for name in ("a", "b"):
            assert lab(ctx, name).state == "ready"
            assert [one.name for one in snapshot.snapshots(ctx, name)] == ["origin"]
        assert results.summaries(ctx) == []


def test_a_result_of_another_version_is_listed(world: World) -> None:
    """Protects the list from one result that cannot be read."""
    with world.open() as ctx:
        make(ctx)
        view = perform(ctx, RunBench(lab="shop", workload="oltp_insert", **FAST))
        ctx.store.benches.update(view.id, result={"later": 1})
        assert results.summaries(ctx)[0].result == "recorded by another version of lab"
        with pytest.raises(InvalidSpec, match="another version"):
            results.show(ctx, view.id)
        results.remove(ctx, view.id)
        with pytest.raises(NotFound):
            results.show(ctx, view.id)
    assert isinstance(view, BenchView)
