"""Stopping and starting, also where the last stop or start did not come to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from lab import host
from lab.cli.terminal.show import lab_text
from lab.errors import HostUnfit, InvalidSpec, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities, Hypervisor, memory_of
from lab.lifecycle.captures.freeze import write_out
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import node_access, power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query, results
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, labs, nodes_of, status
from lab.lifecycle.snapshots import snapshot
from lab.names import GuestName
from lab.progress import Event, Progress
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, lab_request, make_template, named

N1, N2 = GuestName("lab-shop-n1"), GuestName("lab-shop-n2")


def make(ctx: Context) -> None:
    make_template(ctx)
    up(ctx, named("shop"))
    query(ctx, "shop", "n2", "CREATE TABLE t (a INT)")


def stop(ctx: Context) -> None:
    power.stop(ctx, "shop")


@pytest.mark.rare
def test_a_stop_that_was_killed(world: World) -> None:
    """At each of its steps: what is shown is true, and every verb works from there."""
    with world.open() as ctx:
        make(ctx)
    step, seen = 0, [""]
    while step == 0 or seen[-1]:
        seen.append(world.killed(stop, step))
        with world.open() as ctx:
            _is_told(ctx)
            if step % 3 == 0:
                down(ctx, "shop")
                assert ctx.hypervisor.guests() == {}
                up(ctx, named("shop"))
                query(ctx, "shop", "n2", "CREATE TABLE t (a INT)")
            elif step % 3 == 1:
                assert power.stop(ctx, "shop").state == "stopped"
            assert start(ctx, "shop", timeout=10).state == "ready"
            assert query(ctx, "shop", "n1", "SELECT COUNT(*) FROM t").rows == ((0,),)
        step += 1
    assert {"hypervisor.stop", "state.commit"} <= set(seen)


def _is_told(ctx: Context) -> None:
    there = ctx.hypervisor.guests()
    states: tuple[str, ...] = tuple(there[g].state if g in there else "stopped" for g in (N1, N2))
    whole: dict[tuple[str, ...], str] = {
        ("running", "running"): "ready",
        ("stopped", "stopped"): "stopped",
    }
    view = lab(ctx, "shop")
    assert view.state == whole.get(states, "degraded"), states
    assert tuple(node.state for node in view.nodes) in (states, ("ready", "ready"))
    assert labs(ctx)[0].state == status(ctx, "shop").lab.state == view.state


def test_resumed_nodes_have_the_right_clock(world: World) -> None:
    """Clocks stop while guests are paused."""
    with world.open() as ctx:
        make(ctx)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        memory_of(ctx.hypervisor).pause([N1])
        began = time.time()
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert (
            ctx.hypervisor.servers.inside(N1).clock
            >= began
            > ctx.hypervisor.servers.inside(N2).clock
        )


def test_a_paused_lab_does_not_pass_for_ready(world: World) -> None:
    with world.open() as ctx:
        make(ctx)
        memory_of(ctx.hypervisor).pause([N1, N2])
        view = lab(ctx, "shop")
        assert (view.state, [node.state for node in view.nodes]) == ("degraded", ["paused"] * 2)


def test_a_node_that_cannot_write_is_told_and_goes_on(world: World) -> None:
    """Protects labs on a full disk: the others keep running, and this one resumes."""
    why = "a disk could not be written: no space is left for it"
    with world.open() as ctx:
        make(ctx)
        up(ctx, named("other"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        ctx.hypervisor.halt(N1, why)
        view = lab(ctx, "shop")
        assert (view.state, [node.why for node in view.nodes]) == ("not-primary", [why, ""])
        halted = next(line for line in lab_text(view, 0).splitlines() if "halted" in line)
        assert why in halted
        assert "`lab start shop`" in halted
        assert lab(ctx, "other").state == "ready"
        view = start(ctx, "shop", timeout=10)
        assert (view.state, [node.why for node in view.nodes]) == ("ready", ["", ""])
        assert "halted" not in lab_text(view, 0)


def test_a_start_that_failed_and_a_wait_that_succeeds(world: World) -> None:
    """The nodes keep running; who waited for them knows that the lab is ready, and so do all."""
    with world.open() as ctx:
        make(ctx)
        power.stop(ctx, "shop")

    def fail(step: str) -> None:
        if step == "ready.begin":
            raise NotReady("no")

    with world.open(fail) as ctx, pytest.raises(NotReady):
        start(ctx, "shop", timeout=10)
    with world.open() as ctx:
        assert lab(ctx, "shop").state == "degraded"
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert lab(ctx, "shop").state == "ready"
        power.stop(ctx, "shop")
    with world.open(fail) as ctx, pytest.raises(NotReady):
        start(ctx, "shop", timeout=10)
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=10).state == "ready"


class Hung:
    """A hypervisor whose guests' agents do not answer: a program in them would run without end."""

    def __init__(self, real: Hypervisor) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def channel(self, guest: GuestName) -> Hung:  # noqa: ARG002
        return self

    def ping(self, timeout: float) -> bool:
        assert timeout <= 10
        return False

    def run(self, argv: Sequence[str], **_: object) -> bytes:
        raise NotReady("the guest agent does not answer", details=[*argv])


