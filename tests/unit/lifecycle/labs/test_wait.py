"""Waiting for a lab that another process makes: until it is there, and not after its end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.errors import NotReady
from lab.lifecycle.labs import power
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.start_slots import slots_here
from lab.locks.named import held, lock
from lab.state.records import LabRecord
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World, codes, in_process, make_lab, make_template


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    with world.open() as ctx:
        make_template(ctx)
    return world


def test_a_lab_whose_maker_died_is_not_waited_for(world: World) -> None:
    assert world.killed(make_lab, 25)
    with world.open() as ctx:
        began = time.monotonic()
        with pytest.raises(NotReady, match="has ended") as failure:
            wait(ctx, "shop", timeout=60)
        assert time.monotonic() - began < 10
        assert "lab down shop" in failure.value.hint


def test_a_lab_that_is_being_made_is_waited_for(world: World) -> None:
    """However its maker's last moments lie between our looks."""

    def slow(step: str) -> None:
        if step == "restore.begin":
            time.sleep(0.5)

    maker = in_process(world, make_lab, slow)
    with world.open() as ctx:
        assert until(lambda: ctx.store.labs.find("shop"), Deadline.after(10)) is not None
        assert wait(ctx, "shop", timeout=20).state == "ready"
    assert codes([maker]) == [0]


def test_a_start_that_waits_for_a_slot_is_waited_for(world: World) -> None:
    """Minutes may pass before the first node boots: the lab is stopped, and about to be started.

    And after its nodes can be used, before the command that starts it is done with them.
    """

    def slow(step: str) -> None:
        if step == "ready.end":
            time.sleep(1.0)

    with world.open() as ctx:
        make_lab(ctx)
        power.stop(ctx, "shop")
        with pytest.raises(NotReady, match="is stopped"):
            wait(ctx, "shop", timeout=20)
        with ExitStack() as slots:
            for number in range(slots_here()):
                slots.enter_context(lock(ctx.home, "boot", str(number)))
            starter = in_process(world, lambda own: start(own, "shop", timeout=20), slow)
            assert until(lambda: held(ctx.home, "lab", "shop"), Deadline.after(10))
            with pytest.raises(NotReady, match="still stopped after"):
                wait(ctx, "shop", timeout=0.5)
        assert wait(ctx, "shop", timeout=20).state == "ready"
    assert codes([starter]) == [0]


def test_other_commands_do_not_fail_as_a_lab_is_waited_for(world: World) -> None:
    """`lab wait` looks at the clocks of nodes for a second or more; that takes no lock."""
    locked = []

    def hook(step: str) -> None:
        if step == "hypervisor.clock":
            locked.append(held(world.home, "lab", "shop"))

    with world.open() as ctx:
        make_lab(ctx)
    with world.open(hook) as ctx:
        assert wait(ctx, "shop", timeout=20).state == "ready"
    assert locked
    assert not any(locked)


def test_time_is_up_while_it_is_being_made(world: World) -> None:
    with world.open() as ctx, lock(ctx.home, "lab", "shop"):
        ctx.store.labs.add(
            LabRecord(
                "shop", "", "", "", "creating", "", "", "me", time.time(),
                blueprint="galera", node_count=2, memory=1, cpus=1, disk=0,
            )
        )  # fmt: skip
        with pytest.raises(NotReady, match="still being created"):
            wait(ctx, "shop", timeout=0.3)
