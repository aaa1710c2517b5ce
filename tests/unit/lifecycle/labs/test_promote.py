"""Another source: which node writes, what clones and rollbacks have, and kills at each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from lab.errors import CommandFailed, Conflict, InvalidSpec, NotReady
from lab.hypervisor import Capabilities
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import branch, power
from lab.lifecycle.labs.conditions import parse, unmet
from lab.lifecycle.labs.promote import promote
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.nodes.recovery import Pace
from lab.lifecycle.snapshots import snapshot
from lab.observe.ways import Rows
from lab.requests.labs import BranchLab, CreateLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, count, lab_request, roles

REQUEST = lab_request("replication", "shop")
FAST = Pace(interval=0.05, patience=0.2, boot=0.1)


def writes(ctx: Context, name: str = "shop") -> list[str]:
    """The nodes that take writes."""
    found = []
    for node in ("n1", "n2", "n3"):
        try:
            query(ctx, name, node, "CREATE TABLE IF NOT EXISTS written (a INT)")
            found.append(node)
        except (CommandFailed, NotReady):
            continue
    return found


def never(*_: object) -> Rows:
    raise AssertionError


def with_table(ctx: Context, asked: CreateLab = REQUEST) -> None:
    up(ctx, asked)
    query(ctx, "shop", None, "CREATE TABLE t (a INT)")


def test_a_switchover(world: World) -> None:
    """Protects who writes: in views, statements, waits, snapshots, branches, and after a start."""
    with world.open() as ctx:
        with_table(ctx)
        before = snapshot.take(ctx, TakeSnapshot(lab="shop", name="before")).label
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        made = promote(ctx, "shop", "n2", timeout=10)
        assert (made.state, roles(made)) == ("ready", ["replica", "source", "replica"])
        assert made.endpoints == {"rw": ("n2",), "ro": ("n1", "n3")}
        assert made.dsn.endswith(f":{made.nodes[1].sql_port}/")
        assert writes(ctx) == ["n2"]
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert (count(ctx), count(ctx, "n1"), count(ctx, "n3")) == (2, 2, 2)
        assert all(one.met for one in status(ctx, "shop").requirements)
        found = {node: unmet(parse(f"primary={node}"), made, never, 1) for node in ("n1", "n2")}
        assert found == {"n1": "the primary is n2", "n2": ""}
        assert roles(promote(ctx, "shop", "n2", timeout=10)) == ["replica", "source", "replica"]
        after = snapshot.take(ctx, TakeSnapshot(lab="shop", name="after")).label
        # All of it boots, and one node alone.
        power.stop(ctx, "shop")
        assert roles(start(ctx, "shop", timeout=10, pace=FAST)) == ["replica", "source", "replica"]
        power.stop(ctx, "shop", node="n2")
        assert lab(ctx, "shop").endpoints["rw"] == ("n2",), "nobody writes: the last that did"
        with pytest.raises(NotReady, match="no node of shop answers as its source"):
            query(ctx, "shop", None, "SELECT 1")
        back = start_node(ctx, "shop", "n2", timeout=10, pace=FAST)
        assert roles(back) == ["replica", "source", "replica"]
        # Captures have the roles of their moment.
        assert roles(rollback(ctx, RollBack(lab="shop", to=before), timeout=10)) == [
            "source",
            "replica",
            "replica",
        ]
        assert (writes(ctx), count(ctx)) == (["n1"], 0)
        assert roles(rollback(ctx, RollBack(lab="shop", to=after), timeout=10)) == [
            "replica",
            "source",
            "replica",
        ]
        assert roles(rollback(ctx, RollBack(lab="shop", to=after, cold=True), timeout=30)) == [
            "replica", "source", "replica"]  # fmt: skip
        assert (writes(ctx), count(ctx)) == (["n2"], 2)
        (made,) = branch.branch(ctx, BranchLab(lab="shop", name="try"), timeout=10)
        assert (roles(made), writes(ctx, "try")) == (["replica", "source", "replica"], ["n2"])
        (own,) = branch.branch(ctx, BranchLab(lab="shop", name="own", identity="new"), timeout=10)
        assert (roles(own), writes(ctx, "own")) == (["replica", "source", "replica"], ["n2"])
        assert roles(rollback(ctx, RollBack(lab="shop"), timeout=10)) == [
            "source",
            "replica",
            "replica",
        ]


def test_a_failover(world: World) -> None:
    """Protects a lab from its old source: it comes back read-only, and follows."""
    with world.open() as ctx:
        with_table(ctx)
        power.stop(ctx, "shop", node="n3")
        with pytest.raises(NotReady, match="n3 of shop does not run"):
            promote(ctx, "shop", "n3", timeout=10)
        power.stop(ctx, "shop", node="n1")
        with pytest.raises(Conflict, match="n1, the source, does not answer") as raised:
            promote(ctx, "shop", "n2", timeout=10)
        assert "--force" in raised.value.hint
        with pytest.raises(NotReady, match="n3 does not answer: it may have transactions"):
            promote(ctx, "shop", "n2", force=True, timeout=10)
        start_node(ctx, "shop", "n3", timeout=10)
        found = promote(ctx, "shop", "n2", force=True, timeout=10)
        assert (found.state, found.endpoints["rw"]) == ("degraded", ("n2",))
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        back = start_node(ctx, "shop", "n1", timeout=10, pace=FAST)
        assert (back.state, roles(back)) == ("ready", ["replica", "source", "replica"])
        follows = [note for note in world.notes if "n1: it follows n2" in note]
        assert len(follows) == 1, "one reason is one line, also of several orders"
        assert (writes(ctx), count(ctx, "n1")) == (["n2"], 1)


@pytest.mark.rare
def test_an_old_source_that_has_more(world: World) -> None:
    """Protects transactions: what only it has is named, and it does not write."""
    with world.open() as ctx:
        with_table(ctx)
        for node in ("n2", "n3"):
            assert count(ctx, node) == 0
            power.stop(ctx, "shop", node=node)
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        power.stop(ctx, "shop", node="n1")
        for node in ("n2", "n3"):
            start_node(ctx, "shop", node, timeout=10, pace=FAST)
        promote(ctx, "shop", "n2", force=True, timeout=10)
        with pytest.raises(NotReady, match="n1 has transactions that n2, the source") as raised:
            start_node(ctx, "shop", "n1", timeout=10, pace=FAST)
        assert "lab rollback" in raised.value.hint
        assert (writes(ctx), lab(ctx, "shop").state) == (["n2"], "degraded")
        # The remedy: it begins again, from what it was first.
        back = rollback(ctx, RollBack(lab="shop", node="n1"), timeout=30)
        assert (back.state, roles(back)) == ("ready", ["replica", "source", "replica"])


def test_a_source_does_not_come_back_alone(world: World) -> None:
    with world.open() as ctx:
        with_table(ctx)
        power.stop(ctx, "shop")
        with pytest.raises(NotReady, match="another node may have been promoted"):
            start_node(ctx, "shop", "n1", timeout=10, pace=FAST)
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert writes(ctx) == ["n1"]


@pytest.mark.rare
def test_where_ram_is_not_captured(tmp_path: Path) -> None:
    """Protects clones of disks: the one that writes is found."""
    world = World(tmp_path, Capabilities("fake", "bhyve", why_cold="no RAM here"))
    with world.open() as ctx:
        with_table(ctx)
        promote(ctx, "shop", "n3", timeout=10)
        (made,) = branch.branch(ctx, BranchLab(lab="shop", name="try"), timeout=30)
        assert (roles(made), writes(ctx, "try")) == (["replica", "replica", "source"], ["n3"])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (lab_request("galera", "shop"), "every node of this topology takes writes"),
        (
            lab_request("replication", "shop", topology="chain"),
            "in a chain each node follows",
        ),
        (
            lab_request("replication", "shop", delay=60.0, on=("n2",)),
            "n2 is delayed",
        ),
    ],
    ids=["galera", "chain", "delayed"],
)
def test_what_cannot_be_promoted(world: World, asked: CreateLab, why: str) -> None:
    with world.open() as ctx:
        up(ctx, asked)
        with pytest.raises(InvalidSpec, match=why):
            promote(ctx, "shop", "n2", timeout=10)
        assert lab(ctx, "shop").state == "ready"


def _switch(ctx: Context) -> None:
    promote(ctx, "shop", "n2", timeout=10)


def _fail_over(ctx: Context) -> None:
    promote(ctx, "shop", "n2", force=True, timeout=10)


@pytest.mark.rare  # that of a failover, below, runs always
@pytest.mark.parametrize("again", ["promote", "start"])
def test_kills_of_a_switchover(world: World, again: str) -> None:
    """Protects against two sources, and none: whatever was done is completed by what follows."""
    with world.open() as ctx:
        with_table(ctx)
    step = 0
    while world.killed(_switch, step):
        with world.open() as ctx:
            query(ctx, "shop", "n3", "SELECT COUNT(*) FROM t")
            assert len(writes(ctx)) <= 1, step
            if again == "promote":
                _switch(ctx)
                assert writes(ctx) == ["n2"]
            else:
                assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
                assert len(writes(ctx)) == 1, step
            assert lab(ctx, "shop").state == "ready"
            promote(ctx, "shop", "n1", timeout=10)
            assert writes(ctx) == ["n1"]
        step += 1
    assert step > 10


@pytest.mark.rare
def test_kills_of_a_failover(world: World) -> None:
    with world.open() as ctx:
        with_table(ctx)
    step = 0
    while True:
        with world.open() as ctx:
            power.stop(ctx, "shop", node="n1", force=True)
        more = world.killed(_fail_over, step)
        with world.open() as ctx:
            assert writes(ctx) in ([], ["n2"])
            start(ctx, "shop", timeout=10, pace=FAST)
            assert lab(ctx, "shop").state == "ready"
            assert len(writes(ctx)) == 1, step
            promote(ctx, "shop", "n1", timeout=10)
        if not more:
            break
        step += 3
    assert step > 10


def _lost(ctx: Context, asked: CreateLab) -> None:
    """n1, the source, has a row more than the others, and n2 was promoted without it."""
    up(ctx, asked)
    query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    others = [f"n{number}" for number in range(2, asked.node_count + 1)]
    for node in others:
        assert count(ctx, node) == 0
        power.stop(ctx, "shop", node=node)
    query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
    power.stop(ctx, "shop", node="n1")
    for node in others:
        start_node(ctx, "shop", node, timeout=10, pace=FAST)
    promote(ctx, "shop", "n2", force=True, timeout=10)
    with pytest.raises(NotReady, match="n1 has transactions that n2"):
        start_node(ctx, "shop", "n1", timeout=10, pace=FAST)


def test_one_that_came_back_knows_the_source(world: World) -> None:
    """Protects against a second source: an old one takes no writes because another is silent."""
    with world.open() as ctx:
        with_table(ctx)
        assert (count(ctx, "n2"), count(ctx, "n3")) == (0, 0)
        power.stop(ctx, "shop", node="n1", force=True)
        promote(ctx, "shop", "n2", force=True, timeout=10)
        start_node(ctx, "shop", "n1", timeout=10, pace=FAST)
        power.stop(ctx, "shop", node="n2", force=True)
        with pytest.raises(Conflict, match="n2, the source, does not answer"):
            promote(ctx, "shop", "n1", timeout=10)
        promote(ctx, "shop", "n1", force=True, timeout=10)
        start_node(ctx, "shop", "n2", timeout=10, pace=FAST)
        power.stop(ctx, "shop")
        assert roles(start(ctx, "shop", timeout=10, pace=FAST)) == ["source", "replica", "replica"]


def test_one_that_has_more_stops_no_other(world: World) -> None:
    """Protects the others: they follow a new source, and a start has one that takes writes."""
    with world.open() as ctx:
        _lost(ctx, structs.replace(REQUEST, nodes=4))
        with pytest.raises(NotReady, match="n1 has transactions that n3"):
            promote(ctx, "shop", "n3", timeout=10)
        view = lab(ctx, "shop")
        assert view.endpoints["rw"] == ("n3",)
        assert [node.name for node in view.nodes if node.state == "ready"] == ["n2", "n3", "n4"]
        power.stop(ctx, "shop")
        with pytest.raises(NotReady, match="n1 has transactions that n3"):
            start(ctx, "shop", timeout=10, pace=FAST)
        assert writes(ctx) == ["n3"]


def test_semi_sync_without_the_old_source(world: World) -> None:
    """Protects scripts: a failover that succeeded does not wait for a node that is off."""
    with world.open() as ctx:
        with_table(ctx, lab_request("replication", "shop", semi_sync=True))
        assert (count(ctx, "n2"), count(ctx, "n3")) == (0, 0)
        power.stop(ctx, "shop", node="n1", force=True)
        made = promote(ctx, "shop", "n2", force=True, timeout=10)
        assert made.endpoints["rw"] == ("n2",)
