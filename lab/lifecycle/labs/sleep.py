"""``lab sleep`` and ``lab wake``: a lab whose nodes are paused, all at the same moment.

It takes memory and no processor; its lease runs, and connections of clients stay open. Its record
says since when, so a command that is killed leaves a lab that runs, or one that ``wake`` resumes. A
verb that needs the nodes wakes the lab first (``lab.lifecycle.nodes.asleep``); one that only looks
never does. In a service connections wake it as well (``lab.api.background.sleeper``).
"""

from __future__ import annotations

import time

from lab.errors import Conflict
from lab.hypervisor import memory_of
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.asleep import PATIENCE, awake
from lab.lifecycle.nodes.inspect import lab, nodes_of, record_of
from lab.locks.named import lock
from lab.undo import Undo
from lab.views.labs import LabView


def sleep(ctx: Context, name: str) -> LabView:
    """Pause all nodes of a lab that runs; fine if it is asleep.

    Raises NotFound, Conflict if it does not run, a disk of it could not be written or another
    command works on it, and HostUnfit if guests cannot be paused here.
    """
    memory = memory_of(ctx.hypervisor)
    with lock(ctx.home, "lab", name, wait=False):
        record, nodes, there = record_of(ctx, name), nodes_of(ctx, name), ctx.hypervisor.guests()
        guests = [there[node.guest] for node in nodes if node.guest in there]
        halted = next((guest for guest in guests if guest.why), None)
        if record.state != "ready" or not guests or interrupted.exists(ctx, name):
            raise Conflict(
                f"the lab {name} does not run: it cannot sleep",
                hint=f"`lab start {name}` starts it",
            )
        if halted is not None:
            raise Conflict(f"the lab {name} cannot sleep: {halted.name} is halted: {halted.why}")
        if record.asleep_at is None or any(guest.state == "running" for guest in guests):
            names = [guest.name for guest in guests]
            # Before the pause: what a client sends from now on wakes it.
            ctx.store.labs.update(name, asleep_at=time.time())
            with Undo() as undo:
                undo.push(f"the pause of {name}", lambda: memory.resume(names))
                memory.pause(names)
                undo.keep()
    return lab(ctx, name)


def wake(ctx: Context, name: str, *, timeout: float = PATIENCE) -> LabView:
    """Resume all nodes of a lab that is asleep, and set their clocks; fine if it is awake.

    Another command that works on it is waited for, ``timeout`` seconds at most. Raises NotFound,
    Conflict, Busy and as the hypervisor and ``set_clocks`` do.
    """
    awake(ctx, name, timeout=timeout)
    return lab(ctx, name)
