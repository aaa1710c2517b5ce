"""The name of a new lab, reserved for one command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from lab.errors import Conflict
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import branches, forget
from lab.lifecycle.images.order import Order
from lab.locks.named import lock
from lab.names import Owner, lab_of
from lab.state.records import LabRecord, requested

_TRIES = 20
"""Attempts to reserve a free name that other commands may take first."""


def new_record(ctx: Context, order: Order) -> LabRecord:
    """The record of a lab that is to be made; its name may be empty: ``reserved`` finds one."""
    spec, now = order.spec, time.time()
    return LabRecord(
        name=spec.name,
        engine=spec.engine.partition(":")[0],  # as requested, until it is chosen
        engine_version=spec.engine.partition(":")[2],
        image="",
        snapshots=str(spec.schedule),
        state="creating",
        password="",
        user="",
        owner=ctx.settings.owner,
        created_at=now,
        expires_at=None if spec.ttl is None else now + spec.ttl,
        address=ctx.settings.publish,
        host=ctx.settings.published_as,
        **requested(spec, order.profile.name),
        **vars(ctx.origin),
    )


def branch_record(
    ctx: Context, order: Order, parent: LabRecord, name: str, capture: Capture, identity: int
) -> LabRecord:
    """The record of a lab that is to be a clone of ``capture``, a snapshot of ``parent``.

    It keeps that from removal. ``order``: of the parent, with the lease of the branch.
    """
    return replace(
        new_record(ctx, order),
        name=name,
        parent=str(capture.ref),
        template=parent.template,
        identity=identity,
    )


@contextmanager
def reserved(ctx: Context, record: LabRecord, *, stem: str = "") -> Iterator[Owner]:
    """Reserve the name of ``record`` for the block: add that, and hold the lab's lock.

    Where it has no name, the first free one that begins with ``stem``, or with the blueprint's.
    Raises Conflict if the name is taken: by a lab, by a command that works on it (Busy), or by
    guests or files that are not recorded.
    """
    refused: set[str] = set()  # another may hold a name's lock long before it records it
    with ExitStack() as stack:
        while True:
            name = record.name or ctx.store.free_name(
                stem or record.blueprint, traces(ctx) | refused
            )
            owner = Owner("lab", name)
            try:
                stack.enter_context(lock(ctx.home, "lab", name, wait=False))
                _clear_remains(ctx, owner)
                if record.name and not ctx.store.labs.find(name) and name in traces(ctx):
                    raise _taken(ctx, name)
                ctx.store.labs.add(replace(record, name=name))
                break
            except Conflict:
                stack.pop_all().close()
                refused.add(name)
                if record.name or len(refused) == _TRIES:
                    raise
        yield owner


def traces(ctx: Context) -> set[str]:
    """The names of labs that guests or files have, recorded or not, those of other homes too."""
    names = {lab_of(guest) for guest in ctx.hypervisor.names()}
    names |= {path.name for path in ctx.home.labs.iterdir()}
    return {name for name in names if name}


def _taken(ctx: Context, name: str) -> Conflict:
    ours = any(lab_of(guest) == name for guest in ctx.hypervisor.guests())
    if ours or ctx.home.lab(name).exists():
        return Conflict(
            f"lab {name} is missing from the state database; only its guests or files exist",
            hint=f"`lab down {name}` removes it",
        )
    return Conflict(
        f"the name {name} is taken: guests of a lab of that name exist that are not ours",
        hint="choose another --name; `virsh list` shows them, another LAB_HOME owns them",
    )


def _clear_remains(ctx: Context, owner: Owner) -> None:
    """Remove what a killed command left of a lab; we hold its lock, so nobody works on it."""
    record = ctx.store.labs.find(owner.name)
    dead = record is not None and record.state in ("creating", "removing")
    if dead and (needed := branches(ctx, owner.name)):
        raise Conflict(
            f"lab {owner.name} is removed with its last branch: {', '.join(needed)}",
            hint=f"choose another name, or `lab down {' '.join(needed)}` first",
        )
    if dead or (record is None and ctx.store.resources.of(owner)):
        ctx.progress.note("undo", f"removing leftovers of a killed command: {owner.name}")
        forget(ctx, owner)
