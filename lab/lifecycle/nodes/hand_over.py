"""The last step of every way to a lab: nodes become themselves, then must prove usable."""

from __future__ import annotations

from collections.abc import Sequence

from lab.blueprints import Blueprint, Engine
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.sql import Account
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import Prepared, personalise, set_clocks
from lab.lifecycle.nodes.readiness import through_port, until_ready
from lab.wait import Deadline

_LOOK_EVERY = 0.02  # seconds; everything runs already


def hand_over(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    engine: Engine,
    account: Account,
    prepared: Prepared,
    deadline: Deadline,
    cluster: Sequence[Node] = (),
) -> None:
    """Give every node its identity, then wait until the lab's account can use all of them.

    ``cluster``: the nodes that must be ready, if those are only some of them. Raises NotReady
    or CommandFailed.
    """
    with ctx.progress.step("personalise", "new clock, seeds, password and keys"):
        personalise(
            ctx, nodes, blueprint, engine, account.password, prepared,
            timeout=deadline.left, cluster=cluster,
        )  # fmt: skip
    with ctx.progress.step("ready", "waiting until every node can be used"):
        ask = through_port(blueprint, account, ctx.sql)
        until_ready(ctx, cluster or nodes, blueprint, ask, deadline, pause=_LOOK_EVERY)
        # Once more: the first message found a guest that had only just begun to run again.
        set_clocks(ctx, nodes, timeout=deadline.left)
