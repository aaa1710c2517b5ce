"""Where SQL can be reached, and what a lab takes there; on the fakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from lab.errors import HostUnfit, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.snapshots.snapshot import take
from lab.names import EVERYWHERE, GuestName
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import REQUEST, World, make_template, named

NAME = "labs.example"
CERTIFICATE = "/etc/mysql/tls/cert.pem"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, publish=EVERYWHERE, publish_name=NAME)
    with world.open() as ctx:
        make_template(ctx)
    return world


def certificate(ctx: Context, name: str, node: str = "n1") -> x509.Certificate:
    """What a node's server shows; checked to be signed by the home's authority."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    inside = ctx.hypervisor.servers.inside(GuestName(f"lab-{name}-{node}"))
    assert inside.modes["/etc/mysql/tls/key.pem"] == "600"
    found = x509.load_pem_x509_certificate(inside.file(CERTIFICATE))
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(ctx.home.ca.read_bytes()))
    return found


def names(found: x509.Certificate) -> set[str]:
    value = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = value.get_values_for_type(x509.IPAddress)
    return {*value.get_values_for_type(x509.DNSName), *map(str, addresses)}


def test_others_are_told_the_name_and_take_tls(world: World) -> None:
    """The account of a lab that others can reach is useless without TLS."""
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        port = view.nodes[0].sql_port
        login = f"{view.user}:{view.password}"
        assert view.dsn == f"mysql://{login}@{NAME}:{port}/?ssl-mode=VERIFY_IDENTITY"
        assert view.ssl_ca == str(ctx.home.ca)
        assert {node.host for node in view.nodes} == {NAME}
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        with pytest.raises(NotReady, match="no SQL"):
            ctx.hypervisor.servers.sql(port, view.user, view.password, "SELECT 1")
        assert ctx.hypervisor.servers.sql(port, view.user, view.password, "SELECT 1", tls=True).rows
        # From this host all works as before.
        assert query(ctx, "shop", "n2", "SELECT 1").rows == ((1,),)
        assert {one.met for one in status(ctx, "shop").requirements} == {True}
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert names(certificate(ctx, "shop")) == {
            NAME, "localhost", "127.0.0.1", "::1", "n1", "10.77.0.1"
        }  # fmt: skip
    assert world.notes.count("others can reach SQL at all addresses of this host, with a lab's"
                             " password and TLS") == 1  # fmt: skip


def test_ssh_stays_on_the_loopback(world: World) -> None:
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        file = ctx.home.root / "fake-guests" / f"{view.nodes[0].guest}.json"
        found = json.loads(file.read_text())["addresses"]
    assert found == {
        str(view.nodes[0].sql_port): EVERYWHERE,
        str(view.nodes[0].ssh_port): "127.0.0.1",
    }


def test_a_lab_keeps_its_address_under_another_setting(world: World) -> None:
    """What was printed once stays true: a known DSN keeps working."""
    with world.open() as ctx:
        before = up(ctx, named("shop"))
        power.stop(ctx, "shop")
    local = replace(world, publish="127.0.0.1", publish_name="", notes=[])
    with local.open() as ctx:
        assert start(ctx, "shop", timeout=10).dsn == before.dsn
        assert rollback(ctx, RollBack(lab="shop"), timeout=10).dsn == before.dsn
        other = up(ctx, named("local"))
        assert other.dsn.endswith(f"@127.0.0.1:{other.nodes[0].sql_port}/")
        assert other.ssl_ca == ""
        assert query(ctx, "local", None, "SELECT 1").rows == ((1,),)
        assert NAME not in names(certificate(ctx, "local"))
    assert local.notes == []


def test_each_start_brings_a_new_certificate(world: World) -> None:
    """Protects labs that live for years, and clones from each other's keys."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        up(ctx, named("cold", cold=True))
        seen = [certificate(ctx, "shop", node) for node in ("n1", "n2")]
        seen.append(certificate(ctx, "cold"))
        label = take(ctx, TakeSnapshot(lab="shop", name="before")).label
        power.stop(ctx, "shop", node="n1")
        start_node(ctx, "shop", "n1", timeout=10)
        assert certificate(ctx, "shop", "n2") == seen[1]  # it was not started
        for again in (
            lambda: None,
            lambda: rollback(ctx, RollBack(lab="shop", to=label), timeout=10),
            lambda: rollback(ctx, RollBack(lab="shop"), timeout=10),
        ):
            again()
            seen.append(certificate(ctx, "shop"))
    assert len({one.public_key().public_numbers() for one in seen}) == len(seen)  # type: ignore[union-attr]
    for one in seen:
        assert (one.not_valid_after_utc - one.not_valid_before_utc).days >= 366


def test_an_address_of_another_host(world: World) -> None:
    """It is reported first; a lab whose address is gone is not started at others."""
    elsewhere = replace(world, publish="192.0.2.1", publish_name="")
    before = world.there()
    with elsewhere.open() as ctx, pytest.raises(HostUnfit, match=r"192\.0\.2\.1") as failed:
        up(ctx, REQUEST)
    assert "LAB_PUBLISH" in failed.value.hint
    assert world.there() == before
    with world.open() as ctx:
        up(ctx, named("shop"))
        power.stop(ctx, "shop")
        ctx.store.labs.update("shop", address="192.0.2.1")
        with pytest.raises(HostUnfit, match="no address of this host"):
            start(ctx, "shop", timeout=10)
        assert lab(ctx, "shop").state == "stopped"
        down(ctx, "shop")
