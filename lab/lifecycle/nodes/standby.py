"""A standby of a lab: its nodes once more, as at one of its snapshots, paused and ready.

Its guests have spare disks of the lab's volumes, ports and a segment of their own, and the lab's
account and keys; tags and rows are the lab's, so that it goes with the lab. It is made ahead of a
rollback (``lab.lifecycle.labs.standby``), which then need not restore anything
(``lab.lifecycle.labs.takeover``). One is made and used, or removed, under the lock ``standby``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from lab.errors import Conflict, NotFound
from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.core.release import forget_guests
from lab.lifecycle.nodes.inspect import nodes_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import forget_hosts
from lab.locks.named import held, lock
from lab.names import GuestName, Owner, VolumeName
from lab.run import runs
from lab.state.records import LabRecord, LabWithNodes, StandbyRecord
from lab.units import MIB
from lab.wait import Deadline, attempts

COST = 160 * MIB
"""Bytes of memory that a node of a standby takes at most which nothing else shares: measured 85 to
110 MiB of an emulated one, most of it the code that QEMU translated; less under KVM."""
LIFE = 3600.0
"""Seconds for which a standby is used."""
_MADE_WITH = ("password", "user", "address", "host", "template", "parent", "identity", "options")
"""Fields of a lab's record that its standby depends on."""


def memory_of(found: LabWithNodes) -> int:
    """Bytes of memory that the standby of a lab takes; 0 if it has none."""
    return COST * len(found.nodes) if found.standby else 0


