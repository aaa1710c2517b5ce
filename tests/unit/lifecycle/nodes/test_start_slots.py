"""Start slots: a queue for boots, one for restores, and a line that reports the wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from lab.errors import Interrupted, RestoreFailed
from lab.lifecycle.core.context import Context, Origin
from lab.lifecycle.labs import power
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import start_slots
from lab.locks.named import LockKind, held, lock
from lab.locks.queue import taken, ticket, waiting
from lab.progress import Progress
from lab.requests.labs import RollBack
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World, make_template, named


@contextmanager
def all_taken(ctx: Context, kind: LockKind) -> Iterator[None]:
    """Other labs have all slots of a kind."""
    with ExitStack() as held:
        for number in range(start_slots.slots_here()):
            held.enter_context(lock(ctx.home, kind, str(number)))
        yield


def test_a_warm_start_does_not_wait_behind_cold_ones(world: World) -> None:
    """`lab up` in seconds, though others boot for minutes; so is going back to the origin."""
    with world.open() as ctx:
        make_template(ctx)
        with all_taken(ctx, "boot"), ticket(ctx.home, "boot"):
            assert up(ctx, named("shop"), timeout=10).state == "ready"
            assert rollback(ctx, RollBack(lab="shop"), timeout=10).state == "ready"
    assert not [note for note in world.notes if "slot" in note]


def test_going_back_boots_in_a_slot_for_boots(world: World) -> None:
    """Where RAM is not restored: a boot takes minutes, and restores must not wait for it."""
    taken: dict[str, tuple[bool, bool]] = {}

    def hook(step: str) -> None:
        if step in ("hypervisor.restore", "hypervisor.start"):
            slots = [str(number) for number in range(start_slots.slots_here())]
            taken[step] = (
                any(held(world.home, "restore", slot) for slot in slots),
                any(held(world.home, "boot", slot) for slot in slots),
            )
        if step == "hypervisor.restore":
            raise RestoreFailed("lab-shop-n1 could not be restored")

    with world.open() as ctx:
        up(ctx, named("shop"))
    with world.open(hook) as ctx:
        view = rollback(ctx, RollBack(lab="shop"), timeout=10)
    assert (view.state, view.started) == ("ready", "cold")
    assert taken == {"hypervisor.restore": (True, False), "hypervisor.start": (False, True)}


def test_a_wait_is_reported_in_a_line(world: World) -> None:
    """Without a terminal there is no spinner: after some seconds a note says what is waited for."""
    with world.open() as ctx:
        make_template(ctx)
        up(ctx, named("shop"))
        power.stop(ctx, "shop")
        reported = threading.Event()
        expected = f"waiting for a start slot ({start_slots.slots_here() + 1} labs ahead)"

        def until_reported() -> None:
            reported.wait(20)
            occupied.close()

        with ExitStack() as occupied:
            occupied.enter_context(all_taken(ctx, "boot"))
            place = occupied.enter_context(ticket(ctx.home, "boot"))
            assert waiting(ctx.home, "boot", place + 1) == 1
            assert taken(ctx.home, "boot", start_slots.slots_here()) == start_slots.slots_here()

            def watch() -> None:
                while expected not in world.notes and not reported.wait(0.05):
                    pass
                reported.set()

            threads = [threading.Thread(target=watch), threading.Thread(target=until_reported)]
            for thread in threads:
                thread.start()
            assert start(ctx, "shop", timeout=10).state == "ready"
            for thread in threads:
                thread.join(30)
    assert world.notes.count(expected) == 1


def test_a_cancelled_job_leaves_the_queue_at_once(world: World) -> None:
    """Wherever it stands: the room that it has is for others, and a service that ends must end."""
    began = time.monotonic()

    def halt() -> None:
        if time.monotonic() - began > 0.3:
            raise Interrupted("the job was cancelled")

    with world.open() as ctx, ThreadPoolExecutor() as threads, ExitStack() as held:
        held.enter_context(all_taken(ctx, "boot"))
        held.enter_context(ticket(ctx.home, "boot"))
        cancelled = replace(ctx, progress=Progress(halt=halt))
        waiting = threads.submit(ExitStack().enter_context, start_slots.start_slot(cancelled))
        try:
            assert isinstance(waiting.exception(5.0), Interrupted)
        finally:
            held.close()


def test_projects_share_the_slots(world: World) -> None:
    """Another project's lab is the next but one, however many one project requested before."""
    order: list[str] = []
    with world.open() as ctx, ThreadPoolExecutor(8) as threads, ExitStack() as occupied:
        occupied.enter_context(all_taken(ctx, "boot"))

        def take(project: str) -> None:
            own = replace(ctx, progress=Progress(), origin=Origin(project))
            with start_slots.start_slot(own):
                order.append(project)

        for _ in range(5):
            threads.submit(take, "alpha")
        assert until(lambda: line(ctx, "alpha") == 5, Deadline.after(10))
        done = threads.submit(take, "beta")
        assert until(lambda: waiting(ctx.home, "boot") == 2, Deadline.after(10))
        occupied.close()
        done.result(20)
        assert order.index("beta") <= start_slots.slots_here()
    assert sorted(order) == ["alpha"] * 5 + ["beta"]


def line(ctx: Context, project: str) -> int:
    return waiting(ctx.home, "boot", of=start_slots.line_of(project))
