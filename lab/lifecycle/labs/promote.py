"""``lab promote``: another node takes the writes of a lab."""

from __future__ import annotations

from lab.blueprints import Promotion
from lab.errors import InvalidSpec, NotReady
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import (
    check_usable,
    images_of,
    lab,
    node_of,
    nodes_of,
    record_of,
    running_nodes,
)
from lab.lifecycle.nodes.nodes import GuestCluster, engines_of
from lab.lifecycle.nodes.readiness import until_ready
from lab.locks.named import lock
from lab.observe.ask import through_port
from lab.views.labs import LabView
from lab.wait import Deadline

_LOOK_EVERY = 0.1  # seconds


def promote(ctx: Context, name: str, node: str, *, force: bool = False, timeout: float) -> LabView:
    """Have ``node`` take the writes of a lab, and wait until all nodes that run are ready.

    ``force``: also without the node that takes them now, if that does not answer; it is powered
    off. What was interrupted is completed by the same call, and one that failed before the new
    node takes writes has changed nothing. ``timeout``: seconds. Raises NotFound, InvalidSpec where
    nodes cannot be promoted, Conflict while another command works on the lab, and NotReady.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = record_of(ctx, name)
        check_usable(record)
        interrupted.check(ctx, name)
        if not node_of(ctx, name, node).has_server:
            raise InvalidSpec(
                f"{node} of {name} has no server of its own",
                hint="a server's node can be promoted",
            )
        all_, here, plan = nodes_of(ctx, name), running_nodes(ctx, name), record.plan
        guests = {one.name: one.guest for one in all_}
        if node not in [one.name for one in here]:
            raise NotReady(
                f"{node} of {name} does not run",
                hint=f"`lab start {name} --node {node}` starts it",
            )
        deadline = Deadline.after(timeout)
        asked = Promotion(
            node,
            tuple(guests),
            deadline,
            force=force,
            password=record.password,
            fence=lambda lost: ctx.hypervisor.stop(guests[lost], force=True),
            note=lambda text: ctx.progress.note("promote", text),
        )
        with ctx.progress.step("promote", f"{node} is to take the writes of {name}"):
            engines = engines_of(here, images_of(ctx, record, here))
            plan.promote(GuestCluster(ctx, here), engines, asked)
        left = running_nodes(ctx, name)
        with ctx.progress.step("ready", "waiting until every node can be used"):
            ask = through_port(
                ctx.ways, plan, account_of(ctx.home, record), left, deadline=deadline
            )
            until_ready(ctx, left, plan, ask, deadline, pause=_LOOK_EVERY)
    return lab(ctx, name, proved=True)
