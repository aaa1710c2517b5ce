"""``lab start``: the nodes of a lab that do not run."""

from __future__ import annotations

from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.nodes.inspect import node_of, nodes_of
from lab.lifecycle.nodes.recovery import USUAL, Pace
from lab.requests.labs import RollBack
from lab.views.labs import LabView


def start(ctx: Context, name: str, *, timeout: float, pace: Pace = USUAL) -> LabView:
    """Boot all nodes that do not run and wait until the lab is ready.

    Nodes that cannot become a cluster again by themselves, after a crash, are helped; progress
    says how. A rollback that was interrupted is completed instead.

    Raises NotFound, Conflict, HostUnfit and, after ``timeout`` seconds, NotReady; what was
    started keeps running then.
    """
    if (pending := interrupted.pending(ctx, name)) is not None:
        label, node = pending
        ctx.progress.note("rollback", f"completing the interrupted rollback of {name} to {label}")
        done = rollback(ctx, RollBack(lab=name, to=label, node=node or ""), timeout=timeout)
        if node is None:
            return done
    return power.start(ctx, name, nodes_of(ctx, name), timeout, pace)


def start_node(
    ctx: Context, name: str, node: str, *, timeout: float, pace: Pace = USUAL
) -> LabView:
    """Boot one node and wait until it is back in its cluster; raises as ``start`` does."""
    return power.start(ctx, name, [node_of(ctx, name, node)], timeout, pace)
