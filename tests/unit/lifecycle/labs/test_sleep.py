"""Labs that are asleep: paused as a whole, woken by each verb that needs their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lab.errors import Conflict, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.node_access import execute, ssh_argv
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.sleep import sleep, wake
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.asleep import awake
from lab.lifecycle.nodes.inspect import lab, labs, status
from lab.lifecycle.perform import perform
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.request import Request
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    DropStandby,
    MakeStandby,
    ResetLab,
    RollBack,
    StartLab,
    StopLab,
    WakeLab,
)
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import ORIGIN
from tests.support.lifecycle_world import World, at, make_lab, make_template, raising


def states(ctx: Context) -> set[str]:
    """Of the guests."""
    return {guest.state for guest in ctx.hypervisor.guests().values()}


def made(ctx: Context) -> None:
    make_template(ctx)
    make_lab(ctx)


def test_a_lab_sleeps_and_wakes(world: World) -> None:
    with world.open() as ctx:
        made(ctx)
        before = lab(ctx, "shop")
        view = sleep(ctx, "shop")
        assert (view.state, {node.state for node in view.nodes}) == ("asleep", {"paused"})
        assert view.asleep_at == pytest.approx(time.time(), abs=20)
        assert (view.dsn, view.expires_at) == (before.dsn, before.expires_at)
        assert states(ctx) == {"paused"}
        assert sleep(ctx, "shop").asleep_at == view.asleep_at
        back = wake(ctx, "shop")
        assert (back.state, back.asleep_at) == ("ready", None)
        assert states(ctx) == {"running"}
        assert wake(ctx, "shop").state == "ready"


def test_who_only_looks_does_not_wake_it(world: World) -> None:
    with world.open() as ctx:
        made(ctx)
        label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="base")).label
        sleep(ctx, "shop")
        assert [view.state for view in labs(ctx)] == ["asleep"]
        assert status(ctx, "shop").lab.state == "asleep"
        assert snapshot.snapshots(ctx, "shop")
        perform(ctx, ChangeLab(lab="shop", ttl=600.0))
        ctx.store.labs.update("shop", snapshots="hourly:2")
        gc(ctx)
        perform(ctx, MakeStandby(lab="shop", to=label))
        perform(ctx, DropStandby(lab="shop"))
        assert lab(ctx, "shop").state == "asleep"
        assert states(ctx) == {"paused"}
        assert [one.name for one in snapshot.snapshots(ctx, "shop")] == [ORIGIN, "base"]


def asked(request: Request) -> Callable[[Context], object]:
    return lambda ctx: perform(ctx, request, timeout=20.0)


VERBS: dict[str, Callable[[Context], object]] = {
    "sql": lambda ctx: query(ctx, "shop", None, "SELECT 1"),
    "exec": lambda ctx: execute(ctx, "shop", "n1", ["journalctl"], timeout=5.0),
    "ssh": lambda ctx: ssh_argv(ctx, "shop", "n1"),
    "wait": lambda ctx: wait(ctx, "shop", timeout=20.0),
    "up --exist-ok": lambda ctx: ensure(
        ctx, CreateLab(blueprint="galera", name="shop", nodes=2, memory=384 << 20)
    ),
    "start": asked(StartLab(lab="shop")),
    "wake": asked(WakeLab(lab="shop")),
    "rollback": asked(RollBack(lab="shop", to="base")),
    "rollback --node": asked(RollBack(lab="shop", to="base", node="n2")),
    "reset": asked(ResetLab(lab="shop", to="base")),
    "snapshot": lambda ctx: snapshot.take(ctx, TakeSnapshot(lab="shop", name="more")),
    "branch": lambda ctx: branch(ctx, BranchLab(lab="shop", name="other"), timeout=20.0),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_needs_its_nodes_wakes_it(world: World, verb: str) -> None:
    with world.open() as ctx:
        made(ctx)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="base"))
        sleep(ctx, "shop")
        VERBS[verb](ctx)
        view = lab(ctx, "shop")
        assert (view.state, view.asleep_at) == ("ready", None)
        assert states(ctx) == {"running"}
        assert ctx.store.labs.get("shop").asleep_at is None


@pytest.mark.parametrize("force", [False, True])
def test_a_lab_that_is_asleep_is_stopped_or_removed(world: World, force: bool) -> None:
    with world.open() as ctx:
        made(ctx)
        sleep(ctx, "shop")
        perform(ctx, StopLab(lab="shop", force=force))
        assert lab(ctx, "shop").state == "stopped"
        with pytest.raises(Conflict, match="does not run"):
            sleep(ctx, "shop")
        assert perform(ctx, StartLab(lab="shop"), timeout=20.0).state == "ready"
        sleep(ctx, "shop")
        down(ctx, "shop")
        gc(ctx)
    assert not [one for one in world.there() if "shop" in one]


def test_a_reset_by_a_standby(world: World) -> None:
    """The former guests are asleep, the lab is awake then."""
    with world.open() as ctx:
        made(ctx)
        label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="base")).label
        perform(ctx, MakeStandby(lab="shop", to=label))
        sleep(ctx, "shop")
        view = perform(ctx, ResetLab(lab="shop", to=label, once=True))
        assert "takeover" in {step.step for step in ctx.progress.steps}
        assert (view.state, states(ctx)) == ("ready", {"running"})


def test_one_that_cannot_be_paused_runs(world: World) -> None:
    with world.open() as ctx:
        made(ctx)
    with world.open(at("hypervisor.pause", raising(Conflict("no")))) as ctx:
        with pytest.raises(Conflict, match="no"):
            sleep(ctx, "shop")
        assert (lab(ctx, "shop").state, states(ctx)) == ("ready", {"running"})
        assert ctx.store.labs.get("shop").asleep_at is None


def test_a_lab_whose_disk_is_full_does_not_sleep(world: World) -> None:
    with world.open() as ctx:
        made(ctx)
        guest = lab(ctx, "shop").nodes[0].guest
        ctx.hypervisor.halt(guest, "no space")  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match="halted: no space"):
            sleep(ctx, "shop")


@pytest.mark.parametrize("verb", [sleep, wake])
def test_a_verb_that_is_killed_at_each_step(
    world: World, verb: Callable[[Context, str], object]
) -> None:
    """The lab runs or is asleep, or what it shows is true and `lab wake` mends it."""
    with world.open() as ctx:
        made(ctx)
    step = 0
    while True:
        with world.open() as ctx:
            if verb is wake:
                sleep(ctx, "shop")
        name = world.killed(lambda ctx: verb(ctx, "shop"), step)
        with world.open() as ctx:
            there = states(ctx)
            shown = lab(ctx, "shop").state
            assert (shown == "ready") == (there == {"running"}), f"{name}, step {step}"
            assert shown != "asleep" or there == {"paused"}, f"{name}, step {step}"
            if len(there) == 1:  # else only some of them were paused by then
                assert shown in ("ready", "asleep"), f"{name}, step {step}"
            assert wake(ctx, "shop").state == "ready", f"{name}, step {step}"
            assert states(ctx) == {"running"}
            assert ctx.store.labs.get("shop").asleep_at is None
        if not name:
            break
        step += 1
    assert step > 3


def test_clocks_are_set(world: World) -> None:
    """Also of nodes that a wake resumed which was killed, or whose agent did not answer."""
    with world.open() as ctx:
        made(ctx)
        sleep(ctx, "shop")
    with world.open(at("hypervisor.personalise", raising(NotReady("no")))) as ctx:
        with pytest.raises(NotReady):
            wake(ctx, "shop")
        assert states(ctx) == {"running"}
        assert ctx.store.labs.get("shop").asleep_at is not None
    called: list[str] = []
    with world.open(called.append) as ctx:
        wake(ctx, "shop")
        assert ctx.store.labs.get("shop").asleep_at is None
    assert called.count("hypervisor.personalise") == 2


def test_a_stop_does_not_need_the_agents(world: World) -> None:
    """Protects the way out: a stop and a rollback work where clocks cannot be set."""
    for verb in (StopLab(lab="shop"), RollBack(lab="shop", to="base")):
        with world.open() as ctx:
            if ctx.store.labs.find("shop") is None:
                made(ctx)
                snapshot.take(ctx, TakeSnapshot(lab="shop", name="base"))
            perform(ctx, StartLab(lab="shop"), timeout=20.0)
            sleep(ctx, "shop")
        once = at("hypervisor.personalise", raising(NotReady("no")))
        with world.open(once if isinstance(verb, StopLab) else lambda _: None) as ctx:
            perform(ctx, verb, timeout=20.0)
            assert ctx.store.labs.get("shop").asleep_at is None


def test_a_program_of_the_agent_keeps_it_awake(world: World) -> None:
    """Protects programs that neither servers nor ports show."""
    with world.open() as ctx:
        made(ctx)
        with lock(ctx.home, "use", "shop", shared=True):
            with pytest.raises(Conflict):
                sleep(ctx, "shop")
            execute(ctx, "shop", "n1", ["journalctl"], timeout=5.0)
        assert sleep(ctx, "shop").state == "asleep"


def test_who_wakes_an_earlier_sleep_does_not_end_this_one(world: World) -> None:
    """Protects a lab that is put to sleep again, just when it was woken, from the one who did."""
    with world.open() as ctx:
        made(ctx)
        first = sleep(ctx, "shop").asleep_at
        wake(ctx, "shop")
        second = sleep(ctx, "shop").asleep_at
        assert first != second
        assert not awake(ctx, "shop", only=first)
        assert lab(ctx, "shop").state == "asleep"
        assert awake(ctx, "shop", only=second)


def test_only_as_it_was_expected(world: World) -> None:
    """Protects from a decision on what is not true any more."""
    with world.open() as ctx:
        made(ctx)
        record = ctx.store.labs.get("shop")
        ctx.store.labs.update("shop", active_at=time.time())
        with pytest.raises(Conflict, match="used or changed"):
            sleep(ctx, "shop", expected=record)
        ctx.store.labs.update("shop", pool="small")
        with pytest.raises(Conflict, match="warm pool"):
            sleep(ctx, "shop")


def test_one_that_was_killed_before_the_pause_gets_snapshots(world: World) -> None:
    """Protects schedules: what runs is not asleep, whatever is recorded."""
    with world.open() as ctx:
        made(ctx)
        ctx.store.labs.update("shop", snapshots="hourly:2", asleep_at=time.time())
        assert snapshot.is_due(ctx, ctx.store.labs.get("shop"))
        wake(ctx, "shop")
        sleep(ctx, "shop")
        assert not snapshot.is_due(ctx, ctx.store.labs.get("shop"))
