"""Snapshots and going back, on the fakes: what is kept, what is refused, what a kill leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab import schedule
from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.service import usage
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.names import CaptureRef, Owner, template_ref
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.units import MIB
from tests.support.lifecycle_world import World, named, unobserved
from tests.support.vanishing import before, vanishing

COLD = Capabilities("fake", "fake", why_cold="it is cold")


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as opened:
        up(opened, named("shop"))
        yield opened


def labels(ctx: Context) -> list[str]:
    return [view.name for view in snapshot.snapshots(ctx, "shop")]


def password(ctx: Context) -> str:
    return lab(ctx, "shop").password


def test_a_new_lab_can_go_back_to_its_origin(ctx: Context) -> None:
    assert labels(ctx) == ["origin"]
    before = lab(ctx, "shop")
    after = rollback(ctx, RollBack(lab="shop"), timeout=20.0)
    assert after.state == "ready"
    assert after.password == before.password
    assert unobserved(after) == unobserved(before)
    assert query(ctx, "shop", "n2", "SELECT 1").rows


def test_back_and_forth(ctx: Context) -> None:
    first = snapshot.take(ctx, TakeSnapshot(lab="shop", name="first"))
    second = snapshot.take(ctx, TakeSnapshot(lab="shop", name="second"))
    assert labels(ctx) == ["origin", "first", "second"]
    for to in ("first", second.label, "origin", "first"):
        assert rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0).state == "ready"
        assert labels(ctx) == ["origin", "first", "second"]
    snapshot.remove(ctx, "shop", ["second", first.label])
    assert labels(ctx) == ["origin"]


def test_the_newest_of_a_name_is_meant(ctx: Context) -> None:
    one, two = (snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")) for _ in range(2))
    assert one.label != two.label
    assert snapshot.find(ctx, "shop", "mine").label == two.label


def test_one_node_goes_back_and_rejoins(ctx: Context) -> None:
    assert rollback(ctx, RollBack(lab="shop", node="n2"), timeout=20.0).state == "ready"
    assert query(ctx, "shop", "n2", "SELECT 1").rows


@pytest.mark.parametrize("cold", [True, False])
def test_back_where_ram_cannot_be_restored(world: World, cold: bool) -> None:
    world.capabilities = COLD
    with world.open() as ctx:
        up(ctx, named("shop", cold=cold))
        assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).state == "ready"
        assert query(ctx, "shop", "n1", "SELECT 1").rows


def test_back_without_the_ram_of_a_damaged_template(world: World) -> None:
    """What was tampered with is not restored here either: the nodes boot."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        key = lab(ctx, "shop").template
        state = ctx.home.device_state(template_ref(key), "n1")
        state.chmod(0o600)
        state.write_bytes(b"spoilt")
        assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).state == "ready"
        assert query(ctx, "shop", "n1", "SELECT 1").rows
        assert snapshot.snapshots(ctx, "shop")
    assert any("is not used" in note for note in world.notes)


def test_a_stopped_lab_goes_back_and_runs(ctx: Context) -> None:
    power.stop(ctx, "shop")
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="asleep"))
    assert rollback(ctx, RollBack(lab="shop", to="asleep"), timeout=20.0).state == "ready"


