"""What `lab wait --for` waits for: conditions of a lab, as it is seen, and of its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from lab.blueprints import Blueprint, with_options
from lab.errors import CommandFailed, InvalidSpec, LabError, NotFound, NotReady
from lab.names import parse_node
from lab.observe.ways import Rows
from lab.options import NONE, of
from lab.suggest import did_you_mean
from lab.values import dataclass
from lab.views.labs import LabView, NodeView
from lab.wait import Deadline, attempts

Kind = Literal["ready", "online", "synced", "caught-up", "primary", "sql"]

WORDS = ("ready", "online", "synced", "caught-up", "primary=NODE")
_OF_NODES: tuple[Kind, ...] = ("ready", "online", "synced", "caught-up")
_SYNCED = frozenset({"ready", "degraded"})
_STATES = {
    "ready": frozenset({"ready"}),
    "online": _SYNCED | {"not-synced", "not-primary"},
    "synced": _SYNCED,
    "caught-up": _SYNCED,
}
"""The states of nodes in which a condition holds."""
_SQL = re.compile(r"\s*(SELECT|WITH|VALUES|SHOW|\()\b", re.IGNORECASE)
_NOT_YET = frozenset({1047, 1049, 1146, 1205, 1213, 1290, 2003, 2006, 2013})
"""Errors of servers that pass: no cluster, no such database or table yet, locked, read-only, and
connections that break."""
_ZERO = re.compile(r"[+-]?0+(\.0*)?|[+-]?\.0+")
_LEAST = 0.1
"""Seconds that the last statement has."""
_SHOWN = 100
"""Characters of an answer that are shown."""

Ask = Callable[[str, float], Rows]
"""Runs a statement within so many seconds; raises NotReady and CommandFailed."""


@dataclass(frozen=True)
class WaitCondition:
    """What is waited for."""

    kind: Kind
    text: str
    """As it was given."""
    what: str = ""
    """A node's name, or a statement."""


def parse(text: str) -> WaitCondition:
    """A condition as users write it; raises InvalidSpec."""
    word, separator, node = text.partition("=")
    for kind in _OF_NODES:
        if text == kind:
            return WaitCondition(kind, text)
    if separator and word == "primary":
        return WaitCondition("primary", text, parse_node(node))
    if _SQL.match(text):
        return WaitCondition("sql", text, text)
    known = [one.partition("=")[0] for one in WORDS]
    raise InvalidSpec(
        f"{text[:_SHOWN]!r} is not a condition",
        hint=did_you_mean(
            text, known, otherwise=f"conditions are {', '.join(WORDS)}, or a SELECT statement"
        ),
    )


def until(
    conditions: Sequence[WaitCondition],
    look: Callable[[], LabView],
    ask: Ask,
    timeout: float,
    *,
    node: str | None = None,
    first: float = 0.1,
) -> LabView:
    """The lab once all ``conditions`` hold at one look, of which there is one a second at most.

    ``timeout`` in seconds. ``node``: the one that ``ask`` asks; None: the lab's entry. Raises
    NotFound for a node that does not exist, InvalidSpec for what can never be, CommandFailed for a
    statement that the server will always refuse, and NotReady with what was found last.
    """
    found: list[str] = []
    deadline = Deadline.after(timeout)
    for _ in attempts(deadline, first=first, most=max(first, 1.0)):
        view, found = look(), []
        for one in conditions:
            if why := unmet(one, view, ask, max(deadline.left, _LEAST), node):
                found.append(f"{one.text}: {why}")
        if not found:
            return view
    raise NotReady(
        f"timed out after {timeout:.3g} s", details=found, hint="`--timeout` waits longer"
    )


