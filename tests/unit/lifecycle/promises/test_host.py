"""The host's bad luck: a reboot, a lost state file, too little of everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.errors import Conflict, HostUnfit, NotFound
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import node_access, power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.lease import change
from lab.lifecycle.labs.query import client, query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, labs
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner
from lab.requests.host import CollectGarbage
from lab.requests.labs import ChangeLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.units import GIB
from lab.views.labs import LabView
from tests.support.lifecycle_world import World, make_template, named


def test_exist_ok_gives_a_lab_that_can_be_used(world: World) -> None:
    """``make up`` after a reboot: success means ready, so a stopped lab is started."""
    with world.open() as ctx:
        made = ensure(ctx, named("galera"))
        power.stop(ctx, "galera")
        again = ensure(ctx, named("galera"))
        assert again.state == "ready"
        assert again.password == made.password
        with pytest.raises(Conflict, match="different configuration"):
            ensure(ctx, named("galera", nodes=1))


def test_the_host_was_rebooted(world: World) -> None:
    """All guests are gone, the record is not: labs show as stopped, start and down work."""
    with world.open() as ctx:
        make_template(ctx)
        before = world.there()
        kept, other = up(ctx, named("shop")), up(ctx, named("other"))
        _write(ctx, kept, "CREATE TABLE t (a INT)")
        for guest in ctx.hypervisor.guests():
            ctx.hypervisor.stop(guest, force=True)
        assert {view.state for view in labs(ctx)} == {"stopped"}
        assert {node.state for node in lab(ctx, "shop").nodes} == {"stopped"}
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert _write(ctx, kept, "SELECT COUNT(*) FROM t") == ((0,),)
        for view in (kept, other):
            down(ctx, view.name)
    assert world.there() == before


def _write(ctx: Context, view: LabView, statement: str) -> tuple[tuple[object, ...], ...]:
    return query(ctx, view.name, None, statement).rows


def test_the_state_file_is_lost(world: World) -> None:
    """An empty record removes nothing; labs are listed from tags, and can be removed."""
    with world.open() as ctx:
        make_template(ctx)
        up(ctx, named("shop"))
    for file in world.root.glob("state.db*"):
        file.unlink()
    with world.open() as ctx:
        (found,) = labs(ctx)
        assert (found.name, found.state) == ("shop", "unrecorded")
        assert [node.state for node in found.nodes] == ["running", "running"]
        report = gc(ctx)
        assert report.removed == ()
        assert any("lab:shop" in line for line in report.left)
        assert len(ctx.hypervisor.guests()) == 2
        _is_reported(ctx)
        down(ctx, "shop")
        assert ctx.hypervisor.guests() == {}
        assert labs(ctx) == []
        with pytest.raises(NotFound):
            down(ctx, "shop")
        gc(ctx, CollectGarbage(orphans=True))
        assert ctx.storage.volumes() == []
        assert up(ctx, named("shop")).state == "ready"


def test_a_directory_is_all_that_is_left(world: World) -> None:
    """It keeps its name from being used, so it must be seen, and can be removed."""
    with world.open() as ctx:
        make_template(ctx)
        before = world.there()
        for remove in (lambda: down(ctx, "shop"), lambda: gc(ctx, CollectGarbage(orphans=True))):
            ctx.home.create_directory(Owner("lab", "shop"))
            assert [(view.name, view.state) for view in labs(ctx)] == [("shop", "unrecorded")]
            assert any("lab:shop" in line for line in gc(ctx).left)
            with pytest.raises(Conflict, match="is missing from the state database"):
                up(ctx, named("shop"))
            remove()
            assert labs(ctx) == []
        ctx.home.create_directory(Owner("template", "cafe"))
        ctx.home.create_directory(Owner("image", "mariadb-cafe"))
        (ctx.home.labs / "Not a lab").mkdir()
        assert len(gc(ctx).left) == 2
        assert len(gc(ctx, CollectGarbage(orphans=True)).removed) == 2
    assert world.there() == before


def _is_reported(ctx: Context) -> None:
    """What needs the record says so; into the guests one comes all the same."""
    verbs: list[Callable[[], object]] = [
        lambda: query(ctx, "shop", None, "SELECT 1"),
        lambda: client(ctx, "shop", None),
        lambda: node_access.ssh_argv(ctx, "shop", "n1"),
        lambda: power.stop(ctx, "shop"),
        lambda: start(ctx, "shop", timeout=1),
        lambda: start_node(ctx, "shop", "n1", timeout=1),
        lambda: power.stop(ctx, "shop", node="n1"),
        lambda: wait(ctx, "shop", timeout=1),
        lambda: change(ctx, ChangeLab(lab="shop", ttl=60.0)),
        lambda: snapshot.take(ctx, TakeSnapshot(lab="shop")),
        lambda: rollback(ctx, RollBack(lab="shop"), timeout=1),
    ]
    for verb in verbs:
        with pytest.raises(NotFound, match="missing from the state database") as refused:
            verb()
        assert "lab down shop" in refused.value.hint
    assert node_access.execute(ctx, "shop", "n2", ["/bin/sync"], timeout=5) == b""
    assert list(node_access.logs(ctx, "shop", "n1", "console", lines=1))
    assert node_access.console_argv(ctx, "shop", "n1")
    with pytest.raises(NotFound, match="no node n3"):
        node_access.execute(ctx, "shop", "n3", ["/bin/sync"], timeout=5)
    with pytest.raises(NotFound, match="there is no lab"):
        node_access.execute(ctx, "other", "n1", ["/bin/sync"], timeout=5)


def test_a_damaged_template_without_a_record_is_not_used(world: World) -> None:
    """The record is lost and then the template is spoilt: it is found again, and found out."""
    with world.open() as ctx:
        make_template(ctx)
    for file in world.root.glob("state.db*"):
        file.unlink()
    (state,) = world.home.templates.glob("*/n1.state")
    state.chmod(0o600)
    state.write_bytes(b"spoilt")
    with world.open() as ctx:
        assert up(ctx, named("shop")).state == "ready"
        assert [view.state for view in template.templates(ctx)] == ["ready"]
    assert any("is not used" in note for note in world.notes)


def test_a_host_without_memory_or_processors_refuses(world: World) -> None:
    """Before anything is made, for labs and templates alike, with figures."""
    for asked, message in (
        (named("", memory=4096 * GIB), "4T"),
        (named("", cpus=64), "64 CPUs"),
        (named("", disk=1 << 50), "2048T"),
    ):
        before = world.there()
        with world.open() as ctx:
            for verb in (up, template.build):
                with pytest.raises(HostUnfit, match=message) as refused:
                    verb(ctx, asked)
                assert refused.value.hint
        assert world.there() == before
