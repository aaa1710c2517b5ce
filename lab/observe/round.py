"""One round of questions: what the nodes of labs answer now, within a time limit.

Every view of a lab is drawn from an ``Observation``, so all of them say the same of one moment.
There are two states. The *recorded* one (``LabRecord.state``) is set by the last command, and
decides which commands are allowed. The *observed* one (``LabView.state``) is derived from the
requirements of every node at the time of the query, and is what users see.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from lab.blueprints import Blueprint
from lab.errors import LabError, NotReady
from lab.hypervisor import Guest
from lab.names import GuestName
from lab.observe.account import Account
from lab.observe.ask import THROUGH_PORT, WORST, Ask, ask_node, through_port
from lab.observe.states import LabState, NodeState, Requirement
from lab.observe.target import Target, size_of
from lab.observe.ways import Ways
from lab.wait import Deadline

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


@dataclass(frozen=True)
class Observation:
    """What was seen of a lab: ``at`` that time (epoch seconds), each of its ``nodes``, by name.

    ``seconds``: how long the round took.
    """

    lab: str
    at: float
    nodes: Mapping[str, Observed]
    seconds: float = 0.0


@dataclass(frozen=True)
class Subject:
    """A lab that is asked: its ``nodes``, by ``plan``, with ``account``.

    ``why``: why they cannot be asked where ``plan`` or ``account`` is None.
    """

    lab: str
    nodes: Sequence[Target]
    plan: Blueprint | None
    account: Account | None
    why: str = ""


Key = tuple[str, str]
"""A lab and a node of it, by their names."""

_asked: Counter[Key] = Counter()
"""How many questions to each node wait for an answer now, in all threads."""
_guard = threading.Lock()


def observe(
    ways: Ways,
    subjects: Sequence[Subject],
    guests: Mapping[GuestName, Guest],
    *,
    within: float,
) -> dict[str, Observation]:
    """Query all nodes of all ``subjects`` in parallel; the observations, by lab.

    Returns after ``within`` seconds at most. A node whose guest does not run is not queried.
    Raises nothing: a failure is the state of its node.
    """
    began, at = time.monotonic(), time.time()
    found: dict[Key, Observed] = {}
    questions: dict[Key, Callable[[], Observed]] = {}
    for one in subjects:
        count, ask = size_of(one.nodes), None
        for node in one.nodes:
            key = (one.lab, node.name)
            guest = guests.get(node.guest)
            state: NodeState = guest.state if guest else "stopped"
            if state != "running":
                found[key] = _silent(count, node, one.plan, f"the guest is {state}", state)
            elif one.plan is None or one.account is None:
                found[key] = _silent(count, node, one.plan, one.why)
            else:
                found[key] = _silent(count, node, one.plan, f"no answer within {within:g} s")
                ask = ask or through_port(ways, one.plan, one.account, one.nodes, patience=within)
                questions[key] = partial(_question, count, node, one.plan, ask)
    found |= _answers(questions, Deadline.after(within))
    took = time.monotonic() - began
    return {
        one.lab: Observation(
            one.lab, at, {node.name: found[one.lab, node.name] for node in one.nodes}, took
        )
        for one in subjects
    }


def lab_state(
    recorded: LabState, nodes: Collection[str], *, working: bool, pooled: bool
) -> LabState:
    """The state of a lab, from the one that is ``recorded`` and the observed ones of its nodes.

    ``working``: a command is working on it; ``pooled``: it is in a warm pool. See
    ``LAB_STATES`` for the meanings.
    """
    there = set(nodes)
    if recorded not in ("ready", "stopped"):
        return recorded
    if there <= {"stopped"}:
        return "stopped"
    if recorded == "stopped" and working:
        return "starting"
    if there == {"ready"} and recorded == "ready":
        return "pooled" if pooled else "ready"
    worst: tuple[LabState, ...] = ("not-primary", "unreachable")
    lost = [state for state in worst if state in there] if there.isdisjoint(_SERVING) else []
    return lost[0] if lost else "degraded"


def node_state(requirements: Sequence[tuple[Requirement, NodeState]]) -> NodeState:
    """The state that follows from a node's requirements, each with the state while it is unmet."""
    unmet = {state for found, state in requirements if not found.met}
    return next((state for state in WORST if state in unmet), "ready")


def _question(nodes: int, node: Target, plan: Blueprint, ask: Ask) -> Observed:
    try:
        asked = ask_node(node, nodes, plan, ask, THROUGH_PORT)
    except (LabError, OSError) as error:
        return _silent(nodes, node, plan, str(error))
    found = tuple(found for found, _ in asked.requirements)
    return Observed(node_state(asked.requirements), found, asked.role, asked.position)


def _silent(
    nodes: int,
    node: Target,
    plan: Blueprint | None,
    why: str,
    state: NodeState = "unreachable",
) -> Observed:
    """One of ``nodes`` that did not answer: ``why``; its other requirements are unknown."""

    def refuse(_: Target) -> Mapping[str, str]:
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
