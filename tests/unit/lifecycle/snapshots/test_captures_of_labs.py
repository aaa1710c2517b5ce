"""Captures of labs with RAM, on the fakes: rollback, branches, removal, and what a kill leaves."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab import host, schedule
from lab.cli.terminal.signals import Interrupts
from lab.errors import Busy, Conflict, HostUnfit, InvalidSpec, LabError, NotFound
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import memory_of
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.snapshots import snapshot
from lab.names import CaptureRef, GuestName, Owner
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.views.labs import LabView
from lab.wait import Deadline, until
from tests.support.lifecycle_world import SIZE, World, at, named, unobserved
from tests.support.meanwhile import removed_meanwhile


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as opened:
        up(opened, named("shop"))
        query(opened, "shop", "n1", "CREATE TABLE t (a INT)")
        yield opened


def write(ctx: Context, name: str, value: int) -> None:
    query(ctx, name, "n1", f"INSERT INTO t VALUES ({value})")


def rows(ctx: Context, name: str) -> list[int]:
    return [int(str(row[0])) for row in query(ctx, name, "n2", "SELECT a FROM t").rows]


def ref(label: str, name: str = "shop") -> CaptureRef:
    return CaptureRef(Owner("lab", name), label)


def test_a_snapshot_has_the_ram_of_all_nodes(ctx: Context) -> None:
    view = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    assert view.warm
    assert view.pause > 0
    directory = ctx.home.directory(ref(view.label))
    assert {path.name for path in directory.iterdir()} == {"manifest.json", "n1.state", "n2.state"}
    assert view.ram > 0


def test_snapshots_are_listed_while_a_file_of_one_goes(ctx: Context) -> None:
    """Protects who only looks: another command may be completing that one, or removing it."""
    label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")).label
    (ctx.home.directory(ref(label)) / "n1.stream").symlink_to("gone")
    assert [view.label for view in snapshot.snapshots(ctx, "shop")] == ["origin", label]


def test_the_nodes_resume_from_a_snapshot(ctx: Context) -> None:
    write(ctx, "shop", 1)
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    write(ctx, "shop", 2)
    before = lab(ctx, "shop")
    after = rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0)
    assert (after.started, after.why_cold) == ("warm", "")
    assert after.password == before.password
    assert unobserved(after) == unobserved(before)
    assert rows(ctx, "shop") == [1]


def test_a_snapshot_of_a_lab_that_was_rolled_back_is_its_child(ctx: Context) -> None:
    """The third generation, and which is whose."""
    for value in (1, 2, 3):
        write(ctx, "shop", value)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name=f"s{value}"))
        assert rollback(ctx, RollBack(lab="shop", to=f"s{value}"), timeout=20.0).started == "warm"
    rollback(ctx, RollBack(lab="shop", to="s1"), timeout=20.0)
    write(ctx, "shop", 4)
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="s4"))
    parents = {view.name: view.parent for view in snapshot.snapshots(ctx, "shop")}
    labels = {view.name: f"lab:shop@{view.label}" for view in snapshot.snapshots(ctx, "shop")}
    assert parents["s2"] == labels["s1"] == parents["s4"]
    assert parents["s3"] == labels["s2"]
    for name, expected in {"s3": [1, 2, 3], "s4": [1, 4]}.items():
        assert rollback(ctx, RollBack(lab="shop", to=name), timeout=20.0).started == "warm"
        assert rows(ctx, "shop") == expected


def test_removing_a_parent_harms_no_child(ctx: Context) -> None:
    for value in (1, 2):
        write(ctx, "shop", value)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name=f"s{value}"))
    snapshot.remove(ctx, "shop", ["s1"])
    write(ctx, "shop", 3)
    assert rollback(ctx, RollBack(lab="shop", to="s2"), timeout=20.0).started == "warm"
    assert rows(ctx, "shop") == [1, 2]


def test_the_ram_of_nodes_that_were_booted_is_kept_whole(ctx: Context) -> None:
    power.stop(ctx, "shop")
    start(ctx, "shop", timeout=20.0)
    first = snapshot.take(ctx, TakeSnapshot(lab="shop", name="first"))
    assert {path.name for path in ctx.home.directory(ref(first.label)).iterdir()} >= {"n1.ram"}
    assert rollback(ctx, RollBack(lab="shop", to="first"), timeout=20.0).started == "warm"
    second = snapshot.take(ctx, TakeSnapshot(lab="shop", name="second"))
    assert not ctx.home.ram(ref(second.label), "n1").exists(), "it is the first's"
    with pytest.raises(Conflict, match="second"):
        snapshot.remove(ctx, "shop", ["first"])
    assert rollback(ctx, RollBack(lab="shop", to="second"), timeout=20.0).started == "warm"
    snapshot.remove(ctx, "shop", ["first", "second"])


@pytest.mark.parametrize("why", ["disks", "stopped", "node"])
def test_a_snapshot_without_ram(world: World, ctx: Context, why: str) -> None:
    if why == "stopped":
        power.stop(ctx, "shop")
    elif why == "node":
        power.stop(ctx, "shop", node="n2")
    view = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", disks_only=why == "disks"))
    assert not view.warm
    assert view.why_cold
    assert not [note for note in world.notes if view.why_cold in note], "the command prints it"
    after = rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0)
    assert after.started == "cold"
    assert "n2" in after.why_cold if why == "node" else after.why_cold


def test_a_snapshot_can_be_booted_from(ctx: Context) -> None:
    write(ctx, "shop", 1)
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    write(ctx, "shop", 2)
    after = rollback(ctx, RollBack(lab="shop", to="mine", cold=True), timeout=20.0)
    assert (after.started, "--cold" in after.why_cold) == ("cold", True)
    assert rows(ctx, "shop") == [1]


def test_ram_of_another_qemu_is_not_restored(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    world.version = "2"
    with world.open() as ctx:
        after = rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0)
        assert after.started == "cold"
        assert "another QEMU" in after.why_cold


def test_damaged_ram_is_not_restored(ctx: Context) -> None:
    write(ctx, "shop", 1)
    label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")).label
    ctx.home.device_state(ref(label), "n2").write_bytes(b"spoilt")
    after = rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0)
    assert after.started == "cold"
    assert "n2.state" in after.why_cold
    assert rows(ctx, "shop") == [1]


@pytest.mark.parametrize("file", ["n1.ram", "n1.state", "manifest.json"])
def test_a_snapshot_does_not_depend_on_a_damaged_template(ctx: Context, file: str) -> None:
    """Its RAM would be refused when it is restored, or would have what the damage did."""
    path = ctx.home.template(str(ctx.store.labs.get("shop").template)) / file
    path.chmod(0o600)
    with path.open("r+b") as damaged:
        damaged.write(b"spoilt")
    write(ctx, "shop", 1)
    view = snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    assert view.warm
    assert ctx.home.ram(ref(view.label), "n1").exists()
    assert rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0).started == "warm"
    assert rows(ctx, "shop") == [1]


def test_a_full_disk_takes_nothing(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
    before = world.there()

    def full(step: str) -> None:
        if step == "hypervisor.finish":
            raise HostUnfit("no space is left")

    with world.open(full) as ctx:
        with pytest.raises(HostUnfit, match="no space"):
            snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]
        assert query(ctx, "shop", "n1", "SELECT 1").rows
    assert world.there() == before


def test_a_guest_that_ends_while_it_is_paused_takes_nothing(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        hypervisor = ctx.hypervisor

    def dies(step: str) -> None:
        if step == "hypervisor.copy_memory":
            assert isinstance(hypervisor, FakeHypervisor)
            hypervisor.stop(GuestName("lab-shop-n2"), force=True)

    with world.open(dies) as ctx:
        with pytest.raises(NotFound):
            snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]
        assert ctx.hypervisor.guests()[GuestName("lab-shop-n1")].state == "running"
        assert start(ctx, "shop", timeout=20.0).state == "ready"


def test_an_interrupt_leaves_no_node_paused(world: World) -> None:
    """Protects users of a lab from Ctrl-C, at the worst moment."""
    with world.open() as ctx:
        up(ctx, named("shop"))

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    with world.open(at("hypervisor.resume", interrupt)) as ctx, Interrupts() as interrupts:
        with suppress(KeyboardInterrupt):
            snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        assert interrupts.came == 1
        assert {guest.state for guest in ctx.hypervisor.guests().values()} == {"running"}


@pytest.mark.rare
def test_a_snapshot_that_is_killed_is_none(world: World) -> None:
    """At no step is there half a snapshot; the next command removes what is left."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        write(ctx, "shop", 1)
    step, seen = 0, set()
    while name := world.killed(
        lambda ctx: snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")), step
    ):
        seen.add(name)
        with world.open() as ctx:
            if step % 2:
                start(ctx, "shop", timeout=20.0)
            found = [one for one in snapshot.snapshots(ctx, "shop") if one.name == "mine"]
            assert all(one.warm for one in found)
            again = snapshot.take(ctx, TakeSnapshot(lab="shop", name="again"))
            assert again.warm, "its nodes run again"
            assert rollback(ctx, RollBack(lab="shop", to="again"), timeout=20.0).started == "warm"
            assert rows(ctx, "shop") == [1]
            snapshot.remove(ctx, "shop", [*(one.label for one in found), again.label])
            left = ctx.home.directory(ref("origin")).parent
            assert not left.exists() or not list(left.iterdir())
        step += 1
    assert seen >= {"hypervisor.pause", "hypervisor.copy_memory", "storage.snapshot"}


