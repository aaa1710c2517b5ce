"""``lab branch``: new labs that are clones of a lab as it is, or as a snapshot has it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from lab import host
from lab.lifecycle.captures import system
from lab.lifecycle.captures.capture import Capture, parent_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.order import Order, of_existing
from lab.lifecycle.labs.reserve import branch_record, reserved
from lab.lifecycle.labs.rollback import sound
from lab.lifecycle.labs.up import all_or_nothing, check_host, clone_in_use, mark_ready
from lab.lifecycle.nodes.form import put_seed, seed_of
from lab.lifecycle.nodes.inspect import images_of, record_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.preflight import preflight
from lab.lifecycle.snapshots import snapshot
from lab.names import LAB_NAME_LIMIT, Owner
from lab.requests.labs import BranchLab
from lab.state.records import LabRecord
from lab.views.labs import LabView


def branch(ctx: Context, asked: BranchLab, *, timeout: float) -> list[LabView]:
    """Make labs that are clones of a lab, and return them once all are ready.

    ``timeout``: seconds that the nodes of one may take to get ready. A branch that fails leaves
    nothing; those before it stay. A snapshot that was taken for branches of which none was made is
    removed. Raises NotFound, InvalidSpec, Conflict, HostUnfit.
    """
    names, parent = asked.names, record_of(ctx, asked.lab)
    order = of_existing(ctx, structs.replace(parent.spec, ttl=asked.ttl))
    check_host(ctx, order.nodes)
    made = []
    with snapshot.kept_or_taken(ctx, parent.name, asked.at, "branch") as capture:
        # An upgrade since then has replaced what the disks and the RAM of the capture are of.
        parent, nodes = system.as_captured(ctx, parent, capture)
        order = order.with_images({node.name: node.image for node in nodes})
        spec = structs.replace(order.spec, options=parent.spec.options)
        order = replace(order, spec=spec)
        _check_memory(ctx, order, capture, asked.count)
        for name in names:
            identity = _new_identity() if asked.identity == "new" else 0
            record = branch_record(ctx, order, parent, name, capture, identity)
            made.append(_one(ctx, asked, order, (parent, nodes), capture, record, timeout))
    return made


def _new_identity() -> int:
    """A number from which the identities of a branch follow: a server id, of 32 bits, is near.

    Others choose small server ids, by hand or by counting.
    """
    return (1 << 20) + secrets.randbelow(1 << 31)


def _check_memory(ctx: Context, order: Order, capture: Capture, count: int) -> None:
    """Raise HostUnfit, with figures, unless there is memory for all branches.

    As for every lab, what is available must suffice for all RAM of the last one. Those before it
    have by then what they changed, which is at least what ``capture`` has.
    """
    memory = [node.size.memory for node in order.nodes]
    changed = [node.state.size for node in capture.nodes if node.state is not None]
    before = (changed if capture.warm else memory) * (count - 1)
    hint = "make fewer branches, or remove a lab (`lab ls`)"
    host.check_memory([*memory, *before], host.memory(), ctx.settings.memory_floor, hint=hint)


def _one(
    ctx: Context,
    asked: BranchLab,
    order: Order,
    captured: tuple[LabRecord, Sequence[Node]],
    capture: Capture,
    record: LabRecord,
    timeout: float,
) -> LabView:
    """Make the lab ``record``, a clone of ``capture``, which is one of the lab ``captured``."""
    parent, nodes = captured
    with (
        reserved(ctx, record, stem=parent.name[:LAB_NAME_LIMIT]) as lab,
        all_or_nothing(ctx, lab, order.spec.ttl, keep=False),
    ):
        # It is recorded as a branch: who removes the capture from now on sees it.
        snapshot.find(ctx, parent.name, capture.label)
        preflight(ctx, order.nodes)
        images = images_of(ctx, parent, nodes)
        clone_in_use(
            ctx,
            lab,
            order,
            images,
            sound(ctx, capture, images),
            timeout,
            refused=lambda why: ctx.progress.note(
                "branch", f"{why}; {lab.name} boots from its disks"
            ),
            seeds=partial(_copy_seeds, ctx, parent, nodes, lab),
            keep_sessions=asked.keep_sessions,
            identity=record.identity,
        )
        return mark_ready(ctx, lab, order.spec.ttl, record.created_at)


def _copy_seeds(ctx: Context, parent: LabRecord, nodes: Sequence[Node], lab: Owner) -> None:
    """Give a branch the seeds that the ``nodes`` of its parent boot with.

    Where guests have addresses of their own, each has a seed of its own, written at its start.
    """
    ctx.home.create_directory(lab)
    for node in nodes:
        if node.guest_address:
            continue
        source = seed_of(ctx, node, parent_of(parent), parent.segment)
        put_seed(ctx, ctx.home.seed(lab, node.name), source.read_bytes())
