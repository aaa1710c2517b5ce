"""Labs of the blueprints ``galera-dr`` and ``pxc-dr``: every verb, on both sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from lab.errors import CommandFailed, NotReady
from lab.fake.hypervisor import FakeHypervisor
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
from lab.lifecycle.nodes.inspect import lab, nodes_of, status
from lab.lifecycle.snapshots import snapshot
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, count, lab_request

REQUEST = lab_request("galera-dr", "shop", replicas=2)
MEMBERS, REPLICAS = ("n1", "n2", "n3"), ("n4", "n5")


def states(ctx: Context) -> dict[str, str]:
    return {node.name: node.state for node in lab(ctx, "shop").nodes}


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.rare)])
def test_every_verb(world: World, cold: bool) -> None:
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        assert [node.role for node in made.nodes] == ["member"] * 3 + ["replica"] * 2
        assert made.endpoints == {"rw": MEMBERS, "ro": REPLICAS}
        assert made.dsn.endswith(f":{made.nodes[0].sql_port}/")
        wanted = [(one.node, one.name, one.met) for one in status(ctx, "shop").requirements]
        assert wanted == [
            *((node, name, True) for node in MEMBERS
              for name in ("SQL", "Synced", "Primary", "size 3", "wsrep_ready")),
            *((node, name, True) for node in REPLICAS
              for name in ("SQL", "read-only", "replicating", "caught up")),
        ]  # fmt: skip
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        query(ctx, "shop", "n2", "INSERT INTO t VALUES (1)")
        assert (count(ctx, "n3"), count(ctx, "n4"), count(ctx, "n5")) == (1, 1, 1)
        with pytest.raises(CommandFailed, match="ERROR 1290 "):
            query(ctx, "shop", "n4", "INSERT INTO t VALUES (2)")
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        assert power.stop(ctx, "shop").state == "stopped"
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert count(ctx, "n5") == 2
        assert rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=10).state == "ready"
        assert (count(ctx), count(ctx, "n5")) == (1, 1)
        for name, identity in (("try", "shared"), ("own", "new")):
            branch.branch(ctx, BranchLab(lab="shop", name=name, identity=identity), timeout=10)  # type: ignore[arg-type]
            query(ctx, name, None, "INSERT INTO t VALUES (7)")
            assert (count(ctx, "n5", name), count(ctx, "n5")) == (2, 1)
        for name in ("own", "try", "shop"):
            down(ctx, name)
        assert ctx.store.labs.all() == []


def test_identities_of_a_branch(world: World) -> None:
    """Protects links between labs: GTID domains, and server ids of replicas, are the branch's."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        branch.branch(ctx, BranchLab(lab="shop", name="own", identity="new"), timeout=10)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        number = ctx.store.labs.get("own").identity
        given = {
            n.name: ctx.hypervisor.servers.inside(n.guest).identity for n in nodes_of(ctx, "own")
        }
        assert {words[1] for name, words in given.items() if name in MEMBERS} == {str(number + 1)}
        assert {words[5] for name, words in given.items() if name in MEMBERS} == {str(number)}
        assert len({words[2] for words in given.values()}) == 5
        assert [given[name][1] for name in REPLICAS] == [str(number + 4), str(number + 5)]


@pytest.mark.rare
def test_the_source_is_stopped(world: World) -> None:
    """Protects the remote site: it follows another member; and itself is seen when cut off."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        power.stop(ctx, "shop", node="n1")
        query(ctx, "shop", "n2", "INSERT INTO t VALUES (1)")
        assert (count(ctx, "n4"), count(ctx, "n5")) == (1, 1)
        assert states(ctx) == {"n1": "stopped", "n2": "degraded", "n3": "degraded",
                               "n4": "ready", "n5": "ready"}  # fmt: skip
        start_node(ctx, "shop", "n1", timeout=10)
        assert lab(ctx, "shop").state == "ready"
        power.stop(ctx, "shop", node="n4")
        unknown = {(r.node, r.found) for r in status(ctx, "shop").requirements if r.met is None}
        assert ("n5", "unknown: n4 does not answer") in unknown
        assert states(ctx)["n1"] == "ready"
        # Without the node that it follows, there is nothing that it could wait for.
        power.stop(ctx, "shop", node="n5")
        start_node(ctx, "shop", "n5", timeout=10)
        assert start(ctx, "shop", timeout=10).state == "ready"
        for node in MEMBERS:
            power.stop(ctx, "shop", node=node)
        found = {(r.node, r.found) for r in status(ctx, "shop").requirements if r.met is None}
        assert ("n4", "unknown: the cluster does not answer") in found
        with pytest.raises(NotReady, match="n1, n2, n3 of shop"):
            wait(ctx, "shop", timeout=0.5)
        assert start(ctx, "shop", timeout=10).state == "ready"


def test_where_ram_is_not_captured(tmp_path: Path) -> None:
    """Protects hosts without RAM restore: the template is captured from a clean stop."""
    world = World(tmp_path, Capabilities("fake", "bhyve", why_cold="no RAM here"))
    with world.open() as ctx:
        made = up(ctx, lab_request("pxc-dr", "shop"))
        assert (made.state, made.started, len(made.nodes)) == ("ready", "cold", 4)
        assert not template.templates(ctx)[0].warm


def test_the_number_of_replicas_is_of_the_template(world: World) -> None:
    with world.open() as ctx:
        for number in (1, 2):
            up(ctx, lab_request("galera-dr", f"r{number}", nodes=1, replicas=number))
        assert len(template.templates(ctx)) == 2
