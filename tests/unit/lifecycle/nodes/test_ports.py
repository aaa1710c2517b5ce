"""Ports are found free, reserved, and bound later: what another program takes in between."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.errors import PortTaken
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start
from lab.lifecycle.nodes.inspect import lab
from lab.names import Owner
from tests.support.lifecycle_world import Hook, Verb, World, make_cold, make_lab, make_template

TAKEN = PortTaken("starting lab-shop-n2: another program uses one of its ports")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    with world.open() as ctx:
        make_template(ctx)
    return world


@contextmanager
def listening(*ports: int) -> Iterator[None]:
    """Another program that has ``ports``."""
    with ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
        yield


def failing(step: str, times: int) -> Hook:
    """The first ``times`` of ``step`` fail, as QEMU does that cannot bind a port."""
    left = [times]

    def hook(now: str) -> None:
        if now == step and left[0]:
            left[0] -= 1
            raise TAKEN

    return hook


def reserved(world: World) -> set[int]:
    with world.open() as ctx:
        return {int(r.ref) for r in ctx.store.resources.all() if r.kind == "port"}


@pytest.mark.parametrize(
    ("make", "step"), [(make_lab, "hypervisor.restore"), (make_cold, "hypervisor.start")]
)
def test_up_takes_other_ports(world: World, make: Verb, step: str) -> None:
    with world.open(failing(step, 2)) as ctx:
        make(ctx)
        view = lab(ctx, "shop")
        assert view.state == "ready"
        assert query(ctx, "shop", None, "SELECT 1").rows == ((1,),)
    assert reserved(world) == {p for node in view.nodes for p in (node.sql_port, node.ssh_port)}
    assert sum("trying others" in note for note in world.notes) in (1, 2)


def test_up_gives_up_in_the_end(world: World) -> None:
    before = world.there()
    with world.open(failing("hypervisor.restore", 99)) as ctx, pytest.raises(PortTaken):
        make_lab(ctx)
    assert world.there() == before


def test_a_stopped_lab_whose_ports_are_taken(world: World) -> None:
    """It gets others, with a note; what is printed and known to ssh is true."""
    with world.open() as ctx:
        make_lab(ctx)
        power.stop(ctx, "shop")
        before = lab(ctx, "shop").nodes
    with listening(before[0].sql_port, before[1].ssh_port), world.open() as ctx:
        view = start(ctx, "shop", timeout=10)
        assert view.state == "ready"
        assert query(ctx, "shop", "n1", "SELECT 1").rows == ((1,),)
        known = (ctx.home.private(Owner("lab", "shop")) / "known_hosts").read_text()
    first, second = view.nodes
    assert first.sql_port not in {n.sql_port for n in before} | {n.ssh_port for n in before}
    assert first.ssh_port == before[0].ssh_port
    assert second.sql_port == before[1].sql_port
    assert second.ssh_port != before[1].ssh_port
    assert [line.split(" ")[0] for line in known.splitlines()] == [
        f"[127.0.0.1]:{node.ssh_port}" for node in view.nodes
    ]
    assert f"{first.sql_port}/" in view.dsn
    assert reserved(world) == {p for node in view.nodes for p in (node.sql_port, node.ssh_port)}
    assert any(f"{before[0].sql_port} is {first.sql_port} now" in note for note in world.notes)


def test_start_tries_again(world: World) -> None:
    """The port was taken between our look and QEMU's."""
    with world.open() as ctx:
        make_lab(ctx)
        power.stop(ctx, "shop")
    with world.open(failing("hypervisor.start", 2)) as ctx:
        assert start(ctx, "shop", timeout=10).state == "ready"
    with world.open() as ctx:
        power.stop(ctx, "shop")
    with world.open(failing("hypervisor.start", 99)) as ctx, pytest.raises(PortTaken):
        start(ctx, "shop", timeout=10)
