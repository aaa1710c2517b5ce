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
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

from lab.blueprints import Blueprint, gtid
from lab.errors import LabError, NotReady
from lab.hypervisor import Guest
from lab.names import GuestName
from lab.observe.account import Account
from lab.observe.ask import THROUGH_PORT, WORST, Ask, ask_node, through_port
from lab.observe.states import LabState, NodeState, Requirement
from lab.observe.target import Target, size_of
from lab.observe.ways import Ways
from lab.values import dataclass
from lab.wait import Deadline

_THREADS = 256
_SLOW_TIMES = 4.0
_GRACE = 0.05
"""Seconds that a question whose time is over takes to end."""
_STEP = 0.5
"""Seconds between two looks whether only slow servers are left."""
_UNANSWERED = 8
"""Questions to one node that may wait for an answer at the same time, of the observer and of jobs
that wait for it: whoever is root in a node decides whether each takes all of its time."""
_SERVING = ("ready", "degraded", "not-synced", "unknown")
"""States of nodes that are in a primary component, or may be."""


@dataclass(frozen=True)
class Observed:
    """A node at the time of the query: its state, and the requirements it was derived from."""

    state: NodeState
    requirements: tuple[Requirement, ...] = ()
    role: str = ""
    """The role that it has; empty if it was not asked."""
    position: str | None = None
    """See ``Asked``."""
    why: str = ""
    """See ``Guest``."""
    slow: bool = False
    """Whether its server began to answer, and was not done in time."""
    sources: tuple[str, ...] | None = None
    """See ``Asked``."""
    answered: bool = False
    """Whether its server answered, whatever its state is."""


@dataclass(frozen=True)
class Observation:
    """What was seen of a lab."""

    lab: str
    at: float
    """When it was seen, in epoch seconds."""
    nodes: Mapping[str, Observed]
    """Its nodes, by name."""
    working: bool = False
    """Whether a command was working on it."""

    @property
    def slow(self) -> bool:
        """Whether a server of it is slow: to be asked again soon is more work for it."""
        return any(node.slow for node in self.nodes.values())

    def behind(self, node: str, sources: Sequence[str]) -> int | None:
        """Transactions of ``sources`` that a node has not executed; None if that is not known."""
        seen = [self.nodes.get(name) for name in (node, *sources)]
        positions = [one.position for one in seen if one is not None and one.position is not None]
        if not sources or len(positions) < len(seen):
            return None
        missing = [gtid.behind(positions[0], position) for position in positions[1:]]
        known = [number for number in missing if number is not None]
        return sum(known) if len(known) == len(missing) else None


@dataclass(frozen=True)
class Subject:
    """A lab that is looked at."""

    lab: str
    nodes: Sequence[Target]
    """Its nodes, which are asked by ``plan``, with ``account``."""
    plan: Blueprint | None
    account: Account | None
    why: str = ""
    """Why they cannot be asked where ``plan`` or ``account`` is None."""
    asked: bool = True
    """Whether the nodes are asked; else the observation is of their guests alone."""
    working: bool = False
    """See ``Observation``."""


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

    Returns after ``within`` seconds; a node whose server began to answer by then has four times as
    long, and so have those that depend on its answer. A node whose guest does not run is not
    queried, one whose guest is ``unknown`` is. Raises nothing: a failure is the state of its node.
    """
    at, first, last = time.time(), Deadline.after(within), Deadline.after(within * _SLOW_TIMES)
    found: dict[Key, Observed] = {}
    questions: dict[Key, _Question] = {}
    for one in subjects:
        count, ask = size_of(one.nodes), None
        others: dict[str, _Question] = {}
        down = [node.name for node in one.nodes if not _may_run(guests.get(node.guest))]
        for node in one.nodes:
            key = (one.lab, node.name)
            guest = guests.get(node.guest)
            state: NodeState = guest.state if guest else "stopped"
            why = guest.why if guest else ""
            if not one.asked:
                found[key] = Observed(state, why=why)
            elif node.name in down:
                silent = _silent(count, node, one.plan, f"the guest is {state}", state)
                found[key] = replace(silent, why=why)
            elif one.plan is None or one.account is None:
                found[key] = _silent(count, node, one.plan, one.why, _mute(state))
            else:
                why = f"no answer within {within:g} s"
                found[key] = _silent(count, node, one.plan, why, _mute(state))
                ask = ask or through_port(
                    ways, one.plan, one.account, one.nodes,
                    patience=within, deadline=last, down=down, once=True,
                )  # fmt: skip
                asked = _Question(count, node, one.plan, ask, first, last, _mute(state), others)
                questions[key] = others[node.name] = asked
    found |= _answers(questions, first, last)
    return {
        one.lab: Observation(
            one.lab, at, {node.name: found[one.lab, node.name] for node in one.nodes}, one.working
        )
        for one in subjects
    }


def lab_state(
    recorded: LabState,
    nodes: Collection[str],
    *,
    working: bool,
    pooled: bool,
    asleep: bool = False,
) -> LabState:
    """The state of a lab, from the one that is ``recorded`` and the observed ones of its nodes.

    ``working``: a command is working on it; ``pooled``: it is in a warm pool; ``asleep``: it was
    put to sleep, and nobody woke it. See ``LAB_STATES`` for the meanings.
    """
    present = set(nodes)
    if recorded not in ("ready", "stopped"):
        return recorded
    if "unknown" in present and present <= {"unknown", "ready"}:
        return "unknown"
    if present <= {"stopped"}:
        return "stopped"
    if recorded == "stopped" and working:
        return "starting"
    if recorded == "ready" and (well := _well(present, pooled=pooled, asleep=asleep)) is not None:
        return well
    worst: tuple[LabState, ...] = ("not-primary", "unreachable")
    lost = [state for state in worst if state in present] if present.isdisjoint(_SERVING) else []
    return lost[0] if lost else "degraded"


def _well(nodes: Set[str], *, pooled: bool, asleep: bool) -> LabState | None:
    """The state of a lab that is as it is to be, by those of its nodes; None if it is not."""
    if asleep and nodes - {"stopped"} == {"paused"}:
        return "asleep"
    if pooled:
        return "pooled" if nodes in ({"ready"}, {"paused"}) else None
    return "ready" if nodes == {"ready"} else None


def node_state(requirements: Sequence[tuple[Requirement, NodeState]]) -> NodeState:
    """The state that follows from a node's requirements, each with the state while it is unmet."""
    unmet = {state for found, state in requirements if found.met is False}
    known = all(found.met is not None for found, _ in requirements)
    return next((state for state in WORST if state in unmet), "ready" if known else "unknown")


