"""What users give to servers: options, which may keep them from starting, and statements."""

from __future__ import annotations

from collections.abc import Mapping

from lab.blueprints import Blueprint, Engine, Member, server, writers_of
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.cluster import GuestCluster
from lab.lifecycle.nodes.readiness import server_errors
from lab.wait import Deadline, attempts

_LOOK_SECONDS = 30.0


def until_started(
    ctx: Context,
    cluster: GuestCluster,
    plan: Blueprint,
    engines: Mapping[str, Engine],
    deadline: Deadline,
) -> None:
    """Return once no server can fail to start any more because of its options.

    Raises InvalidSpec, with the server's own message, as soon as one has ended.
    """

    def one(member: Member) -> None:
        (node,) = (node for node in cluster.nodes if node.name == member.name)
        if not node.has_server:
            return
        for _ in attempts(deadline):
            try:
                standing = plan.standing(engines[member.name])
                state = server.state(cluster.run(member, standing, timeout=_LOOK_SECONDS))
            except NotReady:
                continue  # its guest boots
            if state == "active":
                return
            if state == "failed":
                raise InvalidSpec(
                    f"the server of {member.name} does not start with the options that were given",
                    hint="change --set or --my-cnf",
                    details=server_errors(ctx, node),
                )

    cluster.each(one)


def initialise(
    cluster: GuestCluster, plan: Blueprint, engines: Mapping[str, Engine], deadline: Deadline
) -> None:
    """Execute the statements that were given, where clients would; raises InvalidSpec."""
    name = writers_of(plan.endpoints(cluster.members))[0]
    (member,) = (one for one in cluster.members if one.name == name)
    try:
        cluster.run(
            member,
            server.client(engines[name]),
            stdin=plan.options.init.encode(),
            timeout=max(deadline.left, 1.0),
        )
    except CommandFailed as error:
        raise InvalidSpec(
            f"{name} refused a statement of those that were given",
            hint="change the file of --init",
            details=error.stderr.splitlines()[-3:],
        ) from None
