"""Before guests are captured: what is in their RAM must be on their disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.blueprints import Blueprint
from lab.errors import Interrupted, LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each_until
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.cluster import GuestCluster
from lab.lifecycle.nodes.nodes import Node, engines_of
from lab.names import GuestName

_SECONDS = 30.0


def write_out(ctx: Context, guests: Sequence[GuestName], flush: Sequence[str] = ()) -> None:
    """Have servers and file systems of ``guests`` write everything to their disks.

    First the statements ``flush`` of the blueprint, then the files. A guest that does not answer
    is skipped, with a note: it is as if its power failed.
    """
    skipped: dict[GuestName, str] = {}
    orders: list[tuple[list[str], bytes]] = [(["/bin/sync"], b"")]
    if flush:
        stdin = "".join(f"{statement}\n" for statement in flush).encode()
        orders.insert(0, (["/usr/lib/lab/sql"], stdin))

    def one(guest: GuestName, halt: Callable[[], None]) -> None:
        for argv, stdin in orders:
            try:
                channel = ctx.hypervisor.channel(guest)
                channel.run(argv, stdin=stdin, timeout=_SECONDS, halt=halt)
            except Interrupted:
                raise
            except LabError as error:
                skipped.setdefault(guest, error.what)

    each_until(one, guests, ctx.progress.halt)
    for guest in guests:
        if why := skipped.get(guest):
            ctx.progress.note(
                "flush", f"{guest} was not flushed, as if its power failed at this moment: {why}"
            )


def bring_to_rest(
    ctx: Context, blueprint: Blueprint, images: Images, nodes: Sequence[Node]
) -> None:
    """Stop the servers of ``nodes``, all of a cluster; see ``Blueprint.rest``."""
    blueprint.rest(GuestCluster(ctx, nodes), engines_of(nodes, images))
