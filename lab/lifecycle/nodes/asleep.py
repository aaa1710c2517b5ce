"""Waking a lab that is asleep, before a verb that needs its nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from lab.errors import Busy
from lab.hypervisor import Guest, memory_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.inspect import nodes_of
from lab.lifecycle.nodes.personalise import set_clocks
from lab.locks.named import lock
from lab.names import GuestName
from lab.state.records import LabRecord
from lab.wait import Deadline

PATIENCE = 30.0
"""Seconds for which a verb that needs a lab waits for another command that works on it."""


def awake(
    ctx: Context,
    name: str,
    *,
    timeout: float = PATIENCE,
    used: bool = True,
    clocks: bool = True,
    only: float | None = None,
) -> bool:
    """Wake a lab if it is asleep, before a verb that needs its nodes; whether it was.

    ``used``: that counts as a use of it; ``clocks``: set those of its nodes; ``only``: if it was
    put to sleep then, as recorded, and not again since. Fine if there is no such lab, or no
    hypervisor answers: the verb says so. Raises Busy after ``timeout`` seconds, for which another
    command worked on it, and as the hypervisor and ``set_clocks`` do.
    """
    record = ctx.store.labs.find(name)
    if record is None or record.asleep_at is None or ctx.unanswered is not None:
        return False
    with lock(ctx.home, "lab", name, deadline=Deadline.after(timeout)):
        record = ctx.store.labs.find(name)
        at = None if record is None else record.asleep_at
        if at is None or at != (at if only is None else only):
            return False  # another command was faster
        guests = ctx.hypervisor.guests()
        nodes = [node for node in nodes_of(ctx, name) if node.guest in guests]
        with ctx.progress.step("wake", f"waking {name}"):
            memory_of(ctx.hypervisor).resume(
                [node.guest for node in nodes if guests[node.guest].state == "paused"]
            )
            # Of all: who was killed, or failed, before may have resumed them.
            if clocks:
                set_clocks(ctx, nodes)
        active = {"active_at": time.time()} if used else {}
        ctx.store.labs.update(name, asleep_at=None, **active)
    return True


def let_wake(ctx: Context, name: str) -> None:
    """Wait for who is waking a lab, such as a client's connection, before a verb that ends it."""
    record = ctx.store.labs.find(name)
    if record is not None and record.asleep_at is not None:
        patience = Deadline.after(PATIENCE)
        with suppress(Busy), lock(ctx.home, "lab", name, deadline=patience):
            pass


def is_asleep(
    ctx: Context, record: LabRecord, guests: Mapping[GuestName, Guest] | None = None
) -> bool:
    """Whether a lab is asleep, and none of its guests runs, as after a command that was killed.

    ``guests``: those that there are, if that is known.
    """
    if record.asleep_at is None:
        return False
    guests = ctx.hypervisor.guests() if guests is None else guests
    found = [guests.get(GuestName(node.guest)) for node in ctx.store.nodes.of(record.name)]
    return all(guest is None or guest.state != "running" for guest in found)
