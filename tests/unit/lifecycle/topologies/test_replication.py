"""A lab of the blueprint ``replication``: every verb, on a source and its replicas."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.blueprints import Link
from lab.errors import CommandFailed, NotReady
from lab.hypervisor import Capabilities
from lab.lifecycle.captures import template
from lab.lifecycle.labs import branch, power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.snapshots import snapshot
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, count, lab_request

REQUEST = lab_request("replication", "shop")


def test_replicas_ask_their_source_together(world: World) -> None:
    """Protects looks at many replicas: of more than two connections at once one may wait 1 s."""
    guard, at_once, most = threading.Lock(), Counter[int](), Counter[int]()

    with world.open() as ctx:

        def sql(account: Account, port: int, statements: Sequence[str], **how: Any) -> list[Rows]:
            with guard:
                at_once[port] += 1
                most[port] = max(most[port], at_once[port])
            time.sleep(0.05)
            try:
                return ctx.sql_all(account, port, statements, **how)
            finally:
                with guard:
                    at_once[port] -= 1

        slow = replace(ctx, sql_all=sql)
        made = up(slow, structs.replace(REQUEST, nodes=6))
        assert made.state == "ready"
        assert status(slow, "shop").lab.state == "ready"
        assert dict(most) == {node.sql_port: 1 for node in made.nodes}


@pytest.mark.parametrize("cold", [False, True])
def test_every_verb(world: World, cold: bool) -> None:
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        assert {node.state for node in made.nodes} == {"ready"}
        assert [node.role for node in made.nodes] == ["source", "replica", "replica"]
        assert made.endpoints == {"rw": ("n1",), "ro": ("n2", "n3")}
        assert made.dsn.endswith(f":{made.nodes[0].sql_port}/")
        wanted = [(one.node, one.name, one.met) for one in status(ctx, "shop").requirements]
        assert wanted == [
            ("n1", "SQL", True), ("n1", "writable", True),
            *((node, name, True) for node in ("n2", "n3")
              for name in ("SQL", "read-only", "replicating", "caught up")),
        ]  # fmt: skip
        assert made.links == (Link("n1", "n2"), Link("n1", "n3"))
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        found = status(ctx, "shop").lab
        assert all(node.position for node in found.nodes)
        assert [node.behind for node in found.nodes] == [None, 0, 0]
        query(ctx, "shop", "n1", "INSERT INTO t VALUES (1)")
        assert count(ctx, "n3") == 1
        with pytest.raises(CommandFailed, match="ERROR 1290 "):
            query(ctx, "shop", "n2", "INSERT INTO t VALUES (2)")
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert power.stop(ctx, "shop").state == "stopped"
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert count(ctx, "n2") == 2
        assert rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=10).state == "ready"
        assert (count(ctx), count(ctx, "n3")) == (1, 1)
        (made,) = branch.branch(ctx, BranchLab(lab="shop", name="try"), timeout=10)
        query(ctx, "try", None, "INSERT INTO t VALUES (7)")
        assert (count(ctx, "n2", "try"), count(ctx, "n2")) == (2, 1)
        down(ctx, "try")
        down(ctx, "shop")
        assert ctx.store.labs.all() == []


@pytest.mark.rare
def test_nodes_that_are_stopped(world: World) -> None:
    """Protects the meaning of ready: a replica without its source is not; it comes back."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        power.stop(ctx, "shop", node="n1")
        found, wanted = lab(ctx, "shop"), status(ctx, "shop").requirements
        assert (found.state, {n.name: n.state for n in found.nodes}) == (
            "degraded", {"n1": "stopped", "n2": "degraded", "n3": "degraded"})  # fmt: skip
        unmet = {(one.name, one.found) for one in wanted if one.met is False}
        assert ("replicating", "stopped") in unmet
        unknown = {(one.name, one.found) for one in wanted if one.met is None and one.found}
        assert unknown == {("caught up", "unknown: n1 does not answer")}
        power.stop(ctx, "shop", node="n2")
        # Without its source there is nothing that it could wait for.
        start_node(ctx, "shop", "n2", timeout=10)
        start_node(ctx, "shop", "n1", timeout=10)
        assert lab(ctx, "shop").state == "ready"
        power.stop(ctx, "shop", node="n3")
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert count(ctx, "n3") == 1


@pytest.mark.rare
def test_where_ram_is_not_captured(tmp_path: Path) -> None:
    """Protects hosts without RAM restore: the template is captured from a clean stop."""
    world = World(tmp_path, Capabilities("fake", "bhyve", why_cold="no RAM here"))
    with world.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.state, made.started) == ("ready", "cold")
        assert not template.templates(ctx)[0].warm


def test_a_replica_that_cannot_follow_is_not_handed_out(world: World) -> None:
    with world.open() as ctx:
        up(ctx, REQUEST)
        power.stop(ctx, "shop", node="n1")
        with pytest.raises(NotReady, match="n1 of shop does not run"):
            wait(ctx, "shop", timeout=0.5)


@pytest.mark.parametrize("said", ["0-1-1\nn9  source", "\x1b[2J", "<script>", "0-1-1," * 3000])
def test_what_a_node_says_of_its_position(world: World, said: str) -> None:
    """Protects terminals and pages from the root of a node: what is no position is left out."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        real = ctx.sql_all

        def lying(
            account: Account,
            port: int,
            statements: Sequence[str],
            *,
            timeout: float,
            whole: bool = False,
        ) -> list[Rows]:
            found = real(account, port, statements, timeout=timeout, whole=whole)
            return [
                replace(rows, rows=tuple((n, said if n == "position" else v) for n, v in rows.rows))
                if len(rows.columns) == 2
                else rows
                for rows in found
            ]

        nodes = status(replace(ctx, sql_all=lying), "shop").lab.nodes
        assert {(node.position, node.behind) for node in nodes} == {("", None)}


def test_a_long_position_is_compared_as_a_whole(world: World) -> None:
    """Protects from a replica that has caught up with the first part of what its source has."""
    whole = ",".join(f"{domain}-1-{domain}" for domain in range(100, 400))
    asked: list[str] = []
    with world.open() as ctx:
        source, *_ = up(ctx, REQUEST).nodes
        real = ctx.sql_all

        def many(account: Account, port: int, statements: Sequence[str], **how: Any) -> list[Rows]:
            found = real(account, port, statements, **how)
            if port != source.sql_port:
                asked.extend(one for one in statements if "GTID_WAIT" in one)
                return found
            return [
                replace(one, rows=tuple((n, whole if n == "position" else v) for n, v in one.rows))
                if len(one.columns) == 2
                else one
                for one in found
            ]

        nodes = status(replace(ctx, sql_all=many), "shop").lab.nodes
    assert nodes[0].position == whole
    assert asked
    assert all(f"('{whole}', " in one for one in asked)
