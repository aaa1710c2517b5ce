"""Nodes that booted become a cluster again, also those that cannot do it by themselves."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from lab.blueprints import Blueprint, Engine, Remedy, Situation
from lab.errors import LabError
from lab.hypervisor import memory_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.nodes import Node, engines_of
from lab.lifecycle.nodes.personalise import set_clocks
from lab.lifecycle.nodes.readiness import first_missing, not_ready
from lab.observe.ask import Ask, through_agent
from lab.values import dataclass
from lab.wait import Deadline

_SECONDS = 30.0
_LOOK_EVERY = 0.4  # seconds, while nodes boot


@dataclass(frozen=True)
class Pace:
    """How often to look at how nodes stand, in seconds."""

    interval: float = 10.0
    patience: float = 90.0
    """After this long without any change, what should happen by itself will not."""
    boot: float = 30.0
    """This long after all guests answer, a node that is not ready does not boot any more."""


USUAL = Pace()


def until_back(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    images: Images,
    answer: Ask,
    deadline: Deadline,
    *,
    all_here: bool,
    pause: float,
    pace: Pace,
    booted: Callable[[], None],
    password: str = "",
) -> None:
    """``until_ready`` for nodes that booted; the blueprint's remedies are applied to them.

    ``all_here``: ``nodes`` are all of the lab's. ``booted`` is called when they have booted,
    ready or not. ``password``: of the lab's user, once it has one. Raises as ``until_ready`` does.
    """
    servers = [node for node in nodes if node.has_server]
    rescue = _Rescue(
        ctx, servers, blueprint, engines_of(servers, images), pace, all_here=all_here,
        password=password,
    )  # fmt: skip
    while True:
        slice_ = Deadline.after(min(pace.interval, blueprint.look_every, deadline.left))
        missing = first_missing(ctx, nodes, blueprint, answer, slice_, pause=pause)
        if missing is None:
            return
        if deadline.passed:
            raise not_ready(ctx, nodes, blueprint, missing)
        rescue.observe_and_remedy()
        deadline.saw((missing, *rescue.seen.items()))
        if time.monotonic() - max(rescue.answering, rescue.since) >= pace.boot:
            booted()


def until_back_inside(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    images: Images,
    deadline: Deadline,
    *,
    password: str = "",
) -> None:
    """``until_back`` for all nodes of a lab, seen from inside: they have no account of ours yet.

    ``password``: of nodes that had one before.
    """
    with ctx.progress.step("form", "waiting until the nodes are a cluster again"):
        ask = through_agent(blueprint, ctx.hypervisor, nodes)
        until_back(
            ctx, nodes, blueprint, images, ask, deadline, all_here=True, pause=_LOOK_EVERY,
            pace=USUAL, booted=lambda: None, password=password,
        )  # fmt: skip


@dataclass
class _Rescue:
    """What was seen of the nodes with a server, and done to them so far.

    ``answering``: since when all of their guests answer, on the monotonic clock.
    """

    ctx: Context
    nodes: Sequence[Node]
    blueprint: Blueprint
    engines: Mapping[str, Engine]
    pace: Pace
    all_here: bool = field(kw_only=True)
    password: str = field(kw_only=True, repr=False)
    seen: Mapping[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    answering: float = math.inf
    given: Counter[tuple[str, str]] = field(default_factory=Counter)
    reported: set[str] = field(default_factory=set)

    def observe_and_remedy(self) -> None:
        """See how all nodes stand, and help who needs help; raises NotReady if none can be."""
        standings = dict(
            zip((n.name for n in self.nodes), each(self._ask, self.nodes), strict=True)
        )
        if all(standings.values()):
            self.answering = min(self.answering, time.monotonic())
        self._report(standings)
        before = self.seen
        self.seen = {n: self.blueprint.unchanging(text) for n, text in standings.items()}
        if self.seen != before:
            # What changes may yet come right by itself.
            self.since = time.monotonic()
            return
        if not all(standings.values()):
            return
        waited = time.monotonic() - self.since >= self.pace.patience
        situation = Situation(standings, self.all_here, waited, self.given, self.password)
        reported = set[tuple[str, str]]()
        for remedy in self.blueprint.remedies(situation, self.engines):
            line = remedy.node, f"{remedy.why}{remedy.effect}"
            self._give(remedy, silent=line in reported)  # one reason may need several actions
            reported.add(line)

    def _ask(self, node: Node) -> str:
        try:
            channel = self.ctx.hypervisor.channel(node.guest)
            if not channel.ping(1.0):
                return ""
            argv = self.blueprint.standing(self.engines[node.name])
            return channel.run(argv, timeout=_SECONDS).decode(errors="replace")
        except LabError:
            return ""  # it boots, or its image is too old to say

    def _report(self, standings: Mapping[str, str]) -> None:
        for node, text in standings.items():
            if (remark := self.blueprint.remark(text)) and node not in self.reported:
                self.reported.add(node)
                self.ctx.progress.note("recover", f"{node} {remark}")

    def _give(self, remedy: Remedy, *, silent: bool) -> None:
        self.given[remedy.node, remedy.action] += 1
        self.since = time.monotonic()
        if remedy.replaces:
            self.reported.add(remedy.node)
        if not silent:
            self.ctx.progress.note("recover", f"{remedy.node}: {remedy.why}{remedy.effect}")
        node = next(node for node in self.nodes if node.name == remedy.node)
        try:
            channel = self.ctx.hypervisor.channel(node.guest)
            channel.run(remedy.argv, stdin=remedy.stdin, timeout=_SECONDS)
        except LabError as error:
            self.ctx.progress.note("recover", f"{remedy.node}: {error}")


def resume_paused(ctx: Context, nodes: Sequence[Node]) -> None:
    """Resume paused nodes, such as those that a killed ``stop`` left; their clocks stood.

    The lab's lock is held.
    """
    running_guests = ctx.hypervisor.guests()
    paused = [
        n for n in nodes if n.guest in running_guests and running_guests[n.guest].state == "paused"
    ]
    if paused:
        memory_of(ctx.hypervisor).resume([node.guest for node in paused])
        set_clocks(ctx, paused)
