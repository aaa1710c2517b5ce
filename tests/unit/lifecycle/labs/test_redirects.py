"""Published labs where guests have addresses of their own: others come in by ports that are led on.

The host itself goes to these addresses: what is led on is only what comes from elsewhere.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.guest.network import own_address
from lab.hypervisor import Capabilities
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import node_access, power, rollback
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import personalise
from lab.lifecycle.nodes.inspect import lab, nodes_of
from lab.names import Owner
from lab.requests.host import CollectGarbage
from lab.requests.labs import RollBack
from lab.state.store import Store
from lab.views.labs import LabView
from tests.support.lifecycle_world import Verb, World, make_cold, make_lab, named

LEADS = Capabilities(
    "fake", "bhyve", why_cold="bhyve cannot", direct=False, forwards=False,
)  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    everywhere = "0.0.0.0"  # noqa: S104
    return World(
        tmp_path, capabilities=LEADS, redirects=True,
        publish=everywhere, publish_name="labs.example",
    )  # fmt: skip


def led(ctx: Context) -> dict[int, str]:
    assert ctx.hypervisor.redirects is not None
    return {port: str(guest) for port, guest in ctx.hypervisor.redirects.ports().items()}


def reached(ctx: Context, view: LabView) -> None:
    """Others get ports that lead to the nodes; this host reaches all with TLS."""
    record = ctx.store.labs.get(view.name)
    for number, node in enumerate(view.nodes, 1):
        assert node.host == "labs.example"
        assert led(ctx)[node.sql_port] == node.guest
        assert query(ctx, view.name, node.name, "SHOW GLOBAL STATUS LIKE 'wsrep_%'").rows
        argv = node_access.ssh_argv(ctx, view.name, node.name)
        assert argv[-1] == f"root@{own_address(record.segment, number)}"
    first = view.nodes[0]
    assert f"@labs.example:{first.sql_port}/?ssl-mode=VERIFY_IDENTITY" in view.dsn
    assert view.ssl_ca


@pytest.mark.parametrize("make", [make_lab, make_cold], ids=["template", "cold"])
def test_a_lab_is_published_at_ports_that_lead_to_it(world: World, make: Verb) -> None:
    with world.open() as ctx:
        make(ctx)
        (record,) = ctx.store.labs.all()
        view = lab(ctx, record.name)
        reached(ctx, view)
        ports = {int(r.ref) for r in ctx.store.resources.all() if r.kind == "port"}
        assert ports == {node.sql_port for node in view.nodes} == set(led(ctx))


def test_the_life_of_a_published_lab(world: World) -> None:
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        power.stop(ctx, "shop")
        assert led(ctx) == {}
        again = start(ctx, "shop", timeout=20.0)
        reached(ctx, again)
        assert again.dsn == view.dsn
        reached(ctx, rollback.rollback(ctx, RollBack(lab="shop", to="origin"), timeout=20.0))
        other = up(ctx, named("other"))
        reached(ctx, other)
        assert not {n.sql_port for n in other.nodes} & {n.sql_port for n in view.nodes}
        down(ctx, "shop")
        assert set(led(ctx)) == {node.sql_port for node in other.nodes}


def test_certificates_hold_for_both_ways(world: World) -> None:
    """Protects this host's own look at a lab, which checks the server as others do."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        for node in nodes_of(ctx, "shop"):
            names = personalise._names(node)
            assert {"labs.example", node.guest_address} <= set(names)
            assert len(names) == len(set(names))


def test_one_node_keeps_its_port(world: World) -> None:
    """Protects from taking a node's own rule, which is still there, for another's."""
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        power.stop(ctx, "shop", node="n2")
        again = start_node(ctx, "shop", "n2", timeout=20.0)
        assert [n.sql_port for n in again.nodes] == [n.sql_port for n in view.nodes]


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_that_a_program_took_meanwhile_is_given_up(world: World, listens: bool) -> None:
    """Protects programs whose clients pf would lead away.

    On FreeBSD, who allows it for itself may have the port that another listens at, at another
    address; here only while the other does not listen.
    """
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        power.stop(ctx, "shop")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", view.nodes[0].sql_port))
            if listens:
                other.listen()
            again = start(ctx, "shop", timeout=20.0)
        reached(ctx, again)
        assert again.nodes[0].sql_port != view.nodes[0].sql_port
        assert [n.sql_port for n in again.nodes[1:]] == [n.sql_port for n in view.nodes[1:]]


def test_gc_asks_for_what_leads_nowhere_to_be_removed(world: World) -> None:
    asked: list[str] = []
    with world.open(asked.append) as ctx:
        gc(ctx, CollectGarbage(dry_run=True))
        assert "hypervisor.forget" not in asked
        gc(ctx)
        assert "hypervisor.forget" in asked


def test_nothing_is_made_where_nothing_can_be_led(world: World) -> None:
    """Protects from a template that is formed for minutes before the firewall says no."""

    def hook(step: str) -> None:
        if step == "hypervisor.redirects":
            raise HostUnfit("pf is switched off")

    with world.open(hook) as ctx:
        with pytest.raises(HostUnfit, match="switched off"):
            up(ctx, named("shop"))
        for records in (ctx.store.labs, ctx.store.images, ctx.store.templates):
            assert records.all() == []


def test_nobody_waits_while_the_hypervisor_is_asked_for_ports(world: World) -> None:
    """Protects all other writers from a hypervisor that does not answer: none of them waits."""
    asked: list[str] = []

    def writes(step: str) -> None:
        if step in ("hypervisor.redirects", "hypervisor.segment_free"):
            asked.append(step)
            with ThreadPoolExecutor(1) as pool, Store(world.home) as other:
                pool.submit(other.resources.intend, Owner("lab", "other"), "volume", step).result()

    with world.open(writes) as ctx:
        view = up(ctx, named("shop"))
        power.stop(ctx, "shop")
        with socket.socket() as taker:
            taker.bind(("0.0.0.0", view.nodes[0].sql_port))  # noqa: S104
            taker.listen()
            moved = start(ctx, "shop", timeout=20.0)
        assert moved.nodes[0].sql_port != view.nodes[0].sql_port
        ports = {int(r.ref) for r in ctx.store.resources.all() if r.kind == "port"}
        assert ports == {node.sql_port for node in moved.nodes}
    assert set(asked) == {"hypervisor.redirects", "hypervisor.segment_free"}
