"""Labs where the hypervisor forwards no ports, cannot pause guests and restores no RAM.

Guests are reached at their own addresses then, which their seeds give them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.config.settings import load
from lab.errors import HostUnfit
from lab.guest.network import own_address
from lab.hypervisor import Capabilities
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.labs import node_access, power, rollback
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.service.activity import activity
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.views.labs import LabView
from tests.support.lifecycle_world import REQUEST, Verb, World, make_cold, make_lab, named

SELF = Capabilities("fake", "bhyve", why_cold="bhyve cannot", direct=False, forwards=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, capabilities=SELF)


def reached(ctx: Context, view: LabView) -> None:
    """Every node answers at the address and port that are printed."""
    record = ctx.store.labs.get(view.name)
    for number, node in enumerate(view.nodes, 1):
        assert node.host == own_address(record.segment, number)
        assert (node.sql_port, node.ssh_port) == (3306, 22)
        assert query(ctx, view.name, node.name, "SHOW GLOBAL STATUS LIKE 'wsrep_%'").rows
    assert f"@{view.nodes[0].host}:3306/" in view.dsn


@pytest.mark.parametrize("make", [make_lab, make_cold], ids=["template", "cold"])
def test_a_lab_is_reached_at_its_own_addresses(world: World, make: Verb) -> None:
    with world.open() as ctx:
        make(ctx)
        (record,) = ctx.store.labs.all()
        reached(ctx, lab(ctx, record.name))
        assert not [r for r in ctx.store.resources.all() if r.kind == "port"]


def test_labs_of_one_template_have_different_addresses(world: World) -> None:
    """Protects clones: their disks hold the template's address until their seed is read."""
    with world.open() as ctx:
        views = [up(ctx, named(name)) for name in ("one", "two")]
        hosts = {node.host for view in views for node in view.nodes}
        assert len(hosts) == 2 * REQUEST.nodes
        for view in views:
            reached(ctx, view)


def test_the_life_of_a_lab(world: World) -> None:
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="before"))
        reached(ctx, start(ctx, "shop", timeout=20.0))
        power.stop(ctx, "shop")
        assert lab(ctx, "shop").state == "stopped"
        again = start(ctx, "shop", timeout=20.0)
        reached(ctx, again)
        assert [n.host for n in again.nodes] == [n.host for n in view.nodes]
        for label in (taken.label, "origin"):
            reached(ctx, rollback.rollback(ctx, RollBack(lab="shop", to=label), timeout=20.0))
        down(ctx, "shop")
        assert ctx.hypervisor.guests() == {}


def test_clones_that_boot_restore_nothing(world: World) -> None:
    """The step that is shown and timed says what was done."""
    with world.open() as ctx:
        steps = {step.step for step in up(ctx, named("shop")).steps}
    assert "start" in steps
    assert not {"restore", "resume"} & steps


def test_whether_it_is_idle_is_asked_there(world: World) -> None:
    """Protects idle leases on bhyve: the nodes are asked, not this host's own server."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        before = activity(ctx, "shop", patience=1.0)
        assert activity(ctx, "shop", patience=1.0) == before
        query(ctx, "shop", "n2", "CREATE TABLE t (a INT)")
        assert activity(ctx, "shop", patience=1.0) != before


def test_ssh_goes_there_and_knows_who_is_there(world: World) -> None:
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        argv = node_access.ssh_argv(ctx, "shop", "n2")
        assert argv[-1] == f"root@{view.nodes[1].host}"
        known = (ctx.home.private(Owner("lab", "shop")) / "known_hosts").read_text()
        assert [line.split()[0] for line in known.splitlines()] == [n.host for n in view.nodes]


def test_ports_that_nobody_forwards_cannot_be_published(world: World) -> None:
    world.publish = "0.0.0.0"  # noqa: S104
    with world.open() as ctx:
        with pytest.raises(HostUnfit, match="addresses of their own"):
            up(ctx, named("shop"))
        assert ctx.store.labs.all() == []


def test_bhyve_needs_volumes_on_zfs(tmp_path: Path) -> None:
    """Protects from images that are built and labs that are cloned before the first guest fails."""
    flags = {"home": tmp_path, "hypervisor": "bhyve", "storage": "qcow2"}
    settings = load(flags, env={}, files=())
    with pytest.raises(HostUnfit, match="qcow2") as failure, open_context(settings):
        pass
    assert "lab host init" in failure.value.hint