@pytest.mark.parametrize("to", ["mine", pytest.param("origin", marks=pytest.mark.rare)])
@pytest.mark.parametrize("node", [None, pytest.param("n2", marks=pytest.mark.rare)])
def test_a_rollback_that_was_cut(world: World, to: str, node: str | None) -> None:
    """At no step is it left so that disks of now and then run together; doing it again helps."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    step = cut = 0
    while world.killed(
        lambda c: rollback(c, RollBack(lab="shop", to=to, node=node or ""), timeout=20.0), step
    ):
        with world.open() as ctx:
            if interrupted.exists(ctx, "shop"):
                cut += 1
                with pytest.raises(Conflict) as refused:
                    snapshot.take(ctx, TakeSnapshot(lab="shop", name="torn"))
                assert "lab rollback shop --to" in refused.value.hint
                if node is None:
                    with pytest.raises(Conflict):
                        rollback(ctx, RollBack(lab="shop", to="mine", node="n1"), timeout=20.0)
                if cut % 2:  # else the start completes it
                    assert (
                        rollback(
                            ctx, RollBack(lab="shop", to=to, node=node or ""), timeout=20.0
                        ).state
                        == "ready"
                    )
            assert start(ctx, "shop", timeout=20.0).state == "ready"
            assert query(ctx, "shop", "n2", "SELECT 1").rows
            snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
            snapshot.remove(ctx, "shop", ["mine"])
        step += 3
    assert cut > 1


def test_a_running_lab_whose_nodes_cannot_be_paused(world: World) -> None:
    """Its file systems are written out, then its volumes are taken at one moment; nodes run on."""
    world.capabilities = COLD
    steps: list[str] = []
    with world.open(steps.append) as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        steps.clear()
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        assert [s for s in steps if s in ("hypervisor.run", "storage.snapshot")] == [
            *["hypervisor.run"] * 4, "storage.snapshot"
        ]  # fmt: skip
        assert not {"hypervisor.pause", "hypervisor.resume", "hypervisor.personalise"} & set(steps)
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}
        assert rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0).state == "ready"
        assert query(ctx, "shop", "n2", "SELECT * FROM t").columns == ("a",)


def test_nodes_go_on_if_they_cannot_be_paused(world: World) -> None:
    """And their clocks are right after the pause."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        began = time.time()
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        assert all(
            ctx.hypervisor.servers.inside(guest).clock > began for guest in ctx.hypervisor.guests()
        )

    def fail(step: str) -> None:
        if step == "storage.snapshot":
            raise HostUnfit("no space is left")

    with world.open(fail) as ctx, pytest.raises(HostUnfit):
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="other"))
    with world.open() as ctx:
        assert lab(ctx, "shop").state == "ready"


def test_refusals(ctx: Context) -> None:
    with pytest.raises(NotFound, match="no snapshot"):
        rollback(ctx, RollBack(lab="shop", to="nothing"), timeout=1.0)
    with pytest.raises(NotFound):
        rollback(ctx, RollBack(lab="shoop"), timeout=1.0)
    with pytest.raises(NotFound):
        snapshot.take(ctx, TakeSnapshot(lab="shoop"))
    with pytest.raises(NotFound):
        snapshot.remove(ctx, "shop", ["origin", "nothing"])
    with lock(ctx.home, "lab", "shop"), pytest.raises(Conflict):
        snapshot.take(ctx, TakeSnapshot(lab="shop"))
    assert labels(ctx) == ["origin"]
    assert lab(ctx, "shop").state == "ready"


def test_nodes_run_on_if_a_snapshot_fails(ctx: Context) -> None:
    taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    with pytest.raises(Conflict):
        ctx.storage.snapshot(snapshot.volumes_of(ctx, "shop"), taken.label)
    assert {g.state for g in ctx.hypervisor.guests().values()} == {"running"}