def test_a_guest_that_hangs_is_reported(world: World) -> None:
    """Protects `lab exec`, which has an hour by default, from waiting for a guest that hangs."""
    with world.open() as ctx:
        make(ctx)
        hung = replace(ctx, hypervisor=cast("Hypervisor", Hung(ctx.hypervisor)))
        with pytest.raises(NotReady, match="agent of n1 of shop does not answer") as refused:
            node_access.execute(hung, "shop", "n1", ["/bin/sync"], timeout=3600)
        assert "lab logs shop --node n1 --source console" in refused.value.hint


def test_a_node_that_does_not_run_is_not_entered(world: World) -> None:
    """The error names the node and the remedy, not what libvirt calls it."""
    with world.open() as ctx:
        make(ctx)
        power.stop(ctx, "shop", node="n2", force=True)
        with pytest.raises(NotReady, match="n2 of shop does not run") as refused:
            node_access.execute(ctx, "shop", "n2", ["/bin/sync"], timeout=1)
        assert "lab start shop --node n2" in refused.value.hint
        with pytest.raises(NotReady, match="n2 of shop does not run"):
            node_access.console_argv(ctx, "shop", "n2")
        assert start_node(ctx, "shop", "n2", timeout=10).state == "ready"


def test_a_node_that_is_paused_is_not_entered(world: World) -> None:
    """Protects from commands that hang: of a halted node the cause and the remedy are said."""
    why = "a disk could not be written: no space is left for it"
    with world.open() as ctx:
        make(ctx)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        verbs: list[Callable[[], object]] = [
            lambda: node_access.execute(ctx, "shop", "n1", ["/bin/sync"], timeout=1),
            lambda: node_access.ssh_argv(ctx, "shop", "n1"),
            lambda: node_access.ssh_login(ctx, "shop", "n1"),
            lambda: node_access.logs(ctx, "shop", "n1", "journal", lines=1),
            lambda: query(ctx, "shop", "n1", "SELECT 1"),
            lambda: results(ctx, "shop", "n1", "SELECT 1"),
        ]
        ctx.hypervisor.halt(N1, why)
        for verb in verbs:
            with pytest.raises(NotReady, match=f"n1 of shop is halted: {why}") as refused:
                verb()
            assert "`lab start shop`" in refused.value.hint
        start(ctx, "shop", timeout=10)
        memory_of(ctx.hypervisor).pause([N1])
        for verb in verbs:
            with pytest.raises(NotReady, match="n1 of shop is paused"):
                verb()


def test_what_is_too_long_for_the_agent_is_refused(world: World) -> None:
    """Protects the agent: libvirt drops it, and the node's with it, after answers that are long."""
    with world.open() as ctx:
        make(ctx)
        sent = b"x" * (node_access.MOST_IN + 1)
        with pytest.raises(InvalidSpec, match="64 KiB of stdin") as refused:
            node_access.execute(ctx, "shop", "n1", ["/bin/sync"], stdin=sent, timeout=1)
        assert "without --agent" in refused.value.hint


def test_a_snapshot_says_whose_flush_is_left_out(world: World) -> None:
    """Protects who restores it: what the servers had not written yet is not in it."""
    heard: list[Event] = []
    with world.open() as ctx:
        make(ctx)
        hung = replace(
            ctx,
            hypervisor=cast("Hypervisor", Hung(ctx.hypervisor)),
            progress=Progress(heard.append),
        )
        one, other, *_ = nodes_of(ctx, "shop")
        write_out(hung, [one], ["FLUSH ENGINE LOGS"])
        write_out(ctx, [other], ["FLUSH ENGINE LOGS"])
    [note] = [event.text for event in heard if event.state == "note"]
    assert note.startswith("lab-shop-n1 was not flushed")
    assert "does not answer" in note


def test_nodes_without_a_server_are_not_called_unflushed(world: World) -> None:
    """Protects from a false alarm: each stop and snapshot of a lab with a proxy printed it."""
    heard: list[Event] = []
    with world.open() as opened:
        ctx = replace(opened, progress=Progress(heard.append))
        up(ctx, named("shop", nodes=2, proxy="haproxy", arbiter=True))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="taken"))
        power.stop(ctx, "shop")
    assert [event.text for event in heard if "flushed" in event.text] == []


