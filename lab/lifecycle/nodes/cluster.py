"""The running nodes of a lab or template, as the steps of its blueprint see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lab.blueprints import Member
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.nodes import Node
from lab.observe.target import member_of

T = TypeVar("T")


@dataclass(frozen=True)
class GuestCluster:
    """See ``lab.blueprints.Cluster``; programs run through the channels of the guests."""

    ctx: Context
    nodes: Sequence[Node]

    @property
    def members(self) -> list[Member]:
        """See Cluster."""
        return [member_of(node) for node in self.nodes]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """See Cluster."""
        (node,) = (node for node in self.nodes if node.name == member.name)
        channel = self.ctx.hypervisor.channel(node.guest)
        said = channel.run(argv, stdin=stdin, timeout=timeout, halt=self.ctx.progress.halt)
        return said.decode(errors="replace")

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        return each(step, self.members)
