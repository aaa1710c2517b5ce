"""The observed state of labs: what their nodes answer now, within a time limit.

There are two states. The *recorded* one (``LabRecord.state``) is set by the last command, and
decides which commands are allowed. The *observed* one (``LabView.state``) is derived from the
requirements of every node at the time of the query, and is what users see.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lab.blueprints import Blueprint
from lab.errors import InvalidSpec, LabError, NotReady
from lab.hypervisor import Guest
from lab.lifecycle.core.views import LabState, NodeState, Requirement
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.readiness import THROUGH_PORT, WORST, ask_node, size_of, through_port
from lab.names import GuestName
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.lifecycle.core.context import Context
    from lab.lifecycle.nodes.nodes import Node
    from lab.lifecycle.nodes.readiness import Ask
    from lab.state.records import LabRecord

_THREADS = 256
_UNANSWERED = 64
"""Questions to one node that may wait for an answer at the same time, more than a service has
callers: whoever is root in a node decides whether each takes all of its time."""
_SERVING = ("ready", "degraded", "not-synced")
"""States of nodes that are in a primary component."""


@dataclass(frozen=True)
class Observed:
    """A node at the time of the query: its state, and the requirements it was derived from.

    ``role``: empty if it was not asked; ``position``: see ``Asked``.
    """

    state: NodeState
    requirements: tuple[Requirement, ...] = ()
    role: str = ""
    position: str | None = None


Key = tuple[str, str]
"""A lab and a node of it, by their names."""

_asked: Counter[Key] = Counter()
"""How many questions to each node wait for an answer now, in all threads."""
_guard = threading.Lock()


def observe(
    ctx: Context,
    labs: Sequence[tuple[LabRecord, Sequence[Node]]],
    guests: Mapping[GuestName, Guest],
    *,
    within: float | None = None,
) -> dict[Key, Observed]:
    """Query all nodes of ``labs`` in parallel; returns after ``within`` seconds at most.

    ``within``: default is the setting ``answer_timeout``. A node whose guest does not run is not
    queried. Raises nothing: a failure is the state of its node.
    """
    within = within or ctx.settings.answer_timeout
    found: dict[Key, Observed] = {}
    questions: dict[Key, Callable[[], Observed]] = {}
    for record, nodes in labs:
        plan, count, ask = _plan(record), size_of(nodes), None
        for node in nodes:
            key = (record.name, node.name)
            guest = guests.get(node.guest)
            state: NodeState = guest.state if guest else "stopped"
            if state != "running":
                found[key] = _silent(count, node, plan, f"the guest is {state}", state)
            elif plan is None or not record.user:
                why = "it has no account yet" if plan else f"unknown blueprint {record.blueprint}"
                found[key] = _silent(count, node, plan, why)
            else:
                found[key] = _silent(count, node, plan, f"no answer within {within:g} s")
                # Not earlier: this imports the SQL client, which labs that do not run do not need.
                ask = ask or through_port(
                    ctx, plan, account_of(ctx, record), nodes, patience=within
                )
                questions[key] = partial(_question, count, node, plan, ask)
    return found | _answers(questions, Deadline.after(within))


def lab_state(record: LabRecord, nodes: Sequence[str], *, working: bool) -> LabState:
    """The state of a lab, from its record and the observed states of its nodes.

    ``working``: a command is working on it. See ``views.LAB_STATES`` for the meanings.
    """
    there = set(nodes)
    if record.state not in ("ready", "stopped"):
        return record.state
    if there <= {"stopped"}:
        return "stopped"
    if record.state == "stopped" and working:
        return "starting"
    if there == {"ready"} and record.state == "ready":
        return "pooled" if record.pool else "ready"
    worst: tuple[LabState, ...] = ("not-primary", "unreachable")
    lost = [state for state in worst if state in there] if there.isdisjoint(_SERVING) else []
    return lost[0] if lost else "degraded"


def node_state(requirements: Sequence[tuple[Requirement, NodeState]]) -> NodeState:
    """The state that follows from a node's requirements, each with the state while it is unmet."""
    unmet = {state for found, state in requirements if not found.met}
    return next((state for state in WORST if state in unmet), "ready")


def _plan(record: LabRecord) -> Blueprint | None:
    try:
        return record.plan
    except InvalidSpec:
        return None  # of another version of lab


def _question(nodes: int, node: Node, plan: Blueprint, ask: Ask) -> Observed:
    try:
        asked = ask_node(node, nodes, plan, ask, THROUGH_PORT)
    except (LabError, OSError) as error:
        return _silent(nodes, node, plan, str(error))
    found = tuple(found for found, _ in asked.requirements)
    return Observed(node_state(asked.requirements), found, asked.role, asked.position)


def _silent(
    nodes: int,
    node: Node,
    plan: Blueprint | None,
    why: str,
    state: NodeState = "unreachable",
) -> Observed:
    """One of ``nodes`` that did not answer: ``why``; its other requirements are unknown."""

    def refuse(_: Node) -> Mapping[str, str]:
        raise NotReady(why)

    if plan is None:
        unmet = Requirement(node.name, "SQL", THROUGH_PORT, met=False, found=why)
        return Observed(state, (unmet,))
    asked = ask_node(node, nodes, plan, refuse, THROUGH_PORT)
    return Observed(state, tuple(found for found, _ in asked.requirements))


def _answers(
    questions: Mapping[Key, Callable[[], Observed]], deadline: Deadline
) -> dict[Key, Observed]:
    """The answers that came before ``deadline``.

    The threads are daemons: one whose node does not answer may outlive us by a moment, and keeps
    neither the command nor the service from ending. A node to which ``_UNANSWERED``
    questions wait for an answer is not asked again.
    """
    if not questions:
        return {}
    todo: queue.SimpleQueue[tuple[Key, Callable[[], Observed]]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Key, Observed]] = queue.SimpleQueue()
    for item in questions.items():
        todo.put(item)

    def work() -> None:
        while not deadline.passed:
            try:
                key, question = todo.get_nowait()
            except queue.Empty:
                return
            with _counted(key) as allowed:
                if allowed:
                    done.put((key, question()))

    for number in range(min(_THREADS, len(questions))):
        threading.Thread(target=work, name=f"observe-{number}", daemon=True).start()
    found: dict[Key, Observed] = {}
    while len(found) < len(questions):
        try:
            key, answer = done.get(timeout=max(0.001, deadline.left))
        except queue.Empty:
            break
        found[key] = answer
    return found


@contextmanager
def _counted(key: Key) -> Iterator[bool]:
    """Whether one more question to a node may wait for an answer; it counts during the block."""
    with _guard:
        allowed = _asked[key] < _UNANSWERED
        _asked[key] += 1
    try:
        yield allowed
    finally:
        with _guard:
            _asked[key] -= 1
            if not _asked[key]:
                del _asked[key]
