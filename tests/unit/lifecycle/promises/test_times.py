"""Times: what was only for the first use is separated, and only readiness has a time limit."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from lab.fake import images
from lab.hypervisor import Capabilities
from lab.imagebuild.manifest import BuiltImage
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.locks.named import lock
from lab.views.labs import LabView
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World, make_image, named

SLOW = 1.6
"""Seconds that the slow part takes; the time limit beside it is shorter."""


def slowly_built(ctx: Context) -> Context:
    def build(*args: Any, **options: Any) -> BuiltImage:
        time.sleep(SLOW)
        return images.build(*args, **options)

    return replace(ctx, build=build)


def names(view: LabView) -> list[str]:
    return [step.step for step in view.steps]


def test_a_first_use_is_told_apart(world: World) -> None:
    """A lab that was ready in no time does not look as if it took minutes."""
    with world.open() as ctx:
        began = time.time()
        first = up(slowly_built(ctx), named("first"))
        took = time.time() - began
        assert names(first)[:3] == ["preflight", "image", "template"]
        assert first.first_use_seconds > SLOW
        assert first.first_use_seconds + first.seconds <= took
        assert lab(ctx, "first").seconds == first.seconds
        assert lab(ctx, "first").first_use_seconds == 0.0
    with world.open() as ctx:
        second = up(ctx, named("second"))
        assert not {"image", "template"} & set(names(second))
        assert second.first_use_seconds == 0.0


def test_steps_add_up(world: World) -> None:
    """No second is counted twice: a step's parts are in it, not beside it."""
    with world.open() as ctx:
        view = up(slowly_built(ctx), named("shop"))
    assert sum(step.seconds for step in view.steps) <= view.first_use_seconds + view.seconds + 0.001
    parts = {step.step: [part.step for part in step.steps] for step in view.steps}
    assert parts["image"] == ["bootstrap"]
    assert parts["template"] == ["clone", "boot", "form", "capture"]
    for step in view.steps:
        assert sum(part.seconds for part in step.steps) <= step.seconds
    assert len(names(view)) == len(set(names(view)))


def test_waiting_for_who_builds_it_is_of_the_first_use(world: World) -> None:
    with world.open() as ctx:
        make_image(ctx)
        key = ctx.store.images.all()[0].key
        taken = threading.Event()

        def waits() -> bool:
            return any("waiting for process" in note for note in world.notes)

        def other() -> None:
            with lock(ctx.home, "image", key):
                taken.set()
                until(waits, Deadline.after(60))
                time.sleep(SLOW)

        thread = threading.Thread(target=other)
        thread.start()
        taken.wait()
        began = time.time()
        view = up(ctx, named("shop"))
        thread.join()
        took = time.time() - began
    assert waits()
    assert 0.9 * SLOW < view.first_use_seconds <= took - view.seconds


def test_a_slow_build_takes_no_time_from_the_nodes(world: World) -> None:
    """`--timeout` is for nodes that were started; a build has bounds of its own."""
    with world.open() as ctx:
        assert up(slowly_built(ctx), named("shop"), timeout=SLOW / 2).state == "ready"
        assert up(slowly_built(ctx), named("cold", cold=True), timeout=SLOW / 2).state == "ready"


def test_a_template_takes_no_time_from_the_lab(world: World) -> None:
    """Each cluster that is waited for has the whole time, from when its guests were started."""
    world.boot_seconds = SLOW / 2
    world.capabilities = Capabilities("fake", "fake", why_cold="it is cold")
    with world.open() as ctx:
        make_image(ctx)
        began = time.monotonic()
        assert up(ctx, named("shop"), timeout=SLOW * 0.9).state == "ready"
        assert time.monotonic() - began > SLOW * 0.9


def test_waiting_for_a_turn_takes_no_time_from_the_nodes(world: World) -> None:
    """Eight labs that were asked for at once do not fail because seven came first."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        power.stop(ctx, "shop", force=True)
        stack = [lock(ctx.home, "boot", str(number)) for number in range(64)]
        for held in stack:
            held.__enter__()

        def free() -> None:
            for held in stack:
                held.__exit__(None, None, None)

        threading.Timer(SLOW, free).start()
        assert start(ctx, "shop", timeout=SLOW / 2).state == "ready"
