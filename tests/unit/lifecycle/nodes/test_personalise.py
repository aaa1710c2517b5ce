"""Personalising clones: a cluster that is not primary for a moment, and known host keys."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from lab.blueprints import blueprint
from lab.blueprints.galera import GALERA
from lab.errors import CommandFailed, NotReady
from lab.fake import channel
from lab.fake.hypervisor import FakeHypervisor
from lab.fake.inside import READ_LOCK, Inside
from lab.guest import identity
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import hand_over
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.hand_over import Started
from lab.lifecycle.nodes.inspect import images_of, lab, running_nodes
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import prepare, send_message
from lab.lifecycle.snapshots import snapshot
from lab.names import GuestName, Owner
from lab.progress import never_halt
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.wait import Deadline
from tests.support.lifecycle_world import World, make_template, named

N1, N2 = GuestName("lab-shop-n1"), GuestName("lab-shop-n2")


class HeldBack:
    """A hook: when clones are first personalised, n1 is in no primary component for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.hypervisor: FakeHypervisor | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def __call__(self, step: str) -> None:
        if step != "hypervisor.personalise" or self.hypervisor is None:
            return
        with self._lock:
            if self._timer is None:
                self._set("inconsistent")
                self._timer = threading.Timer(self.seconds, self._set, [""])
                if self.seconds < math.inf:
                    self._timer.start()

    def _set(self, why: str) -> None:
        def change(inside: Inside) -> None:
            inside.apart = why

        assert self.hypervisor is not None
        self.hypervisor.servers.alter(N1, change)


def test_a_cluster_that_is_not_primary_for_a_moment_is_waited_for(world: World) -> None:
    """Error 1047 while a clone is personalised on a busy host: `up` has until ready_timeout."""
    with world.open() as ctx:
        make_template(ctx)
    held = HeldBack(1.0)
    with world.open(held) as ctx:
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        held.hypervisor = ctx.hypervisor
        began = time.monotonic()
        assert up(ctx, named("shop"), timeout=10).state == "ready"
        assert time.monotonic() - began >= 1.0
        assert query(ctx, "shop", "n1", "SELECT 1").rows == ((1,),)


def test_a_cluster_that_stays_not_primary_is_given_up_in_time(world: World) -> None:
    """The server's own words are in the error, and nothing is left."""
    with world.open() as ctx:
        make_template(ctx)
    held = HeldBack(math.inf)
    with world.open(held) as ctx:
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        held.hypervisor = ctx.hypervisor
        began = time.monotonic()
        with pytest.raises(CommandFailed) as failed:
            up(ctx, named("shop"), timeout=1.0)
        assert "WSREP has not yet prepared" in "".join(failed.value.details)
        assert 0.9 < time.monotonic() - began < 10
        assert ctx.store.labs.find("shop") is None


def _connect(sessions: list[str], inside: Inside) -> None:
    inside.sessions.extend(sessions)


@pytest.mark.parametrize("keep", [False, True])
def test_sessions_of_a_capture_are_ended_and_reported(world: World, keep: bool) -> None:
    """Protects who restores a used lab: clients of that moment are gone; it says how many."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        for guest, sessions in ((N1, ["DO 1", READ_LOCK]), (N2, ["DO 1"])):
            held = [] if keep and guest == N1 else sessions
            ctx.hypervisor.servers.alter(guest, partial(_connect, held))
        record = ctx.store.labs.get("shop")
        nodes = running_nodes(ctx, "shop")
        images, account = images_of(ctx, record, nodes), account_of(ctx.home, record)
        started = Started(
            nodes, blueprint(record.blueprint), images, account,
            prepare(ctx, Owner("lab", "shop"), nodes), Deadline.after(10),
            end_sessions=not keep,
        )  # fmt: skip
        world.notes.clear()
        assert hand_over.personalise(ctx, started) == (0 if keep else 3)
        said = "ended 3 client sessions that the capture had"
        assert world.notes == ([] if keep else [said])
        inside = [ctx.hypervisor.servers.inside(guest) for guest in (N1, N2)]
        assert [one.sessions for one in inside] == [[], ["DO 1"] if keep else []]
        assert all(one.seeds == one.entropy for one in inside)
        assert len({one.seeds for one in inside}) == 2


def test_guests_of_an_earlier_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects labs and templates that were made before an upgrade: their program knows less."""
    monkeypatch.delitem(channel.CHANGES, "reseed")
    monkeypatch.delitem(channel.CHANGES, "sessions")
    with world.open() as ctx:
        up(ctx, named("shop"))
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        world.notes.clear()
        assert rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20.0).started == "warm"
        assert sum("client sessions remain" in note for note in world.notes) == 2