@pytest.mark.parametrize("verb", ["rotate", "gc"])
@pytest.mark.parametrize("step", ["hypervisor.copy_memory", "storage.snapshot"])
def test_nodes_that_a_killed_snapshot_left_paused_are_resumed(
    world: World, verb: str, step: str
) -> None:
    """Protects clients of a lab whose user does not return."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
    assert (
        world.killed(lambda ctx: snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")), step)
        == step
    )
    with world.open() as ctx:
        assert states(ctx) == {"paused"}
        began = time.time()
        if verb == "gc":
            gc(ctx)
        else:
            snapshot.rotate(ctx, "shop")
        assert states(ctx) == {"running"}
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        assert all(
            ctx.hypervisor.servers.inside(guest).clock >= began for guest in ctx.hypervisor.guests()
        )
        assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]
        write(ctx, "shop", 1)


def test_nodes_that_somebody_paused_stay_paused(ctx: Context) -> None:
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", ttl=0.0))
    memory_of(ctx.hypervisor).pause(list(ctx.hypervisor.guests()))
    assert len(snapshot.rotate(ctx, "shop")) == 1
    gc(ctx)
    assert states(ctx) == {"paused"}


def test_a_snapshot_that_is_being_taken_is_not_due(world: World) -> None:
    """Protects schedules: their next snapshot waits for an hour after one that failed."""
    with world.open() as ctx:
        up(ctx, named("shop"))
    due: list[bool] = []

    def look() -> None:
        with world.open() as other:
            due.append(snapshot.is_due(other, other.store.labs.get("shop")))

    with world.open(at("storage.snapshot", look)) as ctx:
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    assert due == [False]


def states(ctx: Context) -> set[str]:
    """The states of all guests."""
    return {guest.state for guest in ctx.hypervisor.guests().values()}


@pytest.mark.rare
def test_a_rollback_that_is_killed_is_completed_by_start(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        write(ctx, "shop", 1)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    step, completed = 0, 0
    while world.killed(
        lambda ctx: rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0), step
    ):
        with world.open() as ctx:
            begun = interrupted.exists(ctx, "shop")
            view = start(ctx, "shop", timeout=20.0)
            assert view.state == "ready"
            assert rows(ctx, "shop")[:1] == [1]
            if begun:
                completed += 1
                assert view.started == "warm"
                assert rows(ctx, "shop") == [1]
                assert not interrupted.exists(ctx, "shop")
            write(ctx, "shop", 2)
        step += 3
    assert completed > 3


@pytest.mark.parametrize("to", ["mine", "origin"])
@pytest.mark.parametrize("step", ["hypervisor.restore", "hypervisor.personalise"])
def test_a_rollback_that_fails_leaves_a_lab_that_is_stopped(
    world: World, to: str, step: str
) -> None:
    """Protects who reads its state: no guest runs, and both ways to repair it work."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))

    calls: list[str] = []

    def fail(now: str) -> None:
        if now == step:
            calls.append(now)
            if len(calls) > 1:
                raise HostUnfit("the second node fails")

    repairs: list[Callable[[Context], LabView]] = [
        lambda ctx: rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0),
        lambda ctx: start(ctx, "shop", timeout=20.0),
    ]
    for repair in repairs:
        calls.clear()
        with world.open(fail) as ctx, pytest.raises(HostUnfit, match="second node") as failed:
            rollback(ctx, RollBack(lab="shop", to=to), timeout=20.0)
        assert "lab start shop" in failed.value.hint
        assert "lab rollback shop --to" in failed.value.hint
        with world.open() as ctx:
            assert ctx.store.labs.get("shop").state == "stopped"
            assert ctx.hypervisor.guests() == {}
            assert repair(ctx).started == "warm"


