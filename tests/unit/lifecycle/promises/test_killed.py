"""The kill sweep: kill -9 at each step of what makes and removes things leaves nothing.

Protects the rule "intent first": after ``lab gc`` there is no guest, volume, file, port or
row of what was under way, and what was whole before is still whole.
"""

from __future__ import annotations

import pytest

from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.down import down
from tests.support.lifecycle_world import (
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


def sweep(
    world: World, before: Verb, verb: Verb, steps: set[str], *, again: Verb = nothing
) -> None:
    """Kill ``verb`` at each of its steps; ``gc`` restores what was there.

    ``steps``: the names of some before which a kill leaves something to restore: the test of the
    test. Nodes take their steps beside each other, so the number of a step differs from run to
    run: one that no number met is met by its name.
    """
    with world.open() as ctx:
        before(ctx)
    baseline = world.there()
    littered = set()

    def kill(step: int | str) -> str:
        name = world.killed(verb, step)
        if name and world.there() != baseline:
            littered.add(name)
        with world.open() as ctx:
            gc(ctx)
            finished = remove_new(ctx, baseline)
            again(ctx)
        assert world.there() - finished == baseline, f"after a kill at {name}, step {step}"
        return name

    step = 0
    while kill(step):
        step += 1
    for name in steps - littered:
        kill(name)
    assert littered >= steps


def test_up_warm(world: World) -> None:
    """Protects the host from half a lab that was to be restored."""
    sweep(world, make_template, make_lab, {
        "storage.clone", "hypervisor.restore", "hypervisor.resume", "hypervisor.personalise",
        "hypervisor.sql", "state.commit",
    })  # fmt: skip


@pytest.mark.rare
def test_up_cold(world: World) -> None:
    """Protects the host from half a lab that was to be booted."""
    sweep(world, make_image, make_cold, {
        "storage.clone", "hypervisor.start", "hypervisor.ping", "hypervisor.sql", "state.commit",
    })  # fmt: skip


def test_image_build(world: World) -> None:
    """Protects the storage from disks of half an image."""
    sweep(world, nothing, make_image, {
        "bootstrap.begin", "bootstrap.end", "storage.import_raw", "storage.snapshot",
        "storage.persist", "state.commit",
    })  # fmt: skip


@pytest.mark.rare
def test_template_capture(world: World) -> None:
    """Protects the host from guests, RAM and disks of half a template."""
    sweep(world, make_image, make_template, {
        "storage.clone", "hypervisor.start", "hypervisor.pause", "hypervisor.save_memory",
        "storage.snapshot", "hypervisor.stop", "storage.persist", "state.commit",
    })  # fmt: skip


def test_down(world: World) -> None:
    """A lab that was being removed is removed by ``gc``; one that was not touched is whole."""

    def repeat(ctx: Context) -> None:
        if ctx.store.labs.find("shop") is None:
            make_lab(ctx)

    sweep(world, make_lab, remove_lab, {
        "hypervisor.stop", "storage.destroy", "state.commit",
    }, again=repeat)  # fmt: skip


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
