"""A standby in the place of a lab's nodes: a rollback that restores nothing."""

from __future__ import annotations

import re
import time

import pytest

from lab import run
from lab.errors import Conflict, HostUnfit, Interrupted
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import power, standby
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import reset, rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.takeover import take_over
from lab.lifecycle.nodes.inspect import lab, node_of, nodes_of
from lab.lifecycle.nodes.standby import coming
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner
from lab.requests.labs import BranchLab, MakeStandby, ResetLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import ORIGIN
from lab.views.labs import LabView
from lab.wait import Deadline
from tests.support.lifecycle_world import (
    World,
    at,
    codes,
    count,
    in_process,
    make_lab,
    make_template,
    raising,
)

EARLY = ("state.commit",)
"""Before the lab is recorded as stopped, nothing of it has changed yet."""


def loaded(ctx: Context) -> str:
    """A lab with a table of no rows and a snapshot of that; its label."""
    make_template(ctx)
    make_lab(ctx)
    query(ctx, "shop", None, "CREATE TABLE t (id INT)")
    return snapshot.take(ctx, TakeSnapshot(lab="shop", name="base")).label


def prepare(ctx: Context, to: str = "base") -> None:
    standby.make(ctx, MakeStandby(lab="shop", to=to), timeout=20.0)


def put_back(ctx: Context, to: str = "base") -> LabView:
    return rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0)


def insert(ctx: Context) -> None:
    query(ctx, "shop", None, "INSERT INTO t VALUES (1)")


def taken_over(ctx: Context) -> bool:
    """Whether the last rollback restored nothing."""
    return "takeover" in {step.step for step in ctx.progress.steps}


def marks(there: set[str]) -> set[str]:
    """What exists, where guests have the names that they have at first, and any segment."""
    named = (re.sub(r"lab-shop\.[0-9a-f]{4}-", "lab-shop-", one) for one in there)
    return {re.sub(r"^segment \d+", "segment", one) for one in named}


def test_a_standby_takes_over(world: World) -> None:
    """The address, the account and the snapshots stay; what was written since is gone."""
    with world.open() as ctx:
        label = loaded(ctx)
        before = lab(ctx, "shop")
        prepare(ctx)
        insert(ctx)
        former = set(ctx.hypervisor.guests())
        view = put_back(ctx)
        assert taken_over(ctx)
        assert count(ctx) == 0
        assert (view.state, view.started, view.dsn) == ("ready", "warm", before.dsn)
        assert [n.sql_port for n in view.nodes] == [n.sql_port for n in before.nodes]
        assert {node.guest for node in view.nodes} == former - {n.guest for n in before.nodes}
        assert set(ctx.hypervisor.guests()) == {node.guest for node in view.nodes}
        assert ctx.store.standbys.all() == []
        assert label in [one.label for one in snapshot.snapshots(ctx, "shop")]
        insert(ctx)
        assert count(ctx) == 1


@pytest.mark.parametrize("then", ["standby", "down", "gc", "stop", "rollback", "reset"])
def test_what_a_reset_leaves_is_forgotten(world: World, then: str) -> None:
    """The former guests end by themselves; whatever comes next forgets them."""
    with world.open() as ctx:
        loaded(ctx)
        prepare(ctx)
        put_back(ctx)
        former = {node.guest for node in lab(ctx, "shop").nodes}
        prepare(ctx)
    before = marks(world.there())
    with world.open() as ctx:
        reset(ctx, ResetLab(lab="shop"), timeout=20.0)
        assert taken_over(ctx)
        rows = {one.ref for one in ctx.store.resources.all() if one.kind == "guest"}
        assert former <= rows
        assert not former & set(ctx.hypervisor.guests())
        if then == "standby":
            prepare(ctx)
            assert marks(world.there()) == before
        elif then == "down":
            down(ctx, "shop")
        elif then == "gc":
            assert set(gc(ctx).removed) == {f"guest {guest}" for guest in former}
        elif then == "stop":
            power.stop(ctx, "shop")
        elif then == "rollback":
            put_back(ctx)
        else:
            reset(ctx, ResetLab(lab="shop", once=True), timeout=20.0)
    there = " ".join(world.there())
    assert not [guest for guest in former if guest in there]


@pytest.mark.parametrize("to", ["base", ORIGIN])
def test_nothing_is_left_of_ten_resets(world: World, to: str) -> None:
    with world.open() as ctx:
        loaded(ctx)
        put_back(ctx, to)
    before = world.there()
    for _ in range(3):
        with world.open() as ctx:
            prepare(ctx, to)
            put_back(ctx, to)
            assert taken_over(ctx)
    assert marks(world.there()) == marks(before)
    with world.open() as ctx:
        assert gc(ctx).removed == ()
        power.stop(ctx, "shop")
        down(ctx, "shop")
        gc(ctx)
    assert not [one for one in world.there() if "shop" in one]