@contextmanager
def no_room() -> Iterator[None]:
    """No file can be written to in the block, though files can be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_rollback_that_could_not_be_recorded_has_not_begun(ctx: Context) -> None:
    """Protects `lab start`, which reads what was to be rolled back."""
    with no_room(), pytest.raises(HostUnfit):
        interrupted.begin(ctx, "shop", "origin", None)
    assert not interrupted.exists(ctx, "shop")
    assert start(ctx, "shop", timeout=20.0).state == "ready"


def test_what_is_recorded_of_a_rollback_survives_a_power_loss(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of disks of two moments `lab start` must know; no rollback is done again after its end."""
    synced: list[str] = []
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    directory = str(ctx.home.directory(Owner("lab", "shop")))
    interrupted.begin(ctx, "shop", "origin", None)
    assert any(path.startswith(f"{directory}/") for path in synced)
    assert synced[-1] == directory
    synced.clear()
    interrupted.end(ctx, "shop")
    assert synced == [directory]


def test_a_branch_is_a_clone_that_is_alone(ctx: Context) -> None:
    write(ctx, "shop", 1)
    view, *more = branch(ctx, BranchLab(lab="shop"), timeout=20.0)
    assert not more
    assert (view.name, view.state, view.started) == ("shop-2", "ready", "warm")
    origin = lab(ctx, "shop")
    assert view.password != origin.password
    assert {n.sql_port for n in view.nodes}.isdisjoint(n.sql_port for n in origin.nodes)
    write(ctx, "shop-2", 2)
    assert rows(ctx, "shop-2") == [1, 2]
    assert rows(ctx, "shop") == [1]