def test_sessions_are_reported_though_a_cluster_was_not_primary_for_a_moment(world: World) -> None:
    """What the first attempt has ended is in the answer to the one that succeeds."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        ctx.hypervisor.servers.alter(N1, lambda inside: inside.sessions.append("DO 1"))
        channel = ctx.hypervisor.channel(N1)
        node = running_nodes(ctx, "shop")[0]
        messages = [b"sessions\nsql " + b"SELEKT".hex().encode() + b"\n", b"sessions\n"]
        ended = send_message(
            ctx, node, lambda: messages.pop(0), "syntax", Deadline.after(10), never_halt
        )
        assert ended == 1
        assert channel.personalise(b"", timeout=1) == 0


class Refusing:
    """A node's channel whose cluster is not primary; like a real one, it takes time to answer."""

    def personalise(self, message: bytes, *, timeout: float, halt: Callable[[], None]) -> None:
        del message, halt
        if timeout < 0.1:
            raise NotReady("no answer in time")
        time.sleep(0.1)
        raise CommandFailed(["personalise"], 1, stderr="WSREP has not yet prepared node")


@pytest.mark.parametrize(
    "late",
    [
        "sessions: still there after 10 s: 7 of app (Rollback)\n",
        "reseed: no random bytes of the server: no answer in 10 s\n",
    ],
)
def test_a_server_that_takes_long_is_waited_for(world: World, late: str) -> None:
    """Protects captures of a bulk load, whose transaction is undone in minutes, and slow hosts."""
    answers: list[CommandFailed | int] = [CommandFailed(["personalise"], 1, stderr=late), 1]

    class Channel:
        def personalise(self, message: bytes, **_: object) -> int:
            del message
            answer = answers.pop(0)
            if isinstance(answer, CommandFailed):
                raise answer
            return answer

    class Hypervisor:
        def channel(self, guest: GuestName) -> Channel:
            del guest
            return Channel()

    node, slow = Node(Owner("lab", "shop"), "n1", 1, "member"), cast("Any", Hypervisor())
    with world.open() as ctx:
        ended = send_message(
            replace(ctx, hypervisor=slow), node, lambda: b"", GALERA.transient,
            Deadline.after(10), never_halt,
        )  # fmt: skip
    assert (ended, answers) == (1, [])


def test_an_attempt_without_time_does_not_hide_the_servers_reason(world: World) -> None:
    """What was refused until the deadline is raised, and never taken as done."""

    class Hypervisor:
        def channel(self, guest: GuestName) -> Refusing:
            del guest
            return Refusing()

    node, refusing = Node(Owner("lab", "shop"), "n1", 1, "member"), cast("Any", Hypervisor())
    with world.open() as ctx, pytest.raises(CommandFailed, match="personalise"):
        send_message(
            replace(ctx, hypervisor=refusing), node, lambda: b"", GALERA.transient,
            Deadline.after(0.3), never_halt,
        )  # fmt: skip


def known(ctx: Context) -> list[str]:
    """The keys by which ssh knows the nodes, in the order of their ports."""
    path = ctx.home.private(Owner("lab", "shop")) / "known_hosts"
    return [line.partition(" ")[2] for line in sorted(path.read_text().splitlines())]


