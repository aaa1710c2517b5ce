"""Nodes of a lab may have images, sizes and services of their own; users see them."""

from __future__ import annotations

import json
from dataclasses import replace

from lab.lifecycle.core.environment import environment
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, nodes_of
from lab.units import MIB
from tests.support.lifecycle_world import SIZE, World, named


def test_each_node_is_recorded_with_its_own(world: World) -> None:
    """What was planned for a node is in its row, and in what users see of it."""
    with world.open() as ctx:
        made = up(ctx, named("shop"))
        rows = ctx.store.nodes.of("shop")
    for row, node in zip(rows, made.nodes, strict=True):
        assert (row.image, row.memory, row.cpus, row.disk) == (made.image, SIZE.memory, 1, 0)
        assert row.services == node.services == {"sql": 3306, "ssh": 22}
        assert (node.image, node.memory) == (row.image, row.memory)


def test_a_node_starts_with_its_own_size(world: World) -> None:
    """Protects nodes that differ: the lab's row does not decide what a guest has."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        power.stop(ctx, "shop")
        ctx.store.nodes.update("shop", "n2", memory=512 * MIB, cpus=2)
        start(ctx, "shop", timeout=10)
        guests = [
            json.loads((ctx.home.root / f"fake-guests/lab-shop-{node}.json").read_text())["shape"]
            for node in ("n1", "n2")
        ]
        assert [(g["memory"], g["cpus"]) for g in guests] == [(SIZE.memory, 1), (512 * MIB, 2)]
        assert [node.memory for node in lab(ctx, "shop").nodes] == [SIZE.memory, 512 * MIB]
        assert nodes_of(ctx, "shop")[1].size.cpus == 2


def test_users_connect_to_the_first_endpoint(world: World) -> None:
    """`lab env`, `lab sql` without a node and the DSN agree about where that is."""
    with world.open() as ctx:
        made = up(ctx, named("shop"))
        assert made.endpoints == {"rw": ("n1", "n2")}
        first = made.nodes[0]
        assert made.entry == first
        assert made.dsn.endswith(f":{first.sql_port}/")
        assert environment(made)["LAB_PORT"] == str(first.sql_port)
        query(ctx, "shop", None, "DO 1")
    second = replace(made, endpoints={"rw": ("n2",), "ro": ("n1",)})
    assert environment(second)["MYSQL_TCP_PORT"] == str(made.nodes[1].sql_port)
    unknown = replace(made, endpoints={})
    assert unknown.entry == first
    assert replace(made, endpoints={}, nodes=()).entry is None


def test_a_lab_of_an_unknown_blueprint_can_be_seen(world: World) -> None:
    """Protects labs that another version made: they are listed, with all nodes to connect to."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        ctx.store.labs.update("shop", blueprint="future")
        found = lab(ctx, "shop")
    assert found.endpoints == {"rw": ("n1", "n2")}
    assert found.dsn
