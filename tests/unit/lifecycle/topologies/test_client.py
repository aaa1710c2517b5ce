"""Labs with a client: a node that has no server and is of no cluster."""

from __future__ import annotations

import pytest

from lab.blueprints import planned
from lab.errors import InvalidSpec
from lab.lifecycle.host import gc as collecting
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import status
from lab.lifecycle.snapshots import snapshot
from lab.options import Options
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.spec import LabSpec
from tests.support.lifecycle_world import World, lab_request

EVERY = [
    ("single", 1, {}),
    ("galera", 2, {"arbiter": True, "proxy": "haproxy"}),
    ("replication", 2, {}),
    pytest.param("replication", 3, {"topology": "ring"}, marks=pytest.mark.rare),
    pytest.param("group", 3, {"multi_primary": True}, marks=pytest.mark.rare),
    pytest.param("galera-dr", 2, {"replicas": 2}, marks=pytest.mark.rare),
]


@pytest.mark.parametrize(("blueprint", "nodes", "more"), EVERY)
@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.rare)])
def test_every_blueprint_has_one(
    world: World, blueprint: str, nodes: int, more: dict[str, object], cold: bool
) -> None:
    """Protects labs with a client: it is last, and nobody takes it for a server or a member."""
    with world.open() as ctx:
        asked = lab_request(blueprint, "shop", nodes=nodes, client=True, cold=cold, **more)
        made = up(ctx, asked)
        client = made.nodes[-1]
        assert (made.state, client.role, client.sql_port) == ("ready", "client", 0)
        assert all(client.name not in (link.source, link.replica) for link in made.links)
        found = status(ctx, "shop").requirements
        assert [(one.name, one.met) for one in found if one.node == client.name] == [
            ("agent", True)
        ]
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one")).label
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        power.stop(ctx, "shop")
        assert start(ctx, "shop", timeout=60).state == "ready"
        assert rollback(ctx, RollBack(lab="shop", to=label), timeout=60).state == "ready"
        assert query(ctx, "shop", None, "SELECT COUNT(*) FROM t").rows == ((0,),)
        other = BranchLab(lab="shop", name="own", at="one", identity="new")
        assert branch(ctx, other, timeout=60)[0].state == "ready"
        down(ctx, "own")
        down(ctx, "shop")
        assert collecting.gc(ctx).removed == ()


def test_it_counts_as_a_node() -> None:
    with pytest.raises(InvalidSpec, match="9 servers and a node for the client are 10 nodes"):
        planned(LabSpec("galera", nodes=9, options=Options(client=True).said))