@pytest.mark.parametrize("blueprint", ["galera", "replication", "group"])
@pytest.mark.parametrize("to", [pytest.param("origin", marks=pytest.mark.rare), "taken"])
def test_a_node_of_a_lab_that_is_stopped_goes_back(world: World, blueprint: str, to: str) -> None:
    """Protects from a wait for others that do not run, and from a rollback that never ends."""
    with world.open() as ctx:
        up(ctx, lab_request(blueprint, "shop", nodes=3))
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="taken"))
        power.stop(ctx, "shop")
        found = rollback(ctx, RollBack(lab="shop", to=to, node="n2"), timeout=20.0)
        assert found.state == "ready"
        assert query(ctx, "shop", "n2", "SELECT COUNT(*) FROM t").rows == ((0,),)


def test_users_are_led_to_a_node_that_runs(world: World) -> None:
    """Protects who names no node: another program may listen at a stopped node's port."""
    with world.open() as ctx:
        up(ctx, lab_request("galera", "shop", nodes=3))
        power.stop(ctx, "shop", node="n1")
        found = lab(ctx, "shop")
        second = found.nodes[1]
        assert found.entry == second
        assert found.dsn.endswith(f"@{second.address}/")
        assert query(ctx, "shop", None, "SELECT 1").rows
        power.stop(ctx, "shop")
        with pytest.raises(NotReady, match="n1 of shop does not run"):
            query(ctx, "shop", None, "SELECT 1")


def test_start_needs_memory(world: World) -> None:
    """Before anything boots, with figures; what runs already is not counted again."""
    with world.open() as ctx:
        make(ctx)
        poor = replace(ctx, settings=replace(ctx.settings, memory_floor=1 << 60))
        assert start(poor, "shop", timeout=10).state == "ready"
        power.stop(ctx, "shop")
        with pytest.raises(HostUnfit, match=r"2 nodes of 384M need 768M of memory; .* available"):
            start(poor, "shop", timeout=10)
        assert ctx.hypervisor.guests() == {}
        with pytest.raises(HostUnfit, match="a node needs 384M of memory"):
            start_node(poor, "shop", "n2", timeout=10)
        assert lab(ctx, "shop").state == "stopped"
        assert start(ctx, "shop", timeout=10).state == "ready"


@pytest.mark.parametrize("verb", ["start", "wait"])
def test_clocks_that_stood_still_are_set(world: World, verb: str) -> None:
    """Protects labs on a laptop: after its sleep all guests lag, and nothing else sets them."""
    with world.open() as ctx:
        make(ctx)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        ctx.hypervisor.servers.put_clock(N1, -3600.0)
        ctx.hypervisor.servers.put_clock(N2, -1.0)
        if verb == "start":
            start(ctx, "shop", timeout=10)
        else:
            wait(ctx, "shop", timeout=10)
        assert abs(ctx.hypervisor.servers.clock(N1) - time.time()) < 10  # not an hour
        # Smaller differences are not corrected.
        assert ctx.hypervisor.servers.clock(N2) - time.time() < -0.5
    assert [note for note in world.notes if "clock" in note] == [
        "the clock of n1 was wrong and has been corrected"
    ]


def test_what_is_said_of_the_start_is_of_the_last_one(world: World) -> None:
    """`ready in 3.5 s (warm)` was printed after a cold start of a minute, and by `stop`."""
    with world.open() as ctx:
        make(ctx)
        assert lab(ctx, "shop").started == "warm"
        label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="s1", disks_only=True)).label
        view = power.stop(ctx, "shop")
        assert (view.started, view.seconds, view.why_cold) == ("", 0.0, "")
        assert "started" not in lab_text(view, 0)
        view = start(ctx, "shop", timeout=10)
        assert (view.started, view.why_cold) == ("cold", "`lab start` boots the nodes")
        assert view.seconds > 0
        again = start(ctx, "shop", timeout=10)
        assert (again.started, again.seconds) == ("cold", view.seconds)  # it ran already
        view = rollback(ctx, RollBack(lab="shop"), timeout=10)
        assert (view.started, view.why_cold) == ("warm", "")
        view = rollback(ctx, RollBack(lab="shop", to=label), timeout=10)
        assert view.started == "cold"
        assert view.why_cold == f"rolled back to {label}: it was taken with disks only"
        power.stop(ctx, "shop", node="n2", force=True)
        assert start_node(ctx, "shop", "n2", timeout=10).seconds == view.seconds


def test_a_start_without_native_aio_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from guests of which only some start: `lab up` has the same check."""
    if host.aio_left() is None:
        pytest.skip("nothing limits native AIO here")
    with world.open() as ctx:
        up(ctx, named("shop"))
        power.stop(ctx, "shop")
    world.capabilities = Capabilities("fake", "fake", native_aio=True)
    with world.open() as ctx:
        with monkeypatch.context() as limited:
            limited.setattr(host, "AIO_OF_GUEST", 1 << 40)
            with pytest.raises(HostUnfit, match="native AIO"):
                start(ctx, "shop", timeout=10)
            with pytest.raises(HostUnfit, match=r"a node needs .* native AIO"):
                start_node(ctx, "shop", "n1", timeout=10)
            assert ctx.hypervisor.guests() == {}
        assert start(ctx, "shop", timeout=10).state == "ready"
