"""A standby in the place of a lab's nodes: a rollback that restores nothing.

Interrupted at any point it is a rollback that was interrupted, which the next command completes:
from the disks' snapshots, without the standby.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from lab.errors import LabError
from lab.hypervisor import Guest, Live, live_of, memory_of
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.labs import power
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import images_of, nodes_of
from lab.lifecycle.nodes.nodes import Node, forwards_of, volumes_of
from lab.lifecycle.nodes.personalise import move_hosts, set_clocks
from lab.lifecycle.nodes.readiness import until_ready
from lab.lifecycle.nodes.standby import (
    coming,
    end,
    fits,
    forget,
    remove,
    standby_nodes,
    usable,
    working_on,
)
from lab.names import GuestName
from lab.observe.ask import through_port
from lab.schedule import ORIGIN
from lab.state.records import LabRecord, StandbyRecord
from lab.undo import Undo
from lab.wait import Deadline

_POLL = 0.01  # seconds; everything runs already


def take_over(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    nodes: Sequence[Node],
    timeout: float,
    *,
    leave: bool = False,
) -> Mapping[GuestName, Guest] | None:
    """Put a standby for ``capture`` in the place of ``nodes``; None if there is none.

    Returns the guests that there are then, without a further question: libvirt answers none for a
    fifth of a second after guests have ended. The lab's lock is held. A standby that is being made
    for it is waited for. ``timeout``: seconds that this may take, and then the nodes to get ready.
    The former guests have ended when this returns; if ``leave``, they end by themselves, and
    ``standby.clear`` forgets them. Raises Busy if that time is over, NotReady, and as the
    hypervisor and the storage do: the lab is stopped then, and its rollback interrupted.
    """
    name, fit = record.name, fits(record, nodes)
    deadline = Deadline.after(timeout)
    there = coming(ctx, name, deadline)
    if there is None or there.label != capture.label:
        return None

    with working_on(ctx, name, deadline.left):
        found = ctx.store.standbys.find(name)
        if found is None or not usable(found, capture.label, fit):
            if found is not None and found.label == capture.label:
                remove(ctx, name)  # of a killed command, or too old
            return None
        guests = ctx.hypervisor.guests()
        standby = standby_nodes(found, nodes)
        if any(
            node.guest not in guests or guests[node.guest].state != "paused" for node in standby
        ):
            remove(ctx, name)
            return None
        former = [node.guest for node in nodes if node.guest in guests]
        _take_over(ctx, record, found, nodes, former, timeout, leave=leave)
    now = {node.guest: replace(guests[node.guest], state="running") for node in standby}
    return {name: one for name, one in guests.items() if name not in former} | now


def _take_over(
    ctx: Context,
    record: LabRecord,
    found: StandbyRecord,
    nodes: Sequence[Node],
    former: Sequence[GuestName],
    timeout: float,
    *,
    leave: bool,
) -> None:
    name, began, standby = record.name, time.time(), standby_nodes(found, nodes)
    interrupted.begin(ctx, name, found.label, None)
    # Until it is ready: a command that is killed or interrupted now leaves a lab that is stopped.
    ctx.store.labs.update(name, **power.STOPPED)
    with _ended_on_failure(ctx, [*former, *(node.guest for node in standby)]):
        now = _change_places(ctx, record, found, nodes, former, timeout, leave=leave)
    pairs = list(zip(nodes, standby, strict=True))
    move_hosts(ctx, now[0].owner, {new.ssh_port: old.ssh_port for old, new in pairs})
    forget(ctx, found)
    interrupted.end(ctx, name)
    at = "" if found.label == ORIGIN else found.label
    ctx.store.labs.update(
        name, state="ready", at=at, reset_to=found.label, **power.how_started(began, "")
    )


@contextmanager
def _ended_on_failure(ctx: Context, guests: Sequence[GuestName]) -> Iterator[None]:
    """If the block fails, or is interrupted, end ``guests``: the rollback is completed later."""
    with Undo() as undo:
        undo.push(
            "guests", lambda: each(lambda guest: ctx.hypervisor.stop(guest, force=True), guests)
        )
        yield
        undo.keep()


def _change_places(
    ctx: Context,
    record: LabRecord,
    found: StandbyRecord,
    nodes: Sequence[Node],
    former: Sequence[GuestName],
    timeout: float,
    *,
    leave: bool,
) -> Sequence[Node]:
    """Let the ports of ``nodes`` lead to the standby, and end the ``former`` guests.

    Returns the nodes of the lab once they are ready.
    """
    name, standby = record.name, standby_nodes(found, nodes)
    memory, live = memory_of(ctx.hypervisor), live_of(ctx.hypervisor)
    with ctx.progress.step("takeover", f"the standby of {name} for {found.label} takes over"):
        pairs = list(zip(nodes, standby, strict=True))
        memory.pause(former)
        each(lambda pair: _leave(live, pair[0], former), pairs)
        with ctx.store.transaction():
            for node in standby:
                ctx.store.nodes.update(name, node.name, guest=node.guest)
            ctx.store.labs.update(name, segment=found.segment)
        now = nodes_of(ctx, name)
        memory.resume([node.guest for node in now])
    # Behind the first answers: to wait until a QEMU has ended takes longer than these.
    with ThreadPoolExecutor(2) as pool:
        rest = [
            pool.submit(_take_disks, ctx, record, now),
            pool.submit(_let_end, live, former) if leave else pool.submit(end, ctx, name, former),
        ]
        # In this order: no client sees the time at which the standby was paused.
        set_clocks(ctx, now)
        each(lambda pair: _enter(live, *pair), pairs)
        with ctx.progress.step("ready", "waiting until every node can be used"):
            deadline = ctx.ready_by(timeout)
            account = account_of(ctx.home, record)
            ask = through_port(ctx.ways, record.plan, account, now, deadline=deadline)
            until_ready(ctx, now, record.plan, ask, deadline, pause=_POLL)
        for one in rest:
            one.result()
    return now


def _let_end(live: Live, former: Sequence[GuestName]) -> None:
    """Let guests end by themselves. Who forgets them ends those that did not."""
    with suppress(LabError):
        each(live.quit, former)


def _leave(live: Live, old: Node, former: Sequence[GuestName]) -> None:
    """Let no port lead to a node that leaves."""
    if old.guest in former:
        live.forward(old.guest, remove=forwards_of(old))


def _enter(live: Live, old: Node, new: Node) -> None:
    """Let the ports of ``old`` lead to ``new``."""
    live.forward(new.guest, remove=forwards_of(new), add=forwards_of(old))


def _take_disks(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> None:
    images = images_of(ctx, record, nodes)
    takes: list[Callable[[], object]] = [
        partial(ctx.storage.take_spare, volume)
        for node in nodes
        for volume in volumes_of(node, images)
    ]
    each(lambda take: take(), takes)
