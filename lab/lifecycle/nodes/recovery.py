"""Nodes that booted become a cluster again, also those that cannot do it by themselves."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.blueprints import Blueprint, Remedy
from lab.errors import LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.readiness import Ask, first_missing, not_ready
from lab.wait import Deadline

_PROGRAM = "/usr/lib/lab/rejoin"
_SECONDS = 30.0
_AGAIN = 2
"""How often a node is given the same order; then a server that only ends is given data."""
_DONE = {
    "restart": "; its server is restarted",
    "transfer": "; its data are replaced by a state transfer (SST) from another node",
    "bootstrap": "",
}


@dataclass(frozen=True)
class Pace:
    """How often to look at how nodes stand, in seconds.

    ``patience``: after this long without any change, what should happen by itself will not.
    ``boot``: this long after all guests answer, a node that is not ready does not boot any more.
    """

    look: float = 10.0
    patience: float = 90.0
    boot: float = 30.0


USUAL = Pace()


def until_back(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    answer: Ask,
    deadline: Deadline,
    *,
    all_here: bool,
    pause: float,
    pace: Pace,
    booted: Callable[[], None],
) -> None:
    """``until_ready`` for nodes that booted; who needs help to rejoin its cluster is helped.

    ``all_here``: ``nodes`` are all of the lab's. ``booted`` is called when they have booted,
    ready or not. Raises as ``until_ready`` does.
    """
    rescue = _Rescue(ctx, nodes, blueprint, pace, all_here=all_here)
    while True:
        slice_ = Deadline.after(min(pace.look, deadline.left))
        missing = first_missing(ctx, nodes, blueprint, answer, slice_, pause=pause)
        if missing is None:
            return
        if deadline.passed:
            raise not_ready(ctx, nodes, missing)
        rescue.look()
        if time.monotonic() - max(rescue.answering, rescue.since) >= pace.boot:
            booted()


@dataclass
class _Rescue:
    """What was seen of the nodes and done to them so far.

    ``answering``: since when all of their guests answer, on the monotonic clock.
    """

    ctx: Context
    nodes: Sequence[Node]
    blueprint: Blueprint
    pace: Pace
    all_here: bool = field(kw_only=True)
    seen: Mapping[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    answering: float = math.inf
    given: Counter[tuple[str, str]] = field(default_factory=Counter)
    told: set[str] = field(default_factory=set)

    def look(self) -> None:
        """See how all nodes stand, and help who needs help; raises NotReady if none can be."""
        standings = dict(
            zip((n.name for n in self.nodes), each(self._ask, self.nodes), strict=True)
        )
        if all(standings.values()):
            self.answering = min(self.answering, time.monotonic())
        self._tell(standings)
        before, self.seen = self.seen, {n: _still(text) for n, text in standings.items()}
        if self.seen != before:
            # What changes may yet come right by itself.
            self.since = time.monotonic()
            return
        if not all(standings.values()):
            return
        waited = time.monotonic() - self.since >= self.pace.patience
        found = self.blueprint.remedies(standings, all_here=self.all_here, waited=waited)
        # Who starts the cluster is told first: the others find it when they look.
        for remedy in sorted(found, key=lambda r: r.order != "bootstrap"):
            self._give(remedy)

    def _ask(self, node: Node) -> str:
        try:
            channel = self.ctx.hypervisor.channel(node.guest)
            if not channel.ping(1.0):
                return ""
            return channel.run([_PROGRAM, "state"], timeout=_SECONDS).decode(errors="replace")
        except LabError:
            return ""  # it boots, or its image is too old to say

    def _tell(self, standings: Mapping[str, str]) -> None:
        for node, text in standings.items():
            if "transfer\tyes" in text.splitlines() and node not in self.told:
                self.told.add(node)
                self.ctx.progress.note(
                    "recover",
                    f"{node} lacks write sets of its cluster: state transfer from another node"
                    " (IST; SST if no node has them any more)",
                )

    def _give(self, remedy: Remedy) -> None:
        order = remedy.order
        if order == "restart" and self.given[remedy.node, order] >= _AGAIN and len(self.nodes) > 1:
            order = "transfer"
        if self.given[remedy.node, order] >= _AGAIN:
            return
        self.given[remedy.node, order] += 1
        self.since = time.monotonic()
        if order == "transfer":
            self.told.add(remedy.node)
        self.ctx.progress.note("recover", f"{remedy.node}: {remedy.why}{_DONE[order]}")
        node = next(node for node in self.nodes if node.name == remedy.node)
        try:
            self.ctx.hypervisor.channel(node.guest).run([_PROGRAM, order], timeout=_SECONDS)
        except LabError as error:
            self.ctx.progress.note("recover", f"{remedy.node}: {error}")


def _still(standing: str) -> str:
    """``standing`` without what goes on in a node that is well."""
    return "".join(line for line in standing.splitlines() if "last_committed" not in line)
