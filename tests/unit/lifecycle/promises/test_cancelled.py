"""What is being made can be called off while it waits: for guests, for its turn, for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.start_slots import slots_here
from lab.locks.named import lock
from lab.progress import Progress
from tests.support.lifecycle_world import World, make_image, make_lab

PATIENCE = 0.3


def called_off(ctx: Context) -> Context:
    """``ctx`` whose user interrupts after ``PATIENCE`` seconds."""
    end = time.monotonic() + PATIENCE

    def halt() -> None:
        if time.monotonic() >= end:
            raise Interrupted("called off")

    return replace(ctx, progress=Progress(ctx.progress.listener, halt))


@contextmanager
def all_turns(ctx: Context) -> Iterator[None]:
    """Other labs are starting."""
    with ExitStack() as held:
        for number in range(slots_here()):
            held.enter_context(lock(ctx.home, "boot", str(number)))
        yield


def image_in_use(ctx: Context) -> AbstractContextManager[object]:
    """Another process works on the image."""
    return lock(ctx.home, "image", ctx.store.images.all()[0].key)


def nobody(_: Context) -> AbstractContextManager[object]:
    return nullcontext()


@pytest.mark.parametrize(
    ("boot_seconds", "others"), [(3600.0, nobody), (0.0, all_turns), (0.0, image_in_use)]
)
def test_a_wait_can_be_called_off(
    tmp_path: Path, boot_seconds: float, others: Callable[[Context], AbstractContextManager[object]]
) -> None:
    """Protects who needs the room: it is given up within a moment, and nothing is left."""
    world = World(tmp_path)
    with world.open() as ctx:
        make_image(ctx)
    before = world.there()
    world.boot_seconds = boot_seconds
    with world.open() as ctx, others(ctx):
        began = time.monotonic()
        with pytest.raises(Interrupted):
            make_lab(called_off(ctx))
        assert PATIENCE <= time.monotonic() - began < PATIENCE + 3.0
    assert world.there() == before