def unmet(
    condition: WaitCondition, view: LabView, ask: Ask, seconds: float, node: str | None = None
) -> str:
    """Why the condition does not hold; empty if it does. Raises as ``until``.

    ``seconds``: how long a statement may take; ``node``: which node it is for.
    """
    if condition.kind == "primary":
        return _not_primary(condition.what, view)
    if condition.kind == "sql":
        # Outside of a primary component some statements are answered, such as SELECT 1.
        asked = [one for one in view.nodes if one.name == node] if node else [view.entry]
        if alone := [one.name for one in asked if one and one.state == "not-primary"]:
            return f"{alone[0]} is not-primary"
        return _not_true(condition.what, ask, seconds)
    allowed, online = _STATES[condition.kind], condition.kind == "online"
    missing = [
        f"{node.name} is {node.state}"
        for node in view.nodes
        if node.state not in allowed and not (online and node.answered)
    ]
    return ", ".join(missing) if view.nodes else f"the lab is {view.state}"


def _not_primary(name: str, view: LabView) -> str:
    known = {node.name: node for node in view.nodes}
    if view.nodes and name not in known:
        raise NotFound(
            f"the lab {view.name} has no node {name}", hint=f"its nodes: {', '.join(known)}"
        )
    if view.nodes and not known[name].has_server:
        raise InvalidSpec(
            f"{name} never becomes a primary: it is a node for the {known[name].role}"
        )
    plan = _plan(view)
    # Behind a proxy, "rw" is the proxy.
    writers = view.endpoints.get("writers", view.endpoints.get("rw", ()))
    if name not in writers:
        if view.nodes and not plan.elects:
            raise InvalidSpec(
                f"{name} never becomes a primary: nodes of a {view.blueprint} have fixed roles",
                hint=f"writes go to {', '.join(writers)}",
            )
        return f"the primary is {', '.join(writers)}" if writers else "there is no primary"
    state, role = known[name].state, known[name].role
    if state not in _SYNCED:
        return f"{name} is {state}"
    return f"{name} is a {role}" if plan.elects and role and role not in plan.writers else ""


def why_no_writes(view: LabView) -> str:
    """Why the lab's default address takes no writes, as far as was seen; empty if it may."""
    entry = view.entry
    if entry is None or not view.user:
        return ""
    writers = view.endpoints.get("writers", view.endpoints.get("rw", ()))
    nodes = [node for node in view.nodes if node.name in writers]
    if entry.is_proxy and not entry.is_silent:
        why = [_no_writer(node, view) for node in nodes]
        return f"no node of {view.name} takes writes: {'; '.join(why)}" if all(why) else ""
    why_not = _no_writer(entry, view)
    return why_not and f"{view.name} takes no writes at this address: {why_not}"


def _no_writer(node: NodeView, view: LabView) -> str:
    if node.is_silent or node.state == "not-primary":
        return f"{node.name}, {node.shown_role}, is {node.state}"
    try:
        plan = _plan(view)
    except InvalidSpec:  # of another version of lab
        return ""
    if plan.elects and not node.is_proxy and node.role not in plan.writers:
        return f"{node.name} is a {node.role}"
    return ""


def _plan(view: LabView) -> Blueprint:
    """The blueprint with the option that says whether roles are fixed."""
    topology = view.options.get("topology")
    options = of({"topology": topology}) if topology else NONE
    return with_options(view.blueprint, options, view.requested_nodes)


def _not_true(statement: str, ask: Ask, seconds: float) -> str:
    try:
        rows = ask(statement, seconds).rows
    except CommandFailed as error:
        if error.status not in _NOT_YET:
            raise
        return _cut(error.stderr or str(error))
    except NotReady as error:
        return _cut(_reason(error))
    if len(rows) != 1 or len(rows[0]) != 1:
        return f"{len(rows)} rows; one row of one column is required"
    (value,) = rows[0]
    return f"it is {_cut(str(value))}" if _is_false(value) else ""


def _is_false(value: object) -> bool:
    """Whether a value is NULL, empty or a zero, as which a column's type it may have come."""
    text = value.strip(b"\0").decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(text, str):
        return text.strip() == "" or _ZERO.fullmatch(text.strip()) is not None
    return not text  # None, False, and zeros of numbers, decimals and times


def _reason(error: LabError) -> str:
    return error.details[-1] if error.details else error.what


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
