"""The kill sweep: kill -9 at each step of what makes and removes things leaves nothing.

Protects the rule "intent first": after ``lab gc`` there is no guest, volume, file, port or
row of what was under way, and what was whole before is still whole.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lifecycle_world import SPEC, World, named

from lab.lifecycle import image, template
from lab.lifecycle.context import Context
from lab.lifecycle.down import down
from lab.lifecycle.gc import gc
from lab.lifecycle.up import up

Verb = Callable[[Context], object]


def make_lab(ctx: Context) -> None:
    up(ctx, named("shop"))


def make_cold(ctx: Context) -> None:
    up(ctx, named("shop"), cold=True)


def make_image(ctx: Context) -> None:
    image.build(ctx, "mariadb")


def make_template(ctx: Context) -> None:
    template.build(ctx, SPEC)


def remove_lab(ctx: Context) -> None:
    down(ctx, "shop")


def nothing(ctx: Context) -> None:
    """Start from an empty installation."""


def sweep(world: World, before: Verb, verb: Verb, *, again: Verb = nothing) -> int:
    """Kill ``verb`` at each of its steps; ``gc`` restores what was there. The steps' number."""
    with world.open() as ctx:
        before(ctx)
    baseline = world.there()
    step = 0
    while world.killed(verb, step):
        with world.open() as ctx:
            gc(ctx)
            finished = _whole(ctx, baseline)
            again(ctx)
        assert world.there() - finished == baseline, f"after a kill at step {step}"
        step += 1
    return step


def _whole(ctx: Context, baseline: set[str]) -> set[str]:
    """Remove what ``verb`` had finished before it was killed: that may stay, whole."""
    for made in ctx.store.templates.all():
        if f"template {made.key} ready" not in baseline:
            assert made.state == "ready"
            template.remove(ctx, made.key)
    for built in ctx.store.images.all():
        if f"image {built.key} ready" not in baseline:
            assert built.state == "ready"
            image.remove(ctx, built.key)
    for lab in ctx.store.labs.all():
        if f"lab {lab.name} ready" not in baseline:
            assert lab.state == "ready"
            down(ctx, lab.name)
    # The log of a build is kept for people.
    return {f"logs/images/{path.name}" for path in (ctx.home.root / "logs/images").iterdir()} - (
        baseline
    )


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