def test_branches_of_a_snapshot(ctx: Context) -> None:
    write(ctx, "shop", 1)
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    write(ctx, "shop", 2)
    found = branch(
        ctx, BranchLab(lab="shop", name="try", at="mine", count=3, ttl=3600.0), timeout=20.0
    )
    assert [view.name for view in found] == ["try-1", "try-2", "try-3"]
    assert all(view.expires_at is not None for view in found)
    assert [rows(ctx, view.name) for view in found] == [[1]] * 3
    shown = {view.name: view.branches for view in snapshot.snapshots(ctx, "shop")}
    assert shown["mine"] == ("try-1", "try-2", "try-3")


def test_a_branch_of_a_branch_and_back(ctx: Context) -> None:
    write(ctx, "shop", 1)
    branch(ctx, BranchLab(lab="shop", name="child"), timeout=20.0)
    write(ctx, "child", 2)
    branch(ctx, BranchLab(lab="child", name="grandchild"), timeout=20.0)
    write(ctx, "grandchild", 3)
    assert rows(ctx, "grandchild") == [1, 2, 3]
    assert rollback(ctx, RollBack(lab="grandchild"), timeout=20.0).started == "warm"
    assert rows(ctx, "grandchild") == [1, 2]
    write(ctx, "grandchild", 4)
    assert rollback(ctx, RollBack(lab="grandchild", cold=True), timeout=20.0).started == "cold"
    assert rows(ctx, "grandchild") == [1, 2]
    power.stop(ctx, "grandchild")
    assert start(ctx, "grandchild", timeout=20.0).state == "ready"
    assert rollback(ctx, RollBack(lab="child"), timeout=20.0).started == "warm"
    assert rows(ctx, "child") == [1]


