"""Stopping and starting labs and single nodes; their disks stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab import host
from lab.errors import Conflict, NotReady, PortTaken
from lab.hypervisor import GuestSpec
from lab.lifecycle.captures.capture import parent_of
from lab.lifecycle.captures.freeze import write_out
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.form import guest_of, seed_of
from lab.lifecycle.nodes.inspect import images_of, lab, node_of, nodes_of, record_of, running_nodes
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import correct_clocks, renew
from lab.lifecycle.nodes.ports import TRIES, move_taken
from lab.lifecycle.nodes.preflight import check_aio
from lab.lifecycle.nodes.readiness import until_ready
from lab.lifecycle.nodes.recovery import USUAL, Pace, resume_paused, until_back
from lab.lifecycle.nodes.standby import clear
from lab.lifecycle.nodes.start_slots import start_slot
from lab.locks.named import lock
from lab.observe.ask import through_agent, through_port
from lab.observe.target import size_of
from lab.state.records import LabRecord
from lab.views.labs import LabView

STOPPED: Mapping[str, Any] = {
    "state": "stopped", "started": None, "why_cold": "", "ready_seconds": None,
    "asleep_at": None,
}  # fmt: skip
"""What to record of a lab that was stopped: the fields of its last start are cleared."""
_LOOK_EVERY = 0.4  # seconds, while nodes boot


def stop(ctx: Context, name: str, *, node: str | None = None, force: bool = False) -> LabView:
    """Stop a lab, or one node of it.

    A whole lab is frozen at one moment, after its file systems were written out, and ended:
    so all nodes agree on where they were, and start as the cluster they were. One node leaves
    its cluster in an orderly way. ``force`` powers off in both cases. Raises NotFound,
    and Conflict while another command works on the lab.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = record_of(ctx, name)
        _check_made(record)
        if node is not None:
            guest = node_of(ctx, name, node).guest
            ctx.hypervisor.stop(guest, force=force, halt=ctx.progress.halt)
        else:
            _stop_all(ctx, record, nodes_of(ctx, name), force=force)
            ctx.store.labs.update(name, **STOPPED)
            clear(ctx, name)
    return lab(ctx, name)


def _stop_all(ctx: Context, record: LabRecord, nodes: Sequence[Node], *, force: bool) -> None:
    running_guests = ctx.hypervisor.guests()
    guests = [n.guest for n in nodes if n.guest in running_guests]
    if not force:
        # A stop that was killed may have paused some: they were written out before that.
        awake = [
            n for n in nodes if n.guest in guests and running_guests[n.guest].state == "running"
        ]
        write_out(ctx, awake, record.plan.flush)
        if (memory := ctx.hypervisor.memory) is not None:
            memory.pause(guests)
    each(lambda guest: ctx.hypervisor.stop(guest, force=True), guests)


