"""A lab of the blueprint ``group``: every verb, on members that elect their primary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lab.errors import CommandFailed, NotReady
from lab.hypervisor import Capabilities
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import branch, power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.nodes.recovery import Pace
from lab.lifecycle.snapshots import snapshot
from lab.observe.ways import Rows
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.asking import asking
from tests.support.lifecycle_world import World, count, lab_request, roles

REQUEST = lab_request("group", "shop")
FAST = Pace(interval=0.05, patience=0.2, boot=0.1)


@pytest.mark.parametrize("cold", [False, True])
def test_every_verb(world: World, cold: bool) -> None:
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        assert (made.engine, {node.state for node in made.nodes}) == ("mysql", {"ready"})
        assert roles(made) == ["primary", "secondary", "secondary"]
        assert made.endpoints == {"rw": ("n1",), "ro": ("n2", "n3")}
        wanted = {(one.name, one.met) for one in status(ctx, "shop").requirements}
        assert wanted == {
            (name, True)
            for name in (
                "SQL", "ONLINE", "3 ONLINE", "one primary", "view", "caught up",
                "read-only by role",
            )
        }  # fmt: skip
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        query(ctx, "shop", "n1", "INSERT INTO t VALUES (1)")
        assert count(ctx, "n3") == 1
        with pytest.raises(CommandFailed, match="ERROR 1290 "):
            query(ctx, "shop", "n2", "INSERT INTO t VALUES (2)")
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert power.stop(ctx, "shop").state == "stopped"
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert any("it has the most transactions" in note for note in world.notes)
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert count(ctx, "n2") == 2
        assert rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=10).state == "ready"
        assert (count(ctx), count(ctx, "n3")) == (1, 1)
        (made,) = branch.branch(ctx, BranchLab(lab="shop", name="try"), timeout=10)
        query(ctx, "try", None, "INSERT INTO t VALUES (7)")
        assert (count(ctx, "n2", "try"), count(ctx, "n2")) == (2, 1)
        (own,) = branch.branch(ctx, BranchLab(lab="shop", name="own", identity="new"), timeout=10)
        assert own.state == "ready"
        for name in ("own", "try", "shop"):
            down(ctx, name)
        assert ctx.store.labs.all() == []


def test_the_primary_stops(world: World) -> None:
    """Protects who writes: the default is the node that takes writes now."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        power.stop(ctx, "shop", node="n1")
        found = lab(ctx, "shop")
        assert (found.state, roles(found)) == ("degraded", ["member", "primary", "secondary"])
        assert found.endpoints["rw"] == ("n2",)
        assert found.entry is not None
        assert found.entry.name == "n2"
        assert found.dsn.endswith(f":{found.nodes[1].sql_port}/")
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        back = start_node(ctx, "shop", "n1", timeout=10)
        assert (back.state, roles(back)) == ("ready", ["secondary", "primary", "secondary"])
        assert count(ctx, "n1") == 1
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert back.endpoints == {"rw": ("n2",), "ro": ("n1", "n3")}


def test_a_busy_host_does_not_make_a_ready_lab_unreachable(tmp_path: Path) -> None:
    """Protects the word of `up`: nodes that were ready just now need more than the usual time."""
    world = World(tmp_path, answer_timeout=0.6)
    with world.open() as ctx:

        def need_a_second(_port: int, timeout: float) -> None:
            if timeout < 1:
                raise NotReady("no answer in time")

        made = up(asking(ctx, need_a_second), REQUEST)
        assert (made.state, roles(made)) == ("ready", ["primary", "secondary", "secondary"])


def test_statements_need_a_primary(world: World) -> None:
    """Protects who writes from a secondary that is taken for the primary."""
    with world.open() as ctx:
        up(ctx, REQUEST)

        def silent(*_: object, **__: object) -> list[Rows]:
            raise NotReady("no answer")

        with pytest.raises(NotReady, match="no node of shop answers as its primary") as raised:
            query(replace(ctx, sql_all=silent), "shop", None, "SELECT 1")
        assert "--node" in raised.value.hint


def test_no_node_starts_a_group_without_the_others(world: World) -> None:
    """Protects transactions that only a node has which does not run."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        power.stop(ctx, "shop")
        with pytest.raises(NotReady, match="a node that does not run may have") as raised:
            start_node(ctx, "shop", "n2", timeout=10, pace=FAST)
        assert "`lab start` without --node" in raised.value.hint
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"


def leave(ctx: Context, *nodes: str) -> None:
    for node in nodes:
        query(ctx, "shop", node, "STOP GROUP_REPLICATION")


def test_members_that_left_while_their_servers_ran(world: World) -> None:
    """Protects `lab start`: nothing in a guest has a member join that was in the group before."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        leave(ctx, "n2")
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        assert (count(ctx, "n1"), count(ctx, "n2")) == (1, 0)
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert count(ctx, "n2") == 1
        assert any("n2: it is OFFLINE" in note for note in world.notes)
        leave(ctx, "n2", "n3", "n1")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert count(ctx, "n3") == 1


@pytest.mark.rare
def test_one_node_goes_back(world: World) -> None:
    """Protects its recovery, which the group refuses with the password of a template."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        assert rollback(ctx, RollBack(lab="shop", node="n2"), timeout=20).state == "ready"
        assert count(ctx, "n2") == 1
        assert any("n2: the group refuses the password" in note for note in world.notes)
        leave(ctx, "n2")
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert count(ctx, "n2") == 2


def test_the_error_is_of_the_member_that_is_not_there(world: World) -> None:
    """Protects users from the log of a member that only lacks the other."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        leave(ctx, "n2")
        patient = replace(FAST, interval=60.0)
        with pytest.raises(NotReady, match="n2 is not ready: required: state is ONLINE"):
            start(ctx, "shop", timeout=1, pace=patient)


@pytest.mark.rare
def test_where_ram_is_not_captured(tmp_path: Path) -> None:
    """Protects hosts without RAM restore: clones of the disks become a group."""
    world = World(tmp_path, Capabilities("fake", "bhyve", why_cold="no RAM here"))
    with world.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.state, made.started) == ("ready", "cold")
        assert not template.templates(ctx)[0].warm
