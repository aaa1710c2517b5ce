"""What was seen of a lab is of that lab, not of a later one of its name."""

from __future__ import annotations

from pathlib import Path

from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.promote import promote
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import known_guests, lab, observed_of
from lab.lifecycle.nodes.standing import remember
from tests.support.lifecycle_world import World, lab_request

STAR = lab_request("replication", "shop")


def test_a_look_that_ends_after_its_lab_notes_nothing(tmp_path: Path) -> None:
    """Protects the next lab of a name, maybe of another project, from the last one's roles."""
    with World(tmp_path).open() as ctx:
        up(ctx, STAR)
        found = ctx.store.lab_with_nodes("shop")
        promote(ctx, "shop", "n3", timeout=20)
        seen = observed_of(ctx, [found], known_guests(ctx))["shop"]
        down(ctx, "shop")
        remember(ctx.store, found, seen)
        up(ctx, STAR)
        before = {node.name: node.seen for node in ctx.store.nodes.of("shop")}
        remember(ctx.store, found, seen)
        assert {node.name: node.seen for node in ctx.store.nodes.of("shop")} == before
        assert [node.role for node in lab(ctx, "shop").nodes] == ["source", "replica", "replica"]