def identities(ctx: Context, name: str) -> list[list[str]]:
    """What the guests of a lab were last given as identities."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    guests = [GuestName(node.guest) for node in lab(ctx, name).nodes]
    return [ctx.hypervisor.servers.inside(guest).identity for guest in guests]


def test_a_branch_with_an_identity_of_its_own(ctx: Context) -> None:
    """Protects labs that are connected to each other; what it was given it has for good."""
    write(ctx, "shop", 1)
    for name in ("one", "two"):
        branch(ctx, BranchLab(lab="shop", name=name, identity="new"), timeout=20.0)
    assert identities(ctx, "shop") == [[], []]
    given = identities(ctx, "one")
    for _, own, domain, history, position in given:
        assert 1 << 20 < int(own) < 1 << 32
        assert (domain, history) == (given[0][2], given[0][3])
        assert int(position) > 0
    servers = [words[1] for name in ("one", "two") for words in identities(ctx, name)]
    assert len(set(servers)) == 4
    assert {words[3] for words in identities(ctx, "two")}.isdisjoint({given[0][3]})
    write(ctx, "one", 2)
    snapshot.take(ctx, TakeSnapshot(lab="one", name="mine"))
    for to, cold, found in (("mine", False, [1, 2]), ("", False, [1]), ("", True, [1])):
        rollback(ctx, RollBack(lab="one", to=to or "origin", cold=cold), timeout=20.0)
        assert rows(ctx, "one") == found
        assert [words[:4] for words in identities(ctx, "one")] == [words[:4] for words in given]
    with pytest.raises(Conflict, match="an identity of its own"):
        rollback(ctx, RollBack(lab="one", node="n1"), timeout=20.0)
    branch(ctx, BranchLab(lab="one", name="child"), timeout=20.0)
    assert [words[:4] for words in identities(ctx, "child")] == [words[:4] for words in given]


def test_a_branch_of_a_snapshot_that_never_had_ram_says_so(ctx: Context) -> None:
    """Those that were taken before snapshots had files are not damaged."""
    ctx.storage.snapshot(snapshot.volumes_of(ctx, "shop"), schedule.label("mine", time.time()))
    (view,) = branch(ctx, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)
    for found in (view, rollback(ctx, RollBack(lab="try"), timeout=20.0)):
        assert found.started == "cold"
        assert "the snapshot has no RAM" in found.why_cold


def test_a_branch_boots_where_ram_does_not_fit(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        write(ctx, "shop", 1)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    world.version = "2"
    with world.open() as ctx:
        (view,) = branch(ctx, BranchLab(lab="shop", at="mine"), timeout=20.0)
        assert (view.state, view.started) == ("ready", "cold")
        assert rows(ctx, view.name) == [1]


@pytest.mark.parametrize(("name", "count"), [("Shop", 1), ("a" * 23, 10)])
def test_no_branch_is_made_of_a_wrong_name(ctx: Context, name: str, count: int) -> None:
    with pytest.raises(InvalidSpec):
        branch(ctx, BranchLab(lab="shop", name=name, count=count), timeout=20.0)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]


def test_too_little_memory_for_branches(ctx: Context) -> None:
    """For the first, nothing is made; for so many, what they will have changed counts."""
    poor = replace(ctx, settings=replace(ctx.settings, memory_floor=1 << 60))
    with pytest.raises(HostUnfit, match="2 nodes"):
        branch(poor, BranchLab(lab="shop", count=10), timeout=20.0)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", disks_only=True))
    room = host.memory().available - 20 * SIZE.memory // 2
    tight = replace(ctx, settings=replace(ctx.settings, memory_floor=room))
    with pytest.raises(HostUnfit, match="20 nodes"):
        branch(tight, BranchLab(lab="shop", at="mine", count=10), timeout=20.0)
    assert [record.name for record in ctx.store.labs.all()] == ["shop"]


@pytest.mark.parametrize("failing", [1, 3])
def test_a_branch_that_fails_leaves_no_snapshot(world: World, failing: int) -> None:
    """Protects space and quotas; the branches that were made before it need theirs."""
    with world.open() as ctx:
        up(ctx, named("shop"))
    restored: list[str] = []

    def fail(step: str) -> None:
        if step == "hypervisor.restore":
            restored.append(step)
            if len(restored) == failing:  # a lab has two nodes
                raise HostUnfit("no memory is left")

    with world.open(fail) as ctx:
        with pytest.raises(HostUnfit, match="no memory is left"):
            branch(ctx, BranchLab(lab="shop", name="try", count=2), timeout=20.0)
        made = ["try-1"] if failing == 3 else []
        assert [record.name for record in ctx.store.labs.all()] == ["shop", *made]
        left = [view.branches for view in snapshot.snapshots(ctx, "shop") if view.at is not None]
        assert left == [tuple(made)] * len(made)


def test_a_branch_that_fails_leaves_the_snapshot_that_it_was_to_clone(ctx: Context) -> None:
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    with pytest.raises(Conflict, match="shop"):
        branch(ctx, BranchLab(lab="shop", name="shop", at="mine"), timeout=20.0)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin", "mine"]


def test_a_name_that_is_taken_is_refused(ctx: Context) -> None:
    with pytest.raises(Conflict, match="shop"):
        branch(ctx, BranchLab(lab="shop", name="shop"), timeout=20.0)


@pytest.mark.rare
def test_a_branch_that_is_killed_leaves_what_gc_removes(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    before = world.there()
    step = 0
    while world.killed(
        lambda ctx: branch(ctx, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0), step
    ):
        with world.open() as ctx:
            made = ctx.store.labs.find("try")
            if made is not None and made.state == "ready":
                down(ctx, "try")
            gc(ctx)
        assert world.there() == before
        step += 2
    assert step > 20


def test_a_killed_branch_keeps_its_snapshot_for_two_minutes(world: World) -> None:
    """Protects the disk: only a snapshot whose branches were made stays for an hour."""

    def seconds_left() -> list[float]:
        with world.open() as ctx:
            gc(ctx)
            found = snapshot.snapshots(ctx, "shop")
        return [one.expires_at - time.time() for one in found if one.expires_at is not None]

    with world.open() as ctx:
        up(ctx, named("shop"))
    killed = world.killed(
        lambda ctx: branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0),
        "hypervisor.restore",
    )
    assert killed
    (left,) = seconds_left()
    assert 60 < left <= 120
    with world.open() as ctx:
        branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0)
    assert 3500 < max(seconds_left()) <= 3600


def test_what_has_branches_is_not_removed(ctx: Context) -> None:
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    branch(ctx, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)
    with pytest.raises(Conflict, match="branches: try"):
        snapshot.remove(ctx, "shop", ["mine"])
    with pytest.raises(Conflict, match="branches: try"):
        down(ctx, "shop", force=True)
    assert lab(ctx, "shop").state == "ready"
    down(ctx, "try")
    snapshot.remove(ctx, "shop", ["mine"])
    down(ctx, "shop")


@pytest.mark.parametrize("step", ["state.commit", "clone.begin", "ready.begin"])
def test_a_snapshot_is_not_removed_while_it_is_branched(world: World, step: str) -> None:
    """Protects a branch from failing midway; expiry removes the snapshot later."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", ttl=0.0))
    answers: list[type[Exception] | list[str]] = []
    with world.open() as other:

        def remove() -> None:
            answers.append(snapshot.rotate(other, "shop"))
            try:
                snapshot.remove(other, "shop", ["mine"], force=True)
            except LabError as error:
                answers.append(type(error))

        with world.open(at(step, remove)) as ctx:
            branch(ctx, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)
    with world.open() as ctx:
        assert answers == [[], Busy]
        assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin", "mine"]
        down(ctx, "try")
        assert len(snapshot.rotate(ctx, "shop")) == 1