def held_by_nodes(ctx: Context) -> list[str]:
    """The keys that the nodes have, in the order of their names."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    keys = [
        ctx.hypervisor.servers.inside(g).file(f"{identity.HOST_KEY}.pub").decode() for g in (N1, N2)
    ]
    return [" ".join(key.split()[:2]) for key in keys]


def test_a_template_was_personalised_before_it_was_captured(world: World) -> None:
    """Protects the time of clones: what is done for the first time takes longer, and its memory.

    No clone has a key of it.
    """
    opened: list[Context] = []
    inside: dict[str, Inside] = {}

    def look(step: str) -> None:
        if step == "hypervisor.save_memory" and not inside:
            hypervisor = opened[0].hypervisor
            assert isinstance(hypervisor, FakeHypervisor)
            for guest in hypervisor.guests().values():
                inside[guest.tags["node"]] = hypervisor.servers.inside(guest.name)

    with world.open(look) as ctx:
        opened.append(ctx)
        make_template(ctx)
        names = (identity.HOST_KEY, "/etc/mysql/tls/key.pem", "/root/.ssh/authorized_keys")
        keys = [one.file(name) for one in inside.values() for name in names]
        assert all(keys)
        assert len(set(keys)) == len(inside) * len(names) == 2 * len(names)
        up(ctx, named("shop"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        for guest in (N1, N2):
            clone = ctx.hypervisor.servers.inside(guest)
            assert {clone.file(name) for name in names}.isdisjoint(keys)


def test_ssh_knows_nodes_after_any_order_of_snapshot_and_rollback(world: World) -> None:
    """A snapshot brings back the host keys of its moment; each start gives new ones."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        label = snapshot.take(ctx, TakeSnapshot(lab="shop", name="s1")).label
        first = known(ctx)
        assert first == held_by_nodes(ctx)
        rollback(ctx, RollBack(lab="shop"), timeout=10)
        assert known(ctx) == held_by_nodes(ctx) != first
        rollback(ctx, RollBack(lab="shop", to=label), timeout=10)
        assert known(ctx) == held_by_nodes(ctx) != first
        rollback(ctx, RollBack(lab="shop"), timeout=10)
        other = known(ctx)[0]
        rollback(ctx, RollBack(lab="shop", to=label, node="n2"), timeout=10)
        assert known(ctx) == held_by_nodes(ctx)
        assert known(ctx)[0] == other, "n1 was not rolled back"
        power.stop(ctx, "shop")
        rollback(ctx, RollBack(lab="shop", to=label), timeout=10)
        assert known(ctx) == held_by_nodes(ctx)
        assert lab(ctx, "shop").state == "ready"


def test_keys_that_a_power_failure_took_are_replaced(world: World) -> None:
    """Protects nodes whose power fails at once: what they had not written yet is an empty file."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        lost = (identity.HOST_KEY, f"{identity.HOST_KEY}.pub", "/root/.ssh/authorized_keys")
        for path in lost:
            ctx.hypervisor.servers.alter(N2, lambda inside, path=path: inside.put(path, b"", "600"))  # type: ignore[misc]
        power.stop(ctx, "shop", node="n2", force=True)
        assert start_node(ctx, "shop", "n2", timeout=20.0).state == "ready"
        assert known(ctx) == held_by_nodes(ctx)
        inside = ctx.hypervisor.servers.inside(N2)
        assert all(inside.file(path) for path in lost)


@pytest.mark.parametrize("left", [b"", b"-----BEGIN OPENSSH"])
def test_a_login_key_that_the_host_lost_is_replaced(world: World, left: bytes) -> None:
    """Protects a lab from a host whose power failed: its user's key may be an empty file."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        key = ctx.home.private(Owner("lab", "shop")) / "id_ed25519"
        power.stop(ctx, "shop")
        key.write_bytes(left)
        assert start(ctx, "shop", timeout=20.0).state == "ready"
        login = identity.read_ssh_key(key.read_bytes(), "lab shop")
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        for guest in (N1, N2):
            known_keys = (
                ctx.hypervisor.servers.inside(guest).file("/root/.ssh/authorized_keys").decode()
            )
            assert login.public.rsplit(" ", 2)[0] in known_keys
        assert key.stat().st_mode & 0o777 == 0o600
        assert not [path for path in key.parent.iterdir() if path.suffix == ".new"]
