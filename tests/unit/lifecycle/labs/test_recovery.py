"""``lab start`` after a crash: nodes that will not become a cluster by themselves are helped."""

from __future__ import annotations

import time

import pytest

from lab.errors import NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.fake.inside import Inside
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.nodes.recovery import Pace
from lab.names import GuestName
from tests.support.lifecycle_world import World, make_template, named

FAST = Pace(interval=0.05, patience=1.0)


def make(ctx: Context) -> None:
    make_template(ctx)
    up(ctx, named("shop", nodes=3))
    query(ctx, "shop", "n2", "CREATE TABLE t (a INT)")


def trouble(ctx: Context, *apart: str) -> None:
    """Crash the lab; its nodes come up as ``apart`` says, n1 first. The first one is behind."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)

    for number, word in enumerate(apart, 1):

        def change(inside: Inside, number: int = number, word: str = word) -> None:
            inside.apart = word
            if number == 1:
                inside.statements.pop()

        ctx.hypervisor.servers.alter(GuestName(f"lab-shop-n{number}"), change)
    power.stop(ctx, "shop", force=True)


def test_an_inconsistent_node_is_given_data(world: World) -> None:
    """It has the table already that the others tell it to make."""
    with world.open() as ctx:
        make(ctx)
        trouble(ctx, "inconsistent", "", "")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
        assert query(ctx, "shop", "n1", "SELECT COUNT(*) FROM t").rows == ((0,),)
    assert [note for note in world.notes if note.startswith("n1: ")] == [
        (
            "n1: its data conflict with the cluster's;"
            " its data are replaced by a state transfer (SST) from another node"
        )
    ]


def test_the_most_advanced_starts_the_cluster(world: World) -> None:
    with world.open() as ctx:
        make(ctx)
        trouble(ctx, "lost view", "lost view", "lost view")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
    (note,) = (note for note in world.notes if "highest seqno" in note)
    assert note.startswith("n2: no primary component can be restored")


def test_an_ended_server_is_started_again(world: World) -> None:
    with world.open() as ctx:
        make(ctx)
        trouble(ctx, "", "failed", "")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
    assert any(note.startswith("n2: its server was not running") for note in world.notes)


def test_one_of_many_does_not_start_alone(world: World) -> None:
    """At once, not when the time is up: what is missing will not come."""
    with world.open() as ctx:
        make(ctx)
        trouble(ctx, "lost view", "lost view", "lost view")
        began = time.monotonic()
        with pytest.raises(NotReady, match="higher seqno"):
            start_node(ctx, "shop", "n2", timeout=10, pace=FAST)
        assert time.monotonic() - began < 5
        assert lab(ctx, "shop").state == "unreachable"
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"


@pytest.mark.rare
def test_nothing_is_done_to_nodes_that_only_take_long(world: World) -> None:
    world.boot_seconds = 1.0
    with world.open() as ctx:
        make(ctx)
        power.stop(ctx, "shop")
        assert start(ctx, "shop", timeout=10, pace=FAST).state == "ready"
    assert not any(note.startswith("n") for note in world.notes), world.notes