def test_one_that_does_not_fit_is_not_used(world: World) -> None:
    """Protects from the state of another snapshot, and from the password of before."""
    with world.open() as ctx:
        loaded(ctx)
        insert(ctx)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="later"))
        prepare(ctx)
        put_back(ctx, "later")
        assert not taken_over(ctx)
        assert count(ctx) == 1
        assert ctx.store.standbys.get("shop").label.startswith("base")
        ctx.store.standbys.update("shop", fits="other")
        put_back(ctx, "base")
        assert not taken_over(ctx)
        assert count(ctx) == 0
        assert ctx.store.standbys.all() == []


def test_one_that_is_there_is_not_made_again(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
        prepare(ctx)
        made = ctx.store.standbys.get("shop")
        prepare(ctx)
        assert ctx.store.standbys.get("shop") == made
        prepare(ctx, ORIGIN)
        assert ctx.store.standbys.get("shop").label == ORIGIN
        assert len(ctx.hypervisor.guests()) == 4


@pytest.mark.parametrize("verb", ["stop", "down", "snapshot rm"])
def test_it_goes_with_what_it_is_of(world: World, verb: str) -> None:
    with world.open() as ctx:
        label = loaded(ctx)
        prepare(ctx)
        if verb == "stop":
            power.stop(ctx, "shop")
        elif verb == "down":
            down(ctx, "shop")
        else:
            snapshot.remove(ctx, "shop", [label])
        assert ctx.store.standbys.all() == []
        guests = [node.guest for node in nodes_of(ctx, "shop")] if verb == "snapshot rm" else []
        assert sorted(ctx.hypervisor.guests()) == guests


def test_a_lab_that_is_removed_gets_none(world: World) -> None:
    """Protects from guests of a lab that is gone: its removal waits for who makes one."""
    with world.open() as ctx:
        loaded(ctx)
        ctx.store.labs.update("shop", state="removing")
        with pytest.raises(Conflict):
            prepare(ctx)
        ctx.store.labs.update("shop", state="ready")
    with world.open(at("hypervisor.personalise", lambda: remove(world))) as ctx:
        with pytest.raises(Exception, match="does not run any more"):
            prepare(ctx)
        gc(ctx)
    assert not [one for one in world.there() if "shop" in one]


def remove(world: World) -> None:
    """Begin to remove the lab in another process, as far as it gets."""
    with world.open() as ctx:
        ctx.store.labs.update("shop", state="removing")


def test_a_take_over_that_fails_is_a_rollback_without_it(world: World) -> None:
    """Whatever step fails, the lab is as at the snapshot, and nothing else of it runs."""
    with world.open() as ctx:
        loaded(ctx)
    for step in ("hypervisor.forward", "storage.take_spare", "hypervisor.resume", "hypervisor.sql"):
        with world.open() as ctx:
            prepare(ctx)
            insert(ctx)
        with world.open(at(step, raising(HostUnfit("no")))) as ctx:
            view = put_back(ctx)
            assert view.state == "ready"
            assert count(ctx) == 0
            assert set(ctx.hypervisor.guests()) == {node.guest for node in view.nodes}
            assert ctx.store.standbys.all() == []


@pytest.mark.rare
def test_making_one_is_killed_at_each_step(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
    before = world.there()
    step = 0
    while name := world.killed(prepare, step):
        with world.open() as ctx:
            gc(ctx)
            assert lab(ctx, "shop").state == "ready"
            if ctx.store.standbys.all():  # it was complete
                standby.drop(ctx, "shop")
        assert world.there() == before, f"after a kill at {name}, step {step}"
        step += 1


@pytest.mark.parametrize(
    ("leave", "every"),
    [
        (False, 3),
        pytest.param(False, 1, marks=pytest.mark.rare),
        pytest.param(True, 1, marks=pytest.mark.rare),
    ],
)
def test_a_take_over_is_killed_at_each_step(world: World, leave: bool, every: int) -> None:
    """The lab is as before, or the rollback can be completed: never something between.

    ``every``: of how many steps it is killed at one.
    """
    back = RollBack(lab="shop", to="base")
    with world.open() as ctx:
        loaded(ctx)
    before = marks(world.there())
    step, between = 0, 0
    while True:
        with world.open() as ctx:
            prepare(ctx)
            if count(ctx) == 0:
                insert(ctx)
        name = world.killed(lambda ctx: rollback(ctx, back, timeout=20.0, leave=leave), step)
        with world.open() as ctx:
            if interrupted.exists(ctx, "shop"):
                between += 1
                shown = lab(ctx, "shop").state
                assert shown != "ready" or name in EARLY, f"after a kill at {name}, step {step}"
                put_back(ctx)
                assert count(ctx) == 0
            gc(ctx)
            if lab(ctx, "shop").state == "degraded":  # killed before that was recorded
                start(ctx, "shop", timeout=20.0)
            view = lab(ctx, "shop")
            assert view.state == "ready"
            standby.drop(ctx, "shop")
            assert set(ctx.hypervisor.guests()) == {node.guest for node in view.nodes}
        assert marks(world.there()) == before, f"after a kill at {name}, step {step}"
        if not name:
            break
        step += every
    assert between > 10 // every


def test_a_reset_waits_for_one_that_is_being_made(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
        child = in_process(world, prepare)
        while not ctx.store.standbys.all():
            pass
        put_back(ctx)
        assert taken_over(ctx)
        assert codes([child]) == [0]


@pytest.mark.parametrize("makes", [True, False])
def test_a_reset_waits_for_a_process_that_was_started_to_make_one(
    world: World, makes: bool
) -> None:
    """Protects resets in a row: the next one may come before that process has begun."""
    with world.open() as ctx:
        loaded(ctx)
        run.start(["sleep", "1"], log=ctx.home.standby_log("shop"), cwd=world.home.root, env={})

        def late(own: Context) -> None:
            time.sleep(0.3)
            if makes:
                prepare(own)

        child = in_process(world, late)
        began = time.monotonic()
        put_back(ctx)
        assert taken_over(ctx) == makes
        assert makes or time.monotonic() - began >= 0.9
        assert codes([child]) == [0]


def test_a_reset_to_another_snapshot_does_not_wait(world: World) -> None:
    """Protects who goes to another one: what is being made is not for that."""
    with world.open() as ctx:
        loaded(ctx)
        other = snapshot.take(ctx, TakeSnapshot(lab="shop", name="other")).label

        def slowly(own: Context) -> None:
            prepare(own)

        slow = at("hypervisor.pause", lambda: time.sleep(5.0))
        child = in_process(world, slowly, slow)
        while not ctx.store.standbys.all():
            pass
        began = time.monotonic()
        assert coming(ctx, "shop", Deadline.after(20.0)) is not None
        assert take_over(
            ctx, ctx.store.labs.get("shop"), snapshot.find(ctx, "shop", other),
            nodes_of(ctx, "shop"), 20.0,
        ) is None  # fmt: skip
        assert time.monotonic() - began < 4.0
        assert codes([child]) == [0]


def test_an_interrupted_take_over_leaves_the_lab_stopped(world: World) -> None:
    """Protects what is written after Ctrl-C: the lab is not handed out, and says what to do."""
    for step in ("hypervisor.forward", "hypervisor.resume", "hypervisor.sql"):
        with world.open() as ctx:
            if ctx.store.labs.find("shop") is None:
                loaded(ctx)
            prepare(ctx)
        with (
            world.open(at(step, raising(Interrupted("Ctrl-C")))) as ctx,
            pytest.raises(Interrupted),
        ):
            put_back(ctx)
        with world.open() as ctx:
            view = lab(ctx, "shop")
            assert view.state == "stopped"
            assert "lab start shop" in view.interrupted
            assert start(ctx, "shop", timeout=20.0).state == "ready"
            assert ctx.store.standbys.all() == []
            assert len(ctx.hypervisor.guests()) == 2


def test_a_reset_goes_where_the_last_one_went(world: World) -> None:
    """Protects a suite's data: a snapshot that was taken since is not what a reset goes back to."""
    with world.open() as ctx:
        label = loaded(ctx)
        put_back(ctx)
        insert(ctx)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="hourly", disks_only=True))
        prepare(ctx, ORIGIN)
        assert reset(ctx, ResetLab(lab="shop"), timeout=20.0).at == label
        assert count(ctx) == 0
        made = standby.make(ctx, MakeStandby(lab="shop"), timeout=20.0)
        assert made.standby == label
        reset(ctx, ResetLab(lab="shop", to=ORIGIN), timeout=20.0)
        assert standby.make(ctx, MakeStandby(lab="shop"), timeout=20.0).standby == ORIGIN


def test_a_lab_without_its_record_is_found_under_its_guests_names(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
        prepare(ctx)
        put_back(ctx)
        prepare(ctx)
        guests = {node.guest for node in nodes_of(ctx, "shop")}
        ctx.store.labs.remove("shop")
        assert {node_of(ctx, "shop", name).guest for name in ("n1", "n2")} == guests


def test_ssh_knows_no_host_of_a_standby_that_is_gone(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
        known = ctx.home.private(Owner("lab", "shop")) / "known_hosts"
        before = len(known.read_text().splitlines())
        prepare(ctx)
        standby.drop(ctx, "shop")
        prepare(ctx)
        put_back(ctx)
        assert len(known.read_text().splitlines()) == before


def test_a_lab_that_is_left_to_its_branches_has_none(world: World) -> None:
    with world.open() as ctx:
        loaded(ctx)
        branch(ctx, BranchLab(lab="shop", name="try", at="base"), timeout=20.0)
        prepare(ctx)
        down(ctx, "shop", defer=True)
        assert ctx.store.standbys.all() == []


def test_a_snapshot_is_removed_while_a_standby_for_it_is_being_made(world: World) -> None:
    """Protects who removes one right after a reset: nobody asked for what is being made."""
    with world.open() as ctx:
        label = loaded(ctx)
        child = in_process(world, prepare, at("hypervisor.personalise", lambda: time.sleep(1)))
        while not ctx.store.standbys.all():
            pass
        snapshot.remove(ctx, "shop", [label])
        codes([child])
        assert ctx.store.standbys.all() == []
        assert set(ctx.hypervisor.guests()) == {node.guest for node in nodes_of(ctx, "shop")}
