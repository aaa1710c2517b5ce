"""Whether this host can do what was asked for, before anything is made."""

from __future__ import annotations

from collections.abc import Sequence

from lab import host
from lab.blueprints import NodePlan
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import AHEAD, made_ahead, try_drop
from lab.lifecycle.nodes.ports import check_published, redirects_at
from lab.units import MIB

_FREED = 64 * MIB
"""Bytes that the end of a paused guest frees at least: less than its own memory that was measured,
as no lab is removed for one that then lacks memory all the same."""


def preflight(ctx: Context, nodes: Sequence[NodePlan]) -> None:
    """Raise HostUnfit unless this host can take these nodes; nothing is made before this passes."""
    sizes = [node.size for node in nodes]
    check_published(ctx.settings.publish)
    host.check_cpus(max(size.cpus for size in sizes))
    memory = [size.memory for size in sizes]
    host.check_memory(memory, host.memory(), ctx.settings.memory_floor)
    space = ctx.storage.space()
    needed = sum(size.disk for size in sizes)
    host.check_space(space.free, ctx.settings.space_floor, ctx.home.root, needed=needed)
    check_aio(ctx, len(sizes))
    if (redirects := redirects_at(ctx, ctx.settings.publish)) is not None:
        redirects.ports()


def make_room(ctx: Context, nodes: Sequence[NodePlan]) -> bool:
    """Remove labs that were made ahead, the oldest first, if ``nodes`` then have their memory.

    Whether they have it. Not for such a lab itself.
    """
    if ctx.origin.pool == AHEAD:
        return False
    needed = sum(node.size.memory for node in nodes) + ctx.settings.memory_floor
    waiting = made_ahead(ctx)
    spare = sum(_FREED * len(ctx.store.nodes.of(one.name)) for one in waiting)
    if needed > host.memory().available + spare:
        return False
    for one in waiting:
        if needed <= host.memory().available:
            break
        try_drop(ctx, one.name)
    return needed <= host.memory().available


def check_aio(ctx: Context, nodes: int) -> None:
    """Raise HostUnfit unless so many more ``nodes`` can have native AIO, where guests use it."""
    if ctx.hypervisor.capabilities().native_aio:
        host.check_aio(nodes, host.aio_left())
