"""What `lab wait --for` waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from lab.errors import CommandFailed, InvalidSpec, NotFound, NotReady
from lab.lifecycle.labs.conditions import parse, unmet, until
from lab.observe.ways import Rows
from lab.views.labs import LabView, NodeView


def node(name: str, state: str = "ready") -> NodeView:
    services = {"sql": 3306, "ssh": 22}
    return NodeView(name, "", state, "127.0.0.1", 1, 2, f"lab-{name}", services=services)


def view(*states: str, blueprint: str = "group", rw: tuple[str, ...] = ("n1",)) -> LabView:
    nodes = tuple(node(f"n{number}", state) for number, state in enumerate(states, 1))
    return LabView("shop", "mysql", "9", "ready", nodes, "lab", blueprint=blueprint,
                   endpoints={"rw": rw})  # fmt: skip


def never(_: str, __: float) -> Rows:
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "states", "found"),
    [
        ("ready", ["ready", "ready"], ""),
        ("ready", ["ready", "degraded"], "n2 is degraded"),
        ("online", ["ready", "not-synced", "degraded", "not-primary"], ""),
        ("online", ["ready", "unreachable", "stopped"], "n2 is unreachable, n3 is stopped"),
        ("synced", ["ready", "degraded"], ""),
        ("caught-up", ["ready", "not-synced"], "n2 is not-synced"),
        ("synced", ["ready", "not-primary"], "n2 is not-primary"),
        ("synced", [], "the lab is ready"),
        ("primary=n1", ["degraded", "stopped"], ""),
        ("primary=1", ["unreachable", "ready"], "n1 is unreachable"),
        ("primary=n2", ["ready", "ready"], "the primary is n1"),
    ],
)
def test_conditions_of_nodes(text: str, states: list[str], found: str) -> None:
    assert unmet(parse(text), view(*states), never, 9.0) == found


def test_a_statement_outside_of_a_primary_component() -> None:
    """Protects scripts: such a node answers SELECT 1, and no statement that reads a table."""
    one = parse("SELECT 1")
    assert unmet(one, view("not-primary", "stopped"), never, 9.0) == "n1 is not-primary"
    assert unmet(one, view("ready", "not-primary"), never, 9.0, "n2") == "n2 is not-primary"

    def ask(_: str, __: float) -> Rows:
        return Rows(("1",), ((1,),), 1)

    assert unmet(one, view("ready", "not-primary"), ask, 9.0) == ""


def test_what_can_never_be_is_refused() -> None:
    """Protects from waiting in vain: for a node that is not there, or where roles are fixed."""
    with pytest.raises(NotFound, match="no node n4"):
        unmet(parse("primary=n4"), view("ready"), never, 9.0)
    single = view("ready", "ready", blueprint="galera", rw=("n1", "n2"))
    assert unmet(parse("primary=n2"), single, never, 9.0) == ""
    with pytest.raises(InvalidSpec, match="n2 never becomes a primary"):
        unmet(parse("primary=n2"), replace(single, endpoints={"rw": ("n1",)}), never, 9.0)
    star = view("ready", "ready", blueprint="replication")
    assert unmet(parse("primary=n2"), star, never, 9.0) == "the primary is n1"
    with pytest.raises(InvalidSpec, match="fixed roles"):
        unmet(parse("primary=n2"), replace(star, options={"topology": "chain"}), never, 9.0)
    front = replace(star.nodes[1], role="proxy", services={"sql": 3306, "ro": 3307, "ssh": 22})
    behind = replace(star, nodes=(star.nodes[0], front))
    with pytest.raises(InvalidSpec, match="n2 never becomes a primary: it is a node for the proxy"):
        unmet(parse("primary=n2"), behind, never, 9.0)


@pytest.mark.parametrize("text", ["syncde", "primary", "primary=x", "DROP TABLE t", "", "=n1"])
def test_what_is_no_parse(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse(text)


def test_corrections() -> None:
    with pytest.raises(InvalidSpec) as raised:
        parse("catched-up")
    assert "caught-up" in raised.value.hint


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        ([(1,)], True), ([("yes",)], True), ([(0,)], False), ([("",)], False), ([(None,)], False),
        ([], False), ([(1,), (1,)], False), ([(1, 1)], False), ([("0",)], False),
        ([(Decimal("0.00"),)], False), ([(Decimal("0.01"),)], True), ([(-0.0,)], False),
        ([(b"\0",)], False), ([(b"\1",)], True), ([(b"",)], False), ([(b"0",)], False),
        ([(timedelta(0),)], False), ([("0.00",)], False), ([("0.50",)], True), ([(b"\xff",)], True),
        ([(date(2026, 1, 1),)], True), ([("-0",)], False), ([(".",)], True),
    ],
)  # fmt: skip
def test_statements(rows: list[tuple[Any, ...]], met: bool) -> None:
    asked: list[str] = []

    def ask(statement: str, seconds: float) -> Rows:
        assert 0 < seconds <= 9
        asked.append(statement)
        return Rows(("a",), tuple(rows), len(rows))

    found = unmet(parse("SELECT a FROM t"), view("ready"), ask, 9.0)
    assert (not found, asked) == (met, ["SELECT a FROM t"])


def failing(error: Exception) -> Callable[[str, float], Rows]:
    def ask(_: str, __: float) -> Rows:
        raise error

    return ask


@pytest.mark.parametrize("code", [1049, 1146, 1290, 1047])
def test_what_may_still_come(code: int) -> None:
    error = CommandFailed(["SQL"], code, stderr="Table 'a.t' doesn't exist" + "x" * 9999)
    found = unmet(parse("SELECT 1 FROM t"), view("ready"), failing(error), 9.0)
    assert found.startswith("Table 'a.t' doesn't exist")
    assert len(found) < 200, "a guest says it"


def test_what_the_server_will_always_refuse() -> None:
    error = CommandFailed(["SQL"], 1064, stderr="You have an error in your SQL syntax")
    with pytest.raises(CommandFailed):
        unmet(parse("SELECT FROM"), view("ready"), failing(error), 9.0)
    silent = failing(NotReady("no SQL", details=["Connection refused"]))
    assert unmet(parse("SELECT 1"), view("ready"), silent, 9.0) == "Connection refused"


def test_all_must_hold_at_one_look() -> None:
    looks = [
        view("ready", "not-synced", rw=("n2",)),
        view("ready", "ready", rw=("n1",)),
        view("ready", "degraded", rw=("n2",)),
    ]
    left = list(looks)
    wanted = [parse("primary=n2"), parse("synced")]
    assert until(wanted, lambda: left.pop(0), never, 9, first=0.01) is looks[2]
    with pytest.raises(NotReady, match="timed out") as raised:
        until(wanted, lambda: looks[1], never, 0.05, first=0.01)
    assert raised.value.details == ("primary=n2: the primary is n1",)
