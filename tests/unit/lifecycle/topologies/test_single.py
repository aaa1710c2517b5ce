"""A lab of the blueprint ``single``: every verb, on a server that is in no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.nodes.recovery import Pace
from lab.lifecycle.snapshots import snapshot
from lab.names import GuestName
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import World, lab_request

REQUEST = lab_request("single", "solo")
GUEST = GuestName("lab-solo-n1")


def fake(ctx: Context) -> FakeHypervisor:
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    return ctx.hypervisor


def count(ctx: Context) -> object:
    return query(ctx, "solo", None, "SELECT COUNT(*) FROM t").rows[0][0]


@pytest.mark.parametrize("cold", [False, True])
def test_every_verb(world: World, cold: bool) -> None:
    """Protects the second topology: nothing between the verbs and the server wants a cluster."""
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        (node,) = made.nodes
        assert (node.name, node.role, node.state) == ("n1", "server", "ready")
        assert made.dsn.endswith(f"@127.0.0.1:{node.sql_port}/")
        assert query(ctx, "solo", None, "SHOW GLOBAL STATUS LIKE 'wsrep_%'").rows == ()
        wanted = [(one.name, one.met) for one in status(ctx, "solo").requirements]
        assert wanted == [("SQL", True), ("writable", True)]
        query(ctx, "solo", None, "CREATE TABLE t (a INT)")
        query(ctx, "solo", "n1", "INSERT INTO t VALUES (1)")
        taken = snapshot.take(ctx, TakeSnapshot(lab="solo", name="one"))
        query(ctx, "solo", None, "INSERT INTO t VALUES (2)")
        assert power.stop(ctx, "solo").state == "stopped"
        assert start(ctx, "solo", timeout=10).state == "ready"
        assert wait(ctx, "solo", timeout=10).state == "ready"
        assert count(ctx) == 2
        assert rollback(ctx, RollBack(lab="solo", to=taken.label), timeout=10).state == "ready"
        assert count(ctx) == 1
        assert rollback(ctx, RollBack(lab="solo"), timeout=10).state == "ready"
        with pytest.raises(CommandFailed):
            count(ctx)
        down(ctx, "solo")
        assert ctx.store.labs.all() == []


def test_it_has_a_template_of_its_own(world: World) -> None:
    """Protects clones: a member of a cluster and a single server do not share their disks."""
    with world.open() as ctx:
        one = template.build(ctx, REQUEST)
        other = template.build(ctx, lab_request("galera", nodes=1))
        assert one.key != other.key
        assert preview(ctx, REQUEST).template == one.key
        assert preview(ctx, REQUEST).nodes == 1


def test_more_nodes_than_one_are_refused_before_anything_is_made(world: World) -> None:
    with world.open() as ctx:
        for verb in (up, preview, template.build):
            with pytest.raises(InvalidSpec, match="exactly one node"):
                verb(ctx, structs.replace(REQUEST, nodes=3))
        assert ctx.store.labs.all() == []
        assert ctx.store.images.all() == []


def test_a_server_that_is_read_only_is_not_ready(world: World) -> None:
    """Protects the meaning of ready: a user can write."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "solo", None, "SET GLOBAL read_only = ON")
        assert lab(ctx, "solo").state == "degraded"
        with pytest.raises(NotReady, match="read_only is OFF; found: ON") as error:
            wait(ctx, "solo", timeout=0.5)
        assert "SET GLOBAL read_only = OFF" in error.value.hint
        power.stop(ctx, "solo")
        assert start(ctx, "solo", timeout=10).state == "ready"


def test_a_server_that_ended_is_started_again(world: World) -> None:
    with world.open() as ctx:
        up(ctx, REQUEST)
        query(ctx, "solo", None, "CREATE TABLE t (a INT)")
        fake(ctx).servers.alter(GUEST, lambda inside: setattr(inside, "apart", "failed"))
        power.stop(ctx, "solo", force=True)
        pace = Pace(interval=0.05, patience=1.0)
        assert start(ctx, "solo", timeout=10, pace=pace).state == "ready"
        assert count(ctx) == 0
    assert "n1: its server was not running; its server is restarted" in world.notes


def test_its_template_travels(tmp_path: Path) -> None:
    """Protects exchange: roles and number of nodes are those of the blueprint on both hosts."""
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    with here.open() as ctx:
        key = template.build(ctx, REQUEST).key
    done = there.imported("template", here.exported("template", key), warm_only=True)
    with there.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.started, made.template) == ("warm", done.key)


def test_where_ram_is_not_captured(tmp_path: Path) -> None:
    """Protects hosts without RAM restore: the template is captured from a clean stop."""
    world = World(tmp_path, Capabilities("fake", "bhyve", why_cold="no RAM here"))
    with world.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.state, made.started) == ("ready", "cold")
        assert not template.templates(ctx)[0].warm
