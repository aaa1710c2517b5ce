"""Making the standby of a lab, from the RAM of one of its snapshots."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lab import host
from lab.errors import Conflict, HostUnfit, Interrupted, RestoreFailed
from lab.hypervisor import live_of, memory_of
from lab.lifecycle.captures import system
from lab.lifecycle.captures.capture import Capture, parent_of
from lab.lifecycle.captures.clone import unrestored, wake
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.ready import Images
from lab.lifecycle.labs.rollback import last_label, memory_of_origin, sound
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.hand_over import Started, personalise, wait_ready
from lab.lifecycle.nodes.inspect import check_usable, images_of, lab, nodes_of, record_of
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.lifecycle.nodes.ports import reserve_ports, reserve_segment
from lab.lifecycle.nodes.preflight import check_aio
from lab.lifecycle.nodes.standby import (
    COST,
    end_strays,
    fits,
    forget_standby,
    remove,
    standby_nodes,
    usable,
    working_on,
)
from lab.lifecycle.nodes.start_slots import start_slot
from lab.lifecycle.snapshots.snapshot import find
from lab.names import Owner, guest_name
from lab.requests.labs import MakeStandby
from lab.schedule import ORIGIN
from lab.state.records import LabRecord, StandbyRecord
from lab.undo import Undo
from lab.views.labs import LabView


def make(ctx: Context, asked: MakeStandby, *, timeout: float) -> LabView:
    """Make the standby of a lab for a snapshot, if it has none.

    One for another snapshot is replaced, and what the last reset left of guests is forgotten.
    ``timeout``: seconds that its nodes may take to get ready. Nothing is left if it fails. Raises
    NotFound, Conflict if the lab does not run or was upgraded since that snapshot, HostUnfit if
    there is no RAM of it that can be restored or no memory, NotReady, and Interrupted once the lab
    is removed.
    """
    name = asked.lab
    live_of(ctx.hypervisor), memory_of(ctx.hypervisor)
    wanted = asked.to or last_label(record_of(ctx, name))
    # The snapshot is not kept from removal, which nobody asked for: who removes it removes the
    # standby first, and so waits for this once it is recorded.
    with working_on(ctx, name, timeout):
        record, nodes, capture = record_of(ctx, name), nodes_of(ctx, name), find(ctx, name, wanted)
        check_usable(record)
        end_strays(ctx, name)  # which the last reset left
        found = ctx.store.standbys.find(name)
        if found is None or not usable(found, capture.label, fits(record, nodes)):
            remove(ctx, name)
            _make(ctx, record, capture, nodes, timeout)
    return lab(ctx, name)


def drop(ctx: Context, name: str) -> LabView:
    """Remove the standby of a lab; fine if it has none. Raises NotFound."""
    record_of(ctx, name)
    forget_standby(ctx, name)
    return lab(ctx, name)


def _make(
    ctx: Context, record: LabRecord, capture: Capture, nodes: tuple[Node, ...], timeout: float
) -> None:
    name = record.name
    if system.as_captured(ctx, record, capture)[1] != nodes:
        raise Conflict(f"{name} was upgraded since {capture.label}: it has no standby for that")
    images = images_of(ctx, record, nodes)
    with _ram_of(ctx, capture, images) as source:
        if not source.warm:
            raise HostUnfit(f"there is no standby of {name} for {capture.label}: {source.why_cold}")
        _check_room(ctx, nodes)
        with Undo() as undo:
            undo.push(f"standby of {name}", lambda: remove(ctx, name))
            guests = _begin(ctx, record, capture.label, nodes)
            _restore(ctx, record, capture, source, images, nodes, timeout)
            with ctx.store.transaction():
                ctx.store.resources.made(*guests)
                ctx.store.standbys.update(name, state="ready", created_at=time.time())
            undo.keep()


@contextmanager
def _ram_of(ctx: Context, capture: Capture, images: Images) -> Iterator[Capture]:
    """What has the RAM for ``capture``, kept from removal in the block."""
    if capture.label == ORIGIN:
        with memory_of_origin(ctx, capture, images) as source:
            yield source
    else:
        yield sound(ctx, capture, images)


def _check_room(ctx: Context, nodes: tuple[Node, ...]) -> None:
    host.check_memory(
        [COST] * len(nodes), host.memory(), ctx.settings.memory_floor,
        hint="without a standby a rollback takes longer",
    )  # fmt: skip
    check_aio(ctx, len(nodes))


def _begin(ctx: Context, record: LabRecord, label: str, nodes: tuple[Node, ...]) -> list[int]:
    """Record that it is made, with all that it gets, in one transaction; the ids of its guests.

    Not for a lab that somebody removes, who would not see it.
    """
    owner, name, mark = Owner("lab", record.name), record.name, secrets.token_hex(2)
    guests = {node.name: guest_name(owner, node.name, mark) for node in nodes}
    count = sum(len(node.ports) for node in nodes)
    with ctx.store.transaction():
        now = ctx.store.labs.get(name)
        if now.state != "ready":
            raise Conflict(f"the lab {name} is {now.state}: it gets no standby")
        # In the transaction, so that none is left without a record: nobody is asked but the kernel.
        ports = iter(reserve_ports(ctx, owner, count, record.address))
        own = {
            node.name: {
                "guest": guests[node.name],
                "ports": {service: next(ports) for service in node.ports},
            }
            for node in nodes
        }
        ctx.store.standbys.add(
            StandbyRecord(
                name,
                label,
                "making",
                time.time(),
                reserve_segment(ctx, owner),
                fits(record, nodes),
                own,
            )
        )
        return ctx.store.resources.intend_all(
            owner, [("guest", guest) for guest in guests.values()]
        )


def _restore(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    source: Capture,
    images: Images,
    lab_nodes: tuple[Node, ...],
    timeout: float,
) -> None:
    """Restore, personalise and check the nodes of the standby that is recorded; pause them."""
    name, until = record.name, _until_removed(ctx, record.name)
    found = ctx.store.standbys.get(name)
    nodes = standby_nodes(found, lab_nodes)
    disks = {
        node.name: [ctx.storage.spare(volume, capture.label) for volume in volumes_of(node, images)]
        for node in nodes
    }
    with start_slot(until, warm=True):
        try:
            prepared = wake(
                until, source, parent_of(record), images, nodes, found.segment, disks=disks
            )
        except RestoreFailed as error:
            raise HostUnfit(
                f"there is no standby of {name} for {capture.label}: {unrestored(error)}"
            ) from error
        started = Started(
            nodes,
            record.plan,
            images,
            account_of(ctx.home, record),
            prepared,
            ctx.ready_by(timeout),
            end_sessions=source.in_use,
            identity=0 if source.owner.name == name else record.identity,
        )
        personalise(until, started)
        wait_ready(until, started)
        memory_of(ctx.hypervisor).pause([node.guest for node in nodes])


def _until_removed(ctx: Context, name: str) -> Context:
    """A context in which all waiting ends once the lab is removed, or stopped."""

    def halt() -> None:
        ctx.progress.halt()
        record = ctx.store.labs.find(name)
        if record is None or record.state != "ready":
            raise Interrupted(f"the lab {name} does not run any more")

    return replace(ctx, progress=replace(ctx.progress, halt=halt))