def start(ctx: Context, name: str, wanted: Sequence[Node], timeout: float, pace: Pace) -> LabView:
    """Boot those of ``wanted`` that do not run, and wait until the lab is ready.

    Raises as ``lab.lifecycle.labs.start.start`` does, and Conflict if a rollback was interrupted.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = record_of(ctx, name)
        _check_made(record)
        interrupted.check(ctx, name)
        with start_slot(ctx) as give_back:
            began, whole = time.time(), len(wanted) == len(nodes_of(ctx, name))
            boots = whole and not running_nodes(ctx, name)
            bring_back(ctx, record, wanted, timeout, pace, booted=give_back)
        how = how_started(began, "`lab start` boots the nodes") if boots else {}
        ctx.store.labs.update(name, state="ready", **how)
    return lab(ctx, name, proved=True)


def how_started(began: float, why_cold: str) -> dict[str, Any]:
    """What to record of a start of a whole lab that began at ``began`` and is over.

    ``why_cold``: by which command its nodes were booted, or why; empty if RAM was restored.
    """
    started = "cold" if why_cold else "warm"
    seconds = time.time() - began
    return {
        "started": started, "why_cold": why_cold, "ready_seconds": seconds, "asleep_at": None,
    }  # fmt: skip


def bring_back(
    ctx: Context,
    record: LabRecord,
    wanted: Sequence[Node],
    timeout: float,
    pace: Pace = USUAL,
    *,
    booted: Callable[[], None],
) -> None:
    """Boot those of ``wanted`` that do not run, and wait until all that run are a cluster.

    Nodes that cannot rejoin by themselves are helped; those of ``wanted`` are given new keys and
    certificates. ``timeout`` in seconds, from when they were started. The lab's lock and a start
    slot are held; ``booted`` is called, once or more, when the slot is needed no longer. Raises as
    ``start`` does.
    """
    boot(ctx, record, wanted)
    deadline = ctx.ready_by(timeout)
    plan = record.plan
    found = running_nodes(ctx, record.name)
    # The certificates that they have may be too old to be believed.
    account = account_of(ctx.home, record, verify=False)
    ask = through_agent(plan, ctx.hypervisor, found)
    if account.usable:
        ask = through_port(ctx.ways, plan, account, found, deadline=deadline)
    everyone = nodes_of(ctx, record.name)
    whole = size_of(found) == size_of(everyone)
    started = {node.name for node in wanted}
    images = images_of(ctx, record, found)
    with ctx.progress.step("ready", "waiting until every node can be used"):
        until_back(
            ctx, found, plan, images, ask, deadline, all_here=whole, pause=_LOOK_EVERY, pace=pace,
            booted=booted, password=record.password,
        )  # fmt: skip
        again = [node for node in found if node.name in started]
        renew(ctx, again, plan, images, timeout=deadline.left, cluster=everyone)
        correct_clocks(ctx, found)
        ask = through_port(ctx.ways, plan, account_of(ctx.home, record), found, deadline=deadline)
        until_ready(ctx, found, plan, ask, deadline, pause=_LOOK_EVERY)


def _check_made(record: LabRecord) -> None:
    if record.state not in ("ready", "stopped", "failed"):
        raise Conflict(
            f"the lab {record.name} is {record.state}", hint="`lab gc` removes leftovers"
        )
    if not record.user:
        raise Conflict(
            f"the lab {record.name} failed before it had nodes",
            hint=f"`lab down {record.name}` removes it",
        )


def check_room(ctx: Context, nodes: Sequence[Node]) -> None:
    """Raise HostUnfit unless there is memory and native AIO for ``nodes`` that do not run."""
    if nodes:
        hint = "stop or remove another lab (`lab ls`), or set memory_floor lower"
        have, floor = host.memory(), ctx.settings.memory_floor
        host.check_memory([node.size.memory for node in nodes], have, floor, hint=hint)
        check_aio(ctx, len(nodes))


def boot(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> None:
    """Start those of ``nodes`` that have no guest; paused ones of the lab are resumed.

    Raises HostUnfit, at once if there is not enough memory or native AIO.
    """
    running_guests = ctx.hypervisor.guests()
    missing = [node for node in nodes if node.guest not in running_guests]
    check_room(ctx, missing)
    with ctx.progress.step("boot", f"starting {record.name}"):
        _start_guests(ctx, record, missing)
        resume_paused(ctx, nodes_of(ctx, record.name))


def _start_guests(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> None:
    images = images_of(ctx, record, nodes)
    for left in reversed(range(TRIES)):
        nodes = move_taken(ctx, nodes)
        try:
            each(
                ctx.hypervisor.start,
                [_spec(ctx, record, images, node) for node in nodes],
            )
            return
        except PortTaken:
            if not left:
                raise
        running_guests = ctx.hypervisor.guests()
        nodes = [node for node in nodes if node.guest not in running_guests]


def _spec(ctx: Context, record: LabRecord, images: Images, node: Node) -> GuestSpec:
    seed = seed_of(ctx, node, parent_of(record), record.segment)
    if not seed.exists():
        raise NotReady(f"{node.name} has lost its seed {seed}", hint="`lab down` the lab")
    return guest_of(ctx, node, images, record.segment, seed)