def test_a_branch_of_a_snapshot_that_is_being_removed_makes_nothing(world: World) -> None:
    """Protects from a lab that is made and removed again: it waits, and finds no snapshot."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    answers: list[Future[LabView]] = []
    guard = threading.Lock()
    with ThreadPoolExecutor(1) as pool:

        def make() -> LabView:
            with world.open() as other:
                return branch(other, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)[0]

        def hook(step: str) -> None:
            if step != "storage.drop":
                return
            with guard:  # no disk's snapshot is gone when the branch looks
                if not answers:
                    answers.append(pool.submit(make))
                    made = until(lambda: ctx.store.labs.find("try"), Deadline.after(0.5))
                    assert made is None

        with world.open(hook) as ctx:
            snapshot.remove(ctx, "shop", ["mine"])
            with pytest.raises(NotFound, match="no snapshot 'mine"):
                answers[0].result(20.0)


def test_a_branch_that_is_made_while_its_parent_goes(world: World) -> None:
    """Protects a branch: what it is a clone of stays whole, though its removal had begun."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))

    def make() -> None:
        with world.open() as other:
            branch(other, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)

    with world.open(at("storage.destroy", make)) as ctx:
        with pytest.raises(Conflict):
            down(ctx, "shop")
        gc(ctx)
        assert rollback(ctx, RollBack(lab="try"), timeout=20.0).started == "warm"
        down(ctx, "try")
        assert [lab.name for lab in ctx.store.labs.all()] == []


