"""The kill sweep: kill -9 at each step of what makes and removes things leaves nothing.

Protects the rule "intent first": after ``lab gc`` there is no guest, volume, file, port or
row of what was under way, and what was whole before is still whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from lifecycle_world import (
    Verb,
    World,
    make_cold,
    make_image,
    make_lab,
    make_template,
    nothing,
    remove_lab,
    remove_new,
)

from lab.lifecycle.context import Context
from lab.lifecycle.down import down
from lab.lifecycle.gc import gc


def sweep(world: World, before: Verb, verb: Verb, *, again: Verb = nothing) -> int:
    """Kill ``verb`` at each of its steps; ``gc`` restores what was there. The steps' number."""
    with world.open() as ctx:
        before(ctx)
    baseline = world.there()
    step = 0
    while world.killed(verb, step):
        with world.open() as ctx:
            gc(ctx)
            finished = remove_new(ctx, baseline)
            again(ctx)
        assert world.there() - finished == baseline, f"after a kill at step {step}"
        step += 1
    return step


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_up_warm(world: World) -> None:
    assert sweep(world, make_template, make_lab) > 30


def test_up_cold(world: World) -> None:
    assert sweep(world, make_image, make_cold) > 30


def test_image_build(world: World) -> None:
    assert sweep(world, nothing, make_image) > 10


def test_template_capture(world: World) -> None:
    assert sweep(world, make_image, make_template) > 40


def test_down(world: World) -> None:
    """A lab that was being removed is removed by ``gc``; one that was not touched is whole."""

    def anew(ctx: Context) -> None:
        if ctx.store.labs.find("shop") is None:
            make_lab(ctx)

    assert sweep(world, make_lab, remove_lab, again=anew) > 5


def test_the_next_command_needs_no_gc(world: World) -> None:
    """Protects whoever runs ``lab up shop`` again: remains of that name are no obstacle."""
    with world.open() as ctx:
        make_template(ctx)
    step = 0
    while world.killed(make_lab, step):
        with world.open() as ctx:
            found = ctx.store.labs.find("shop")
            if found is None or found.state != "ready":
                make_lab(ctx)
            down(ctx, "shop")
        step += 7
