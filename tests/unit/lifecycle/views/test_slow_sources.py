"""Nodes that do not answer: what others are asked about them is unknown, and costs no more time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.errors import NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.conditions import parse, unmet, why_no_writes
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, nodes_of, status
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.views.labs import LabStatus, LabView
from tests.support.lifecycle_world import World, lab_request

LIMIT = 1.5
BUSY = 2.5
"""Seconds more that a look may take on a busy machine."""
FOLLOWED = {"dr": ["n1", "n3"], "chain": ["n1", "n2"]}
"""Nodes on whose answers others depend, where that is not the first alone."""
KINDS = {
    "star": lab_request("replication", "shop"),
    "chain": lab_request("replication", "shop", topology="chain"),
    "ring": lab_request("replication", "shop", topology="ring"),
    "fan-in": lab_request("replication", "shop", topology="fan-in"),
    "late": lab_request("replication", "shop", delay=60.0, on=("n3",)),
    "proxied": lab_request("replication", "shop", proxy="haproxy"),
    "group": lab_request("group", "shop"),
    "dr": lab_request("galera-dr", "shop", nodes=2, replicas=2),
}


class Slow:
    """Servers at ``ports`` that take ``seconds`` for each answer; None: they never answer."""

    def __init__(self, ctx: Context, ports: Sequence[int], seconds: float | None) -> None:
        self._sql_all, self._ports, self._seconds = ctx.sql_all, ports, seconds
        self.asked = 0
        self._guard = threading.Lock()

    def __call__(
        self, account: Account, port: int, statements: Sequence[str], *, timeout: float, **how: Any
    ) -> list[Rows]:
        """What the server says, if that is within ``timeout``."""
        if port in self._ports:
            with self._guard:
                self.asked += 1
            time.sleep(min(timeout, self._seconds or timeout))
            if self._seconds is None or self._seconds > timeout:
                raise NotReady("no SQL", begun=self._seconds is not None)
        return self._sql_all(account, port, statements, timeout=timeout, **how)


def made(ctx: Context, kind: str) -> dict[str, int]:
    """A lab; the ports of its servers, by their nodes."""
    up(ctx, KINDS[kind])
    return {node.name: node.sql_port for node in nodes_of(ctx, "shop") if node.has_server}


def seen(
    ctx: Context, ports: Sequence[int], seconds: float | None
) -> tuple[LabStatus, float, Slow]:
    """The lab as it is seen while some servers are slow, and how long that took."""
    slow = Slow(ctx, ports, seconds)
    settings = replace(ctx.settings, answer_timeout=LIMIT)
    began = time.monotonic()
    found = status(replace(ctx, settings=settings, sql_all=slow), "shop")
    return found, time.monotonic() - began, slow


def states(view: LabView) -> dict[str, str]:
    return {node.name: node.state for node in view.nodes}


@pytest.mark.rare
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_silent_node_would_have_said_is_unknown(tmp_path: Path, kind: str) -> None:
    """Protects from a fault that is none: replicas of a source that is only not heard."""
    with World(tmp_path).open() as ctx:
        ports = made(ctx, kind)
        dependent = 0
        for name in FOLLOWED.get(kind, ["n1"]):
            found, took, _ = seen(ctx, [ports[name]], None)
            assert took < LIMIT + BUSY
            assert found.lab.state == "degraded"
            shown = states(found.lab)
            assert shown.pop(name) == "unreachable"
            assert set(shown.values()) <= {"ready", "unknown"}, (name, shown)
            for node, state in shown.items():
                own = [one for one in found.requirements if one.node == node]
                assert own[0].met, "it answers"
                unknown = [one for one in own if not one.met]
                assert all(one.met is None for one in unknown), unknown
                assert bool(unknown) == (state == "unknown")
                if unknown:
                    assert unknown[0].found.endswith("does not answer")
                    dependent += 1
            _check_what_answers(found.lab)
        assert dependent


def _check_what_answers(view: LabView) -> None:
    """A node that answers takes writes, and is online, whatever is not known of it besides."""
    for node in view.nodes:
        assert node.answered == (node.state != "unreachable")
        text = unmet(parse("online"), view, lambda *_: Rows((), (), 0), 1.0)
        assert f"{node.name} is unknown" not in text
    for word in ("synced", "caught-up", "ready"):
        text = unmet(parse(word), view, lambda *_: Rows((), (), 0), 1.0)
        assert all(f"{n.name} is {n.state}" in text for n in view.nodes if n.state == "unknown")
    entry = view.entry
    assert entry is not None
    if entry.answered and not entry.is_proxy:
        assert not why_no_writes(view)


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["star", "chain", "ring", "group", "dr"])
def test_a_source_that_answers_late_is_waited_for(tmp_path: Path, kind: str) -> None:
    """Protects looks on busy hosts: a lab is ready that was found ready before."""
    with World(tmp_path).open() as ctx:
        found, took, slow = seen(ctx, [made(ctx, kind)["n1"]], 1.1 * LIMIT)
        assert found.lab.state == "ready", states(found.lab)
        assert all(one.met for one in found.requirements)
        assert took < 4 * LIMIT + BUSY
        assert slow.asked <= 4, "each question is more work for it"


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["star", "fan-in", "dr", "ring"])
def test_silent_nodes_cost_no_more_than_one(tmp_path: Path, kind: str) -> None:
    """Protects the limit: what answers is seen, however many others do not."""
    with World(tmp_path).open() as ctx:
        asked = KINDS[kind]
        up(ctx, asked if kind == "dr" else structs.replace(asked, nodes=6))
        ports = [node.sql_port for node in nodes_of(ctx, "shop")]
        found, _, _ = seen(ctx, ports[:-1], None)
        *others, last = states(found.lab).values()
        assert (set(others), last) == ({"unreachable"}, "unknown")


def test_a_source_that_is_halted_is_not_asked(tmp_path: Path) -> None:
    """Protects replicas from a program of the host at the port of a node that does not run."""
    with World(tmp_path).open() as ctx:
        ports = made(ctx, "star")
        guests = {node.name: node.guest for node in nodes_of(ctx, "shop")}
        ctx.hypervisor.stop(guests["n1"], force=True)
        found, took, slow = seen(ctx, [ports["n1"]], None)
        assert (slow.asked, took < BUSY) == (0, True)
        assert states(found.lab) == {"n1": "stopped", "n2": "degraded", "n3": "degraded"}
        unknown = [one.found for one in found.requirements if one.name == "caught up"]
        assert unknown == ["unknown: n1 does not answer"] * 2
        assert lab(ctx, "shop").state == "degraded"
