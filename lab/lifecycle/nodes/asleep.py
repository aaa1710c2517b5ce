"""Waking a lab that is asleep, before a verb that needs its nodes."""

from __future__ import annotations

import time

from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.inspect import nodes_of
from lab.lifecycle.nodes.recovery import resume_paused
from lab.locks.named import lock
from lab.wait import Deadline

PATIENCE = 30.0
"""Seconds for which a verb that needs a lab waits for another command that works on it."""


def awake(ctx: Context, name: str, *, timeout: float = PATIENCE, used: bool = True) -> bool:
    """Wake a lab if it is asleep, before a verb that needs its nodes; whether it was.

    ``used``: that counts as a use of it. Fine if there is no such lab, or no hypervisor answers:
    the verb says so. Raises Busy after ``timeout`` seconds, for which another command worked on it,
    and as the hypervisor and ``set_clocks`` do.
    """
    record = ctx.store.labs.find(name)
    if record is None or record.asleep_at is None or ctx.unanswered is not None:
        return False
    with lock(ctx.home, "lab", name, deadline=Deadline.after(timeout)):
        record = ctx.store.labs.find(name)
        if record is None or record.asleep_at is None:
            return False  # another command was faster
        with ctx.progress.step("wake", f"waking {name}"):
            resume_paused(ctx, nodes_of(ctx, name))
        # In this order: one that is killed before sets the clocks again.
        active = {"active_at": time.time()} if used else {}
        ctx.store.labs.update(name, asleep_at=None, **active)
    return True
