"""``lab sleep`` and ``lab wake``: a lab whose nodes are paused, all at the same moment.

It takes memory and no processor; its lease runs, and connections of clients stay open. Its record
says since when, so a command that is killed leaves a lab that runs, or one that ``wake`` resumes. A
verb that needs the nodes wakes the lab first (``lab.lifecycle.nodes.asleep``); one that only looks
never does. In a service connections wake it as well (``lab.api.background.sleeper``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lab.errors import Conflict
from lab.host import sockets
from lab.hypervisor import Guest, memory_of
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import refuse_waiting
from lab.lifecycle.nodes.asleep import PATIENCE, awake
from lab.lifecycle.nodes.inspect import lab, nodes_of, record_of
from lab.locks.named import lock
from lab.names import GuestName
from lab.state.records import LabRecord, NodeRecord
from lab.undo import Undo
from lab.views.labs import LabView


def sleep(
    ctx: Context, name: str, *, since: float | None = None, expected: LabRecord | None = None
) -> LabView:
    """Pause all nodes of a lab that runs; fine if it is asleep.

    ``since``: when it was found unused, in epoch seconds: what clients sent from then on wakes it;
    None: from now on. ``expected``: its record as it was then. Raises NotFound, Conflict if it does
    not run, is another by now, is in a warm pool, a disk of it could not be written, a program runs
    in it by the guest agent or another command works on it, and HostUnfit if guests cannot be
    paused here.
    """
    memory = memory_of(ctx.hypervisor)
    with lock(ctx.home, "lab", name, wait=False), lock(ctx.home, "use", name, wait=False):
        record, nodes, there = record_of(ctx, name), nodes_of(ctx, name), ctx.hypervisor.guests()
        guests = [there[node.guest] for node in nodes if node.guest in there]
        _check(ctx, record, guests, expected)
        if record.asleep_at is None or any(guest.state == "running" for guest in guests):
            names = [guest.name for guest in guests]
            with Undo() as undo:
                undo.push(f"the sleep of {name}", lambda: _undo(ctx, name, names))
                # Before the pause: what a client sends from now on wakes it.
                ctx.store.labs.update(name, asleep_at=time.time() if since is None else since)
                memory.pause(names)
                undo.keep()
    return lab(ctx, name)


def _check(
    ctx: Context, record: LabRecord, guests: Sequence[Guest], expected: LabRecord | None
) -> None:
    """Raise Conflict if a lab cannot sleep now."""
    name = record.name
    if record.state != "ready" or not guests or interrupted.exists(ctx, name):
        raise Conflict(
            f"the lab {name} does not run: it cannot sleep", hint=f"`lab start {name}` starts it"
        )
    refuse_waiting(ctx, name)
    if expected is not None and record != expected:
        raise Conflict(f"the lab {name} was used or changed since it was looked at")
    for guest in guests:
        if guest.why:
            raise Conflict(f"the lab {name} cannot sleep: {guest.name} is halted: {guest.why}")


def _undo(ctx: Context, name: str, guests: Sequence[GuestName]) -> None:
    memory_of(ctx.hypervisor).resume(guests)
    ctx.store.labs.update(name, asleep_at=None)


def wake(ctx: Context, name: str, *, timeout: float = PATIENCE) -> LabView:
    """Resume all nodes of a lab that is asleep, and set their clocks; fine if it is awake.

    Another command that works on it is waited for, ``timeout`` seconds at most. Raises NotFound,
    Conflict, Busy and as the hypervisor and ``set_clocks`` do.
    """
    awake(ctx, name, timeout=timeout)
    return lab(ctx, name)


def reachable(nodes: Sequence[NodeRecord]) -> bool:
    """Whether clients of these nodes can be seen: their ports are those of this host's network.

    Raises HostUnfit if nobody can tell.
    """
    ports = ports_of(nodes)
    return sockets.listening(ports) == ports


def ports_of(nodes: Sequence[NodeRecord]) -> frozenset[int]:
    """All ports of these nodes at this host."""
    return frozenset(port for node in nodes for port in node.all_ports.values())