def test_a_removal_can_wait_for_the_last_branch(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("kept"))
    before = world.there()
    with world.open() as ctx:
        up(ctx, named("shop"))
        branch(ctx, BranchLab(lab="shop", name="try", count=2), timeout=20.0)
        assert not down(ctx, "shop", defer=True)
        assert lab(ctx, "shop").state == "removing"
        assert rollback(ctx, RollBack(lab="try-1"), timeout=20.0).started == "warm"
        down(ctx, "try-1")
        assert lab(ctx, "shop").state == "removing"
        gc(ctx)
        assert lab(ctx, "try-2").state == "ready"
        down(ctx, "try-2")
    assert world.there() == before


def test_what_a_sweep_removes_with_the_last_branch_is_gone_too(ctx: Context) -> None:
    """Protects what `lab down` says where another process removes the rest a moment sooner."""
    branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0)
    down(ctx, "shop", defer=True)
    owner = Owner("lab", "shop")
    with removed_meanwhile(ctx, owner, after="try", removal=lambda: forget(ctx, owner)):
        down(ctx, "try")
        assert [record.name for record in ctx.store.labs.all()] == []


def test_a_name_is_taken_until_the_last_branch_is_gone(world: World) -> None:
    """Protects branches from `lab up` and `lab branch`, which remove what killed commands left."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0)
        branch(ctx, BranchLab(lab="try", name="deep"), timeout=20.0)
        down(ctx, "shop", defer=True)
        down(ctx, "try", defer=True)
        snapshot.take(ctx, TakeSnapshot(lab="deep", name="mine"))
        before = world.there()
        with pytest.raises(Conflict, match="shop") as refused:
            up(ctx, named("shop"))
        assert "lab down try" in refused.value.hint
        with pytest.raises(Conflict, match="try"):
            branch(ctx, BranchLab(lab="deep", name="try", at="mine"), timeout=20.0)
        assert not any("killed" in note for note in world.notes)
        assert world.there() == before
        down(ctx, "deep")
        assert [record.name for record in ctx.store.labs.all()] == []


def test_gc_removes_a_lab_with_its_last_branch(ctx: Context) -> None:
    branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0)
    branch(ctx, BranchLab(lab="try", name="deep"), timeout=20.0)
    for name in ("shop", "try"):
        down(ctx, name, defer=True)
    ctx.store.labs.update("deep", expires_at=time.time() - 1)
    gc(ctx)
    assert [record.name for record in ctx.store.labs.all()] == []


def test_a_protected_snapshot_stays(ctx: Context) -> None:
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", protected=True, ttl=0.0))
    gc(ctx)
    with pytest.raises(Conflict, match="protected"):
        snapshot.remove(ctx, "shop", ["mine"])
    snapshot.protect(ctx, "shop", "mine", protected=False)
    gc(ctx)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin"]


def test_the_origin_is_not_removed(ctx: Context) -> None:
    """Protects `lab rollback` without a label: that state is there as long as the lab is."""
    for force in (False, True):
        with pytest.raises(Conflict, match="origin is the state of shop after its creation"):
            snapshot.remove(ctx, "shop", ["origin"], force=force)
    assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).state == "ready"


@pytest.mark.parametrize("of", ["lab", "storage"])
def test_a_snapshot_that_could_not_be_protected_stays(
    ctx: Context, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were taken before snapshots had files, and the origin, get theirs now."""
    if of == "storage":
        ctx.storage.snapshot(snapshot.volumes_of(ctx, "shop"), schedule.label("mine", time.time()))
    wanted = {"lab": "origin", "storage": "mine"}[of]

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(HostUnfit):
            snapshot.protect(ctx, "shop", wanted, protected=True)
    gc(ctx)
    assert wanted in [view.name for view in snapshot.snapshots(ctx, "shop")]
    snapshot.protect(ctx, "shop", wanted, protected=True)
    with pytest.raises(Conflict, match=r"protected|after its creation"):
        snapshot.remove(ctx, "shop", [wanted])


