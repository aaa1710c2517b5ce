"""The origin of a lab that was made without a template: its disks are those of images.

What ``lab up --cold`` did after the first boot is done again: links, accounts, groups, ``--init``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab import users
from lab.errors import Conflict
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import branch, power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.snapshots import snapshot
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, lab_request

SOON = 6.0
"""Seconds after which nodes that are never ready are given up."""
INIT = "CREATE TABLE t (a INT); INSERT INTO t VALUES (1);"
KINDS: dict[str, dict[str, Any]] = {
    "star": {"blueprint": "replication"},
    "chain": {"blueprint": "replication", "topology": "chain"},
    "proxied": {"blueprint": "replication", "nodes": 2, "proxy": "haproxy"},
    "group": {"blueprint": "group"},
    "galera": {"blueprint": "galera"},
    "galera-dr": {"blueprint": "galera-dr", "nodes": 2},
    "single": {"blueprint": "single"},
}


def make(ctx: Context, kind: str, **options: Any) -> None:
    """A lab without a template, with a row in ``t`` and then another."""
    asked = lab_request(**KINDS[kind], name="shop", init=INIT, cold=True, **options)
    assert up(ctx, asked).started == "cold"
    query(ctx, "shop", None, "INSERT INTO t VALUES (2)")


def rows(ctx: Context, name: str = "shop") -> set[int]:
    """How many rows ``t`` has on each of the servers."""
    servers = [node.name for node in lab(ctx, name).nodes if node.role not in ("proxy", "arbiter")]
    found = [query(ctx, name, node, "SELECT COUNT(*) FROM t").rows[0][0] for node in servers]
    return {int(str(one)) for one in found}


@pytest.mark.rare
@pytest.mark.parametrize("kind", KINDS)
def test_back_to_the_state_after_creation(world: World, kind: str) -> None:
    """Protects labs: they were ruined, or were without the statements that were given."""
    with world.open() as ctx:
        make(ctx, kind, user=users.parse("app:s3cret@shop", ""))
        before = lab(ctx, "shop")
        after = rollback(ctx, RollBack(lab="shop"), timeout=SOON)
        assert (after.state, after.started) == ("ready", "cold")
        assert "rolled back to its origin" in after.why_cold
        assert (after.password, after.endpoints) == (before.password, before.endpoints)
        assert [node.role for node in after.nodes] == [node.role for node in before.nodes]
        assert rows(ctx) == {1}
        app = replace(
            account_of(ctx.home, ctx.store.labs.get("shop")), user="app", password="s3cret"
        )
        for node in after.nodes:
            ctx.sql(app, node.sql_port, "DO 1", timeout=9.0, whole=True)
        query(ctx, "shop", None, "INSERT INTO t VALUES (3)")
        assert rows(ctx) == {2}
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop"))
        query(ctx, "shop", None, "INSERT INTO t VALUES (4)")
        rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=SOON)
        assert rows(ctx) == {2}
        rollback(ctx, RollBack(lab="shop"), timeout=SOON)
        assert rows(ctx) == {1}


@pytest.mark.rare
@pytest.mark.parametrize("kind", [pytest.param("star", marks=pytest.mark.rare), "group", "galera"])
@pytest.mark.parametrize("step", ["form.begin", "personalise.begin"])
def test_one_that_was_cut_is_completed(world: World, kind: str, step: str) -> None:
    """Protects what is half formed: `lab start` begins with the disks again."""
    with world.open() as ctx:
        make(ctx, kind)
    assert world.killed(lambda ctx: rollback(ctx, RollBack(lab="shop"), timeout=SOON), step) == step
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=SOON).state == "ready"
        assert rows(ctx) == {1}
        assert interrupted.pending(ctx, "shop") is None
        assert power.stop(ctx, "shop").state == "stopped"
        assert start(ctx, "shop", timeout=SOON).state == "ready"


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["star", "chain", "group", "galera-dr"])
def test_one_node_that_would_not_be_formed(world: World, kind: str) -> None:
    """Protects the whole lab, which a rollback that cannot be completed locks."""
    with world.open() as ctx:
        make(ctx, kind)
    steps: list[str] = []
    with world.open(steps.append) as ctx:
        with pytest.raises(Conflict, match=r"n2 cannot go back to the origin of shop alone") as e:
            rollback(ctx, RollBack(lab="shop", node="n2"), timeout=SOON)
        assert "without a template" in str(e.value)
        assert "`lab rollback shop` puts all nodes back" in e.value.hint
        assert "--to" in e.value.hint
        assert not {"hypervisor.stop", "storage.rollback", "state.commit"} & set(steps)
        assert lab(ctx, "shop").state == "ready"
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop"))
        assert (
            rollback(ctx, RollBack(lab="shop", to=taken.label, node="n2"), timeout=SOON).state
            == "ready"
        )
        assert rows(ctx) == {2}


def test_one_node_whose_rollback_was_begun(world: World) -> None:
    """Protects labs of earlier versions, which began it: all nodes together complete it."""
    with world.open() as ctx:
        make(ctx, "star")
        interrupted.begin(ctx, "shop", "origin", "n2")
        power.stop(ctx, "shop")
        with pytest.raises(Conflict, match="n2 cannot go back to the origin of shop alone"):
            start(ctx, "shop", timeout=SOON)
        assert rollback(ctx, RollBack(lab="shop"), timeout=SOON).state == "ready"
        assert rows(ctx) == {1}


def test_one_node_that_the_others_give_their_data(world: World) -> None:
    """Protects Galera: a node that begins with its image's disks is sent what it lacks."""
    with world.open() as ctx:
        make(ctx, "galera")
        for node in ("n1", "n2"):
            assert rollback(ctx, RollBack(lab="shop", node=node), timeout=SOON).state == "ready"
            assert rows(ctx) == {2}


def test_one_node_in_front_of_servers(world: World) -> None:
    """Protects proxies: nothing of them is formed, so they go back alone."""
    with world.open() as ctx:
        make(ctx, "proxied")
        (name,) = [node.name for node in lab(ctx, "shop").nodes if node.role == "proxy"]
        assert rollback(ctx, RollBack(lab="shop", node=name), timeout=SOON).state == "ready"
        assert rows(ctx) == {2}


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["star", "group", "single"])
def test_a_branch_of_it(world: World, kind: str) -> None:
    """Protects branches of the origin, whose disks are not formed either."""
    with world.open() as ctx:
        make(ctx, kind)
        (found,) = branch.branch(ctx, BranchLab(lab="shop", name="twin", at="origin"), timeout=SOON)
        assert (found.state, rows(ctx, "twin"), rows(ctx)) == ("ready", {1}, {2})
        query(ctx, "twin", None, "INSERT INTO t VALUES (3)")
        assert rollback(ctx, RollBack(lab="twin"), timeout=SOON).state == "ready"
        assert rows(ctx, "twin") == {1}


def test_a_branch_with_identities_of_its_own(world: World) -> None:
    with world.open() as ctx:
        make(ctx, "star")
        branch.branch(
            ctx, BranchLab(lab="shop", name="twin", at="origin", identity="new"), timeout=SOON
        )
        assert rollback(ctx, RollBack(lab="twin"), timeout=SOON).state == "ready"
        assert rows(ctx, "twin") == {1}
