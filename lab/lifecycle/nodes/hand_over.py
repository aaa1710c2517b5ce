"""The last steps of every way to a lab: its nodes get identities, then must prove usable."""

from __future__ import annotations

from collections.abc import Sequence

from lab.blueprints import Blueprint
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes import personalise as identities
from lab.lifecycle.nodes.nodes import GuestCluster, Node, engines_of
from lab.lifecycle.nodes.personalise import Prepared
from lab.lifecycle.nodes.readiness import until_ready
from lab.observe.account import Account
from lab.observe.ask import through_port
from lab.values import dataclass
from lab.wait import Deadline

_POLL = 0.02  # seconds; everything runs already


@dataclass(frozen=True)
class Started:
    """Nodes of a lab that run as clones, not yet as this lab's."""

    nodes: Sequence[Node]
    blueprint: Blueprint
    images: Images
    account: Account
    """The account of the lab's user."""
    prepared: Prepared
    """The identities that the nodes are to get."""
    deadline: Deadline
    """When the nodes must be ready."""
    cluster: Sequence[Node] = ()
    """All nodes that run then, if more than these."""
    end_sessions: bool = False
    """Whether to end sessions of clients, which the RAM of a lab in use has."""
    identity: int = 0
    """What the identities of servers follow from (see ``Blueprint.identify``), 0 for those of the
    capture."""


def personalise(ctx: Context, started: Started) -> int:
    """Give every node its identity and the lab's password; raises NotReady or CommandFailed.

    Returns how many clients' sessions of a capture were ended, and notes it if there were any.
    """
    with ctx.progress.step("personalise", "new clock, seeds, password and keys"):
        ended = identities.personalise(
            ctx,
            started.nodes,
            started.blueprint,
            started.images,
            started.account.password,
            started.prepared,
            timeout=started.deadline.left,
            cluster=started.cluster,
            # Servers that restart keep none, and nobody may write while they stop.
            end_sessions=started.end_sessions or bool(started.identity),
        )
    if ended:
        sessions = "session" if ended == 1 else "sessions"
        ctx.progress.note("sessions", f"ended {ended} client {sessions} that the capture had")
    if started.identity:
        with ctx.progress.step("identity", "restarting servers with identities of their own"):
            engines = engines_of(started.nodes, started.images)
            cluster = GuestCluster(ctx, started.nodes)
            started.blueprint.identify(cluster, engines, started.identity)
    return ended


def wait_ready(ctx: Context, started: Started) -> None:
    """Wait until the lab's account can use all nodes; raises NotReady."""
    with ctx.progress.step("ready", "waiting until every node can be used"):
        blueprint, nodes = started.blueprint, started.cluster or started.nodes
        ask = through_port(ctx.ways, blueprint, started.account, nodes, deadline=started.deadline)
        until_ready(ctx, nodes, blueprint, ask, started.deadline, pause=_POLL)
        # Again: the first message reached a guest that had only just resumed.
        identities.set_clocks(ctx, started.nodes, timeout=started.deadline.left)