def test_gc_takes_what_is_due_and_rotates(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop", snapshots="hourly:2"))
        volumes = snapshot.volumes_of(ctx, "shop")
        for hours in (5, 4, 3):
            ctx.storage.snapshot(volumes, schedule.label("hourly", time.time() - hours * 3600))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        report = gc(ctx)
        assert [line.split("@")[0] for line in report.snapshots] == ["took shop"] + 2 * [
            "removed shop"
        ]
        assert sorted(labels(ctx)) == ["hourly", "hourly", "mine", "origin"]
        assert gc(ctx).snapshots == ()
        power.stop(ctx, "shop")
        assert gc(ctx).snapshots == ()
        down(ctx, "shop")


def test_what_is_too_many_goes_though_nothing_more_can_be_taken(world: World) -> None:
    """Protects a full disk: schedules free space there."""
    with world.open() as opened:
        up(opened, named("shop", snapshots="hourly:2"))
        volumes = snapshot.volumes_of(opened, "shop")
        for hours in (5, 4, 3):
            opened.storage.snapshot(volumes, schedule.label("hourly", time.time() - hours * 3600))
        floor = opened.storage.space().free + (1 << 30)
        ctx = replace(opened, settings=replace(opened.settings, space_floor=floor))
        with pytest.raises(HostUnfit):
            snapshot.rotate(ctx, "shop")
        assert labels(ctx).count("hourly") == 2


def test_what_a_cut_removal_left_goes(ctx: Context) -> None:
    taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    first, *_ = snapshot.volumes_of(ctx, "shop")
    found = next(s for s in ctx.storage.snapshots(first) if s.label == taken.label)
    ctx.storage.drop(found)
    assert labels(ctx) == ["origin"]
    assert snapshot.rotate(ctx, "shop") == [f"removed shop@{taken.label}"]
    assert all(len(ctx.storage.snapshots(v)) == 1 for v in snapshot.volumes_of(ctx, "shop"))


@pytest.mark.rare
@pytest.mark.parametrize("to", ["mine", "origin"])
def test_a_rollback_that_is_killed_can_be_repeated(world: World, to: str) -> None:
    """Protects the lab: after a kill at any step, going back once more works, or starting does."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    step, seen = 0, set()
    while name := world.killed(
        lambda ctx: rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0), step
    ):
        seen.add(name)
        with world.open() as ctx:
            assert rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0).state == "ready"
            assert query(ctx, "shop", "n1", "SELECT 1").rows
        step += 3
    assert seen & {"storage.rollback", "storage.clone", "hypervisor.stop"}


@pytest.mark.rare
def test_a_snapshot_that_is_killed_leaves_a_lab_that_goes_on(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
    step, seen = 0, set()
    while name := world.killed(
        lambda ctx: snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")), step
    ):
        seen.add(name)
        with world.open() as ctx:
            # Killed while they were paused: the next command says so, and starts them.
            start(ctx, "shop", timeout=20.0)
            assert query(ctx, "shop", "n1", "SELECT 1").rows
        step += 1
    assert seen >= {"hypervisor.pause", "storage.snapshot", "hypervisor.resume"}


def test_what_a_project_uses_is_counted_while_a_snapshot_is_removed(ctx: Context) -> None:
    """Also while the lab is: no view fails as something else ends."""
    for name in ("one", "two"):
        snapshot.take(ctx, TakeSnapshot(lab="shop", name=name))
    one, two = ctx.home.capture_directories("shop")[-2:]
    whole = usage.used(ctx)[""].disk
    with vanishing(one):
        assert usage.used(ctx)[""].disk < whole
    with vanishing(two):
        assert ctx.home.captured("shop") == []
    with vanishing(two.parent):
        assert labels(ctx) == ["origin", "one", "two"]


def test_a_snapshot_that_is_being_removed_is_not_damaged(ctx: Context) -> None:
    """Its manifest goes first, after it was seen and before it is read."""
    label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one")).label
    manifest = ctx.home.manifest(CaptureRef(Owner("lab", "shop"), label))
    with before(("open",), str(manifest), manifest.unlink):
        assert "damaged" not in snapshot.snapshots(ctx, "shop")[-1].why_cold


def test_a_name_of_labs_own_is_refused() -> None:
    with pytest.raises(InvalidSpec):
        schedule.check_name("hourly")


def test_a_node_that_never_comes_back_is_told(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    world.boot_seconds = 60.0
    with world.open() as ctx:
        with pytest.raises(NotReady):
            rollback(ctx, RollBack(lab="shop", to="mine", cold=True), timeout=0.5)
        assert lab(ctx, "shop").state != "ready"


def test_space_that_stays_free_is_not_taken(world: World) -> None:
    """Protects running guests: all of them are paused when the file system is full."""
    with world.open() as opened:
        up(opened, named("shop"))
        snapshot.take(opened, TakeSnapshot(lab="shop", name="first"))
        floor = opened.storage.space().free + 1
        ctx = replace(opened, settings=replace(opened.settings, space_floor=floor))
        for verb in (
            lambda: snapshot.take(ctx, TakeSnapshot(lab="shop")),
            lambda: rollback(ctx, RollBack(lab="shop", to="first"), timeout=20.0),
        ):
            with pytest.raises(HostUnfit, match="is kept free"):
                verb()
        assert lab(ctx, "shop").state == "ready"
        assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin", "first"]
        assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).state == "ready", "it frees space"


def test_a_rollback_that_does_not_fit_changes_nothing(world: World) -> None:
    """Protects from a lab whose first node is at one point in time, and the second at another."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        for volume, size in zip(snapshot.volumes_of(ctx, "shop"), (1, 4), strict=True):
            with ctx.storage.get(volume).path.open("r+b") as file:
                file.seek(4 * MIB)
                file.write(os.urandom(size * MIB))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="first"))
        world.capacity = ctx.storage.space().total - ctx.storage.space().free + 2 * MIB
    with world.open() as opened:
        ctx = replace(opened, settings=replace(opened.settings, space_floor=0))
        disks = [ctx.storage.get(v).path for v in snapshot.volumes_of(ctx, "shop")]
        before = [disk.stat() for disk in disks]
        with pytest.raises(HostUnfit, match="needed"):
            rollback(ctx, RollBack(lab="shop", to="first"), timeout=20.0)
        assert [disk.stat().st_ino for disk in disks] == [stat.st_ino for stat in before]
        assert not interrupted.exists(ctx, "shop")
        assert lab(ctx, "shop").state == "ready"
        assert len(ctx.hypervisor.guests()) == 2