class _Question:
    """The question to one of ``nodes`` of a lab; ``others``: those to all of them, by name.

    It has time until ``first``. ``slow``: it began to answer, and was not done; it is then asked
    again, with more time, until ``last``. ``mute``: its state without an answer. ``over``: it has
    answered, or will not. ``waits``: for a slow one that it depends on.
    """

    def __init__(
        self,
        nodes: int,
        node: Target,
        plan: Blueprint,
        ask: Ask,
        first: Deadline,
        last: Deadline,
        mute: NodeState,
        others: Mapping[str, _Question],
    ) -> None:
        self._nodes, self._node, self._plan, self._put = nodes, node, plan, ask
        self._first, self._last, self._mute, self._others = first, last, mute, others
        self._lacking: tuple[str, ...] = ()
        self.over = threading.Event()
        self.slow = self.waits = self.answered = self._late = False

    def answers(self) -> Iterator[Observed]:
        """The answer, or its absence as the node's state; a better one if there will be one.

        What it says of nodes that it depends on was not known if these answered later than it did.
        """
        try:
            found = self._answer()
            self.answered = found.answered
            yield found
        finally:
            self.over.set()
        if self._lacking and self._one_answers(self._lacking):
            found = self._answer()
            if found.answered:
                yield found

    def _one_answers(self, names: Sequence[str]) -> bool:
        """Wait until nodes have answered, or will not; whether one has."""
        answered = [self._others[name] for name in names if name in self._others]
        for one in answered:
            one.over.wait(self._first.left + _GRACE)
            if one.slow:
                self.waits = True
                one.over.wait(self._last.left)
        return any(one.answered for one in answered)

    def _answer(self) -> Observed:
        try:
            while True:
                self._late = False
                asked = ask_node(self._node, self._nodes, self._plan, self._ask, THROUGH_PORT)
                if not self._late or self._last.passed:
                    break
        except (LabError, OSError) as error:
            return _silent(self._nodes, self._node, self._plan, str(error), self._mute)
        found = tuple(found for found, _ in asked.requirements)
        state, self._lacking = node_state(asked.requirements), asked.lacking
        state = self._mute if state == "unreachable" else state
        return Observed(
            state, found, asked.role, asked.position,
            slow=self._late, sources=asked.sources, answered=bool(asked.role),
        )  # fmt: skip

    def _ask(self, node: Target) -> Mapping[str, str]:
        try:
            return self._put(node)
        except NotReady as error:
            self._late = error.begun
            self.slow = self.slow or error.begun
            raise


def _may_run(guest: Guest | None) -> bool:
    return guest is not None and guest.state in ("running", "unknown")


def _mute(guest: NodeState) -> NodeState:
    """The state of a node that does not answer: ``unreachable`` only where its guest runs."""
    return "unknown" if guest == "unknown" else "unreachable"


def _silent(
    nodes: int,
    node: Target,
    plan: Blueprint | None,
    why: str,
    state: NodeState,
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
    questions: Mapping[Key, _Question], first: Deadline, last: Deadline
) -> dict[Key, Observed]:
    """The answers that came before ``first``, and those of slow servers until ``last``.

    The threads are daemons: one whose node does not answer may outlive us by a moment, and keeps
    neither the command nor the service from ending. A node to which ``_UNANSWERED``
    questions wait for an answer is not asked again.
    """
    if not questions:
        return {}
    done = _begun(questions, first)
    found: dict[Key, Observed] = {}
    left, deadline = dict(questions), first
    while left:
        try:
            key, answer = done.get(timeout=deadline.left + _GRACE)
        except queue.Empty:
            slow = any(one.slow or one.waits for one in left.values())
            if not slow or last.passed:
                break
            deadline = Deadline.after(min(_STEP, last.left))
            continue
        if answer is None:
            del left[key]
        else:
            found[key] = answer
    return found


def _begun(
    questions: Mapping[Key, _Question], first: Deadline
) -> queue.SimpleQueue[tuple[Key, Observed | None]]:
    """Where the answers of questions come that threads put until ``first``; None after the last."""
    todo: queue.SimpleQueue[Key] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Key, Observed | None]] = queue.SimpleQueue()
    for key in questions:
        todo.put(key)

    def work() -> None:
        while not first.passed:
            try:
                key = todo.get_nowait()
            except queue.Empty:
                return
            with _counted(key) as allowed:
                if allowed:
                    for answer in questions[key].answers():
                        done.put((key, answer))
                    done.put((key, None))

    for number in range(min(_THREADS, len(questions))):
        threading.Thread(target=work, name=f"observe-{number}", daemon=True).start()
    # Loaded once, not by all threads at the same time, while what they ask begins to answer.
    from lab.observe import sql  # noqa: F401

    return done


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