def standby_nodes(found: StandbyRecord, nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a standby; ``nodes``: the lab's."""
    return [
        replace(
            node,
            known_as=GuestName(found.nodes[node.name]["guest"]),
            ports=found.nodes[node.name]["ports"],
        )
        for node in nodes
    ]


def fits(record: LabRecord, nodes: Sequence[Node]) -> str:
    """A hash of what of a lab its standby depends on, besides the snapshot's label."""
    facts: list[Any] = [getattr(record, name) for name in _MADE_WITH]
    facts += [(node.name, node.role, node.image, asdict(node.size)) for node in nodes]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def usable(found: StandbyRecord, label: str, fit: str) -> bool:
    """Whether a standby is one of the snapshot ``label`` of a lab that ``fits``, and not too old.

    The age is measured by the host's clock; after a step back it counts as too old.
    """
    young = 0 <= time.time() - found.created_at < LIFE
    return (found.state, found.label, found.fits) == ("ready", label, fit) and young


@contextmanager
def working_on(ctx: Context, name: str, timeout: float) -> Iterator[None]:
    """Hold the lock of a lab's standby for the block, waiting ``timeout`` seconds at most.

    Raises Busy after that, and the errors of ``halt``.
    """

    def halted() -> bool:
        ctx.progress.halt()
        return False

    with lock(ctx.home, "standby", name, deadline=Deadline.after(timeout), unless=halted):
        yield


def coming(ctx: Context, name: str, deadline: Deadline) -> StandbyRecord | None:
    """The standby of a lab, complete or being made.

    Who makes one, or was started for that by the last reset, is waited for until it is recorded
    what for. Raises the errors of ``halt``.
    """
    for _ in attempts(deadline, most=0.05):
        # Before the record: who makes one may record it, and end, now.
        busy = runs(ctx.home.standby_log(name)) or held(ctx.home, "standby", name)
        if (found := ctx.store.standbys.find(name)) is not None or not busy:
            return found
        ctx.progress.halt()
    return None


def forget_standby(ctx: Context, name: str, label: str = "") -> bool:
    """Remove the standby of a lab once nobody works on it; whether there was one.

    ``label``: only if it is for that snapshot. Where the lab is removed, that is recorded before:
    from then on nobody makes one.
    """
    if not _is_for(ctx, name, label):
        return False
    with lock(ctx.home, "standby", name):
        return _is_for(ctx, name, label) and remove(ctx, name)


def _is_for(ctx: Context, name: str, label: str) -> bool:
    found = ctx.store.standbys.find(name)
    return found is not None and label in ("", found.label)


def remove(ctx: Context, name: str) -> bool:
    """Remove the standby of a lab, complete or not; its lock is held. Whether there was one.

    Where it was taking over, its guests that are the lab's by now stay.
    """
    found = ctx.store.standbys.find(name)
    if found is None:
        return False
    ours = {node.guest for node in ctx.store.nodes.of(name)}
    end(ctx, name, [guest for guest in found.guests if guest not in ours])
    for volume in volumes(ctx, name):
        ctx.storage.drop_spare(volume)
    forget_hosts(ctx, Owner("lab", name), found.ports)
    forget(ctx, found)
    return True


def forget(ctx: Context, found: StandbyRecord) -> None:
    """Remove the record of a standby, and reserve nothing for it any more."""
    name, owner = found.lab, Owner("lab", found.lab)
    with ctx.store.transaction():
        record, nodes = ctx.store.labs.get(name), ctx.store.nodes.of(name)
        used = {port for node in nodes for port in node.all_ports.values()}
        for port in found.ports - used:
            ctx.store.resources.gone(owner, "port", str(port))
        for one in ctx.store.resources.of(owner):
            if one.kind == "segment" and int(one.ref) != record.segment:
                ctx.store.resources.gone(owner, "segment", one.ref)
        ctx.store.standbys.remove(name)


def end(ctx: Context, name: str, guests: Sequence[str]) -> None:
    """End ``guests`` that a lab, or its standby, has no more, and forget them."""
    gone = [GuestName(guest) for guest in guests]
    each(lambda guest: ctx.hypervisor.stop(guest, force=True), gone)
    forget_guests(ctx, gone)
    with ctx.store.transaction():
        for guest in gone:
            ctx.store.resources.gone(Owner("lab", name), "guest", guest)


def volumes(ctx: Context, name: str) -> list[VolumeName]:
    """The volumes of a lab, which may have spare disks."""
    return [one.name for one in ctx.storage.volumes() if one.name.owner == Owner("lab", name)]


def clear(ctx: Context, name: str) -> None:
    """Remove the standby of a lab, and what a take-over left of guests; the lab's lock is held."""
    forget_standby(ctx, name)
    end_strays(ctx, name)


def end_strays(ctx: Context, name: str) -> list[GuestName]:
    """End and forget what a take-over left of guests; which these were.

    The lab's lock is held, or that of its standby: no take-over is under way.
    """
    gone = strays(ctx, name)
    end(ctx, name, gone)
    return gone


def strays(
    ctx: Context, name: str, guests: Mapping[GuestName, Guest] | None = None
) -> list[GuestName]:
    """Guests of a lab that are neither its nodes' nor its standby's: a take-over left them.

    They may have ended by themselves. ``guests``: those that there were, listed before: a guest is
    recorded before it is there.
    """
    guests, owner = ctx.hypervisor.guests() if guests is None else guests, Owner("lab", name)
    ours = {str(guest) for guest, one in guests.items() if one.tags.get("owner") == str(owner)}
    ours |= {one.ref for one in ctx.store.resources.of(owner) if one.kind == "guest"}
    # In this order: a guest that changes from one to the other meanwhile is in both, or in nodes.
    found = ctx.store.standbys.find(name)
    known = set(found.guests) if found else set()
    known |= {node.guest for node in ctx.store.nodes.of(name)}
    return [GuestName(guest) for guest in sorted(ours - known)]


def sweep(ctx: Context) -> list[str]:
    """Remove standbys that cannot be used, and what a killed command left of one; a line for each.

    What a running command works on is left.
    """
    removed = []
    guests = ctx.hypervisor.guests()
    for found in ctx.store.standbys.all():
        with suppress(Conflict, NotFound), lock(ctx.home, "standby", found.lab, wait=False):
            now = ctx.store.standbys.find(found.lab)
            if now is not None and not _complete(ctx, now):
                remove(ctx, found.lab)
                removed.append(f"standby of {found.lab}")
    for lab in ctx.store.labs.all():
        if lab.usable and strays(ctx, lab.name, guests):
            with suppress(Conflict), lock(ctx.home, "lab", lab.name, wait=False):
                removed += [f"guest {guest}" for guest in end_strays(ctx, lab.name)]
    return removed


def _complete(ctx: Context, found: StandbyRecord) -> bool:
    """Whether a standby may be used."""
    guests = ctx.hypervisor.guests()
    there = [guests.get(GuestName(name)) for name in found.guests]
    paused = all(guest is not None and guest.state == "paused" for guest in there)
    fit = fits(ctx.store.labs.get(found.lab), nodes_of(ctx, found.lab))
    return paused and usable(found, found.label, fit)