def test_a_snapshot_expires_when_nothing_descends_from_it(ctx: Context) -> None:
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine", ttl=0.0))
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="later", ttl=3600.0))
    branch(ctx, BranchLab(lab="shop", name="try", at="mine"), timeout=20.0)
    gc(ctx)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin", "mine", "later"]
    down(ctx, "try")
    gc(ctx)
    assert [view.name for view in snapshot.snapshots(ctx, "shop")] == ["origin", "later"]
    assert snapshot.snapshots(ctx, "shop")[1].expires_at > time.time()  # type: ignore[operator]


def test_scheduled_snapshots_have_disks_only(ctx: Context) -> None:
    ctx.store.labs.update("shop", snapshots="hourly:2")
    assert len(snapshot.rotate(ctx, "shop")) == 1
    (hourly,) = [one for one in snapshot.snapshots(ctx, "shop") if one.name == "hourly"]
    assert not hourly.warm


def test_a_lease_that_ends_leaves_branches_alone(ctx: Context) -> None:
    branch(ctx, BranchLab(lab="shop", name="try"), timeout=20.0)
    ctx.store.labs.update("shop", expires_at=time.time() - 1)
    assert any("lab:shop" in line for line in gc(ctx).removed)
    assert lab(ctx, "shop").state == "removing"
    assert not any("lab:shop" in line for line in gc(ctx).removed)
    assert lab(ctx, "try").state == "ready"
    down(ctx, "try")
    assert [record.name for record in ctx.store.labs.all()] == []


def connected(ctx: Context, name: str, node: str, what: str) -> None:
    """Let a client have a session in a node's server."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    ctx.hypervisor.servers.alter(
        GuestName(f"lab-{name}-{node}"), lambda inside: inside.sessions.append(what)
    )


@pytest.mark.parametrize("keep", [False, True])
def test_sessions_of_a_capture_are_ended(world: World, keep: bool) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        connected(ctx, "shop", "n1", "SELECT 1")
        connected(ctx, "shop", "n2", "SELECT 2")
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        (made,) = branch(ctx, BranchLab(lab="shop", at="mine", keep_sessions=keep), timeout=20.0)
        rollback(ctx, RollBack(lab="shop", to="mine", keep_sessions=keep), timeout=20.0)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        for name in ("shop", made.name):
            found = ctx.hypervisor.servers.inside(GuestName(f"lab-{name}-n1")).sessions
            assert bool(found) == keep
    ended = [note for note in world.notes if "ended 2 client sessions" in note]
    assert len(ended) == (0 if keep else 2)


def test_servers_that_get_an_identity_keep_no_session(ctx: Context) -> None:
    """They restart one after the other: what a session commits meanwhile only some would have."""
    connected(ctx, "shop", "n1", "UPDATE t SET a = 2")
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    branch(
        ctx,
        BranchLab(lab="shop", name="try", at="mine", identity="new", keep_sessions=True),
        timeout=20.0,
    )
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    assert ctx.hypervisor.servers.inside(GuestName("lab-try-n1")).sessions == []


def test_each_restore_of_a_capture_reseeds(ctx: Context) -> None:
    """The clock of a lab in use is right: that it is set renews nothing."""
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    seeds = []
    for view in branch(ctx, BranchLab(lab="shop", at="mine", count=2), timeout=20.0):
        seeds += [ctx.hypervisor.servers.inside(GuestName(node.guest)).seeds for node in view.nodes]
    for _ in range(2):
        for node in rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0).nodes:
            seeds.append(ctx.hypervisor.servers.inside(GuestName(node.guest)).seeds)
    assert all(seeds)
    assert len(set(seeds)) == len(seeds)
