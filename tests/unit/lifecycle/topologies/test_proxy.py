"""Labs with a proxy in front of their servers, and with an arbiter, from `up` to `down`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.cli.terminal.show import lab_text
from lab.errors import InvalidSpec, NotReady
from lab.hypervisor import Capabilities
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.environment import environment
from lab.lifecycle.host import gc as collecting
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.conditions import WaitCondition, unmet
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab, nodes_of, status
from lab.lifecycle.nodes.recovery import USUAL
from lab.lifecycle.service.activity import activity
from lab.lifecycle.snapshots import snapshot
from lab.names import EVERYWHERE, GuestName, template_ref
from lab.observe.ways import Rows
from lab.requests.labs import BranchLab, CreateLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.units import MIB
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import SIZE, World, lab_request


def shop(blueprint: str, nodes: int = 3, **values: Any) -> CreateLab:
    return lab_request(blueprint, "shop", nodes=nodes, **values)


def requirements(ctx: Context, node: str) -> list[tuple[str, bool | None, str]]:
    found = status(ctx, "shop").requirements
    return [(one.name, one.met, one.found) for one in found if one.node == node]


def reached(ctx: Context, service: str) -> str:
    """The node that answers through a service of the proxy, by its counters."""
    counted = {}
    for node in ctx.store.nodes.of("shop"):
        path = ctx.home.root / f"fake-guests/{node.guest}.json"
        if path.exists():
            counted[node.name] = json.loads(path.read_text())["commands"]
    through = next(n for n in ctx.store.nodes.of("shop") if "ro" in n.services)
    port = through.all_ports[service]
    record = ctx.store.labs.get("shop")
    ctx.sql(account_of(ctx.home, record), port, "SHOW GLOBAL VARIABLES LIKE 'read_only'", timeout=5)
    for name, before in counted.items():
        guest = ctx.store.nodes.get("shop", name).guest
        now = json.loads((ctx.home.root / f"fake-guests/{guest}.json").read_text())["commands"]
        if now != before:
            return name
    raise AssertionError("nobody was reached")


@pytest.mark.parametrize(
    ("proxy", "cold"),
    [("haproxy", False), pytest.param("router", True, marks=pytest.mark.rare)],
)
def test_every_verb_with_galera(  # noqa: PLR0915  the verbs of one lab
    world: World, proxy: str, cold: bool
) -> None:
    """Protects labs with a proxy and an arbiter: neither is taken for a server."""
    wanted = shop("galera", 2, proxy=proxy, arbiter=True, cold=cold)
    with world.open() as ctx:
        made = up(ctx, wanted)
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        assert [node.role for node in made.nodes] == ["member", "member", "arbiter", "proxy"]
        assert [node.memory for node in made.nodes] == [SIZE.memory] * 2 + [384 * MIB] * 2
        assert made.entry is not None
        assert made.entry.name == "n4"
        last = made.nodes[3]
        assert made.addresses["rw"] == (last.address,)
        assert made.addresses["ro"] == (f"127.0.0.1:{last.ports['ro']}",)
        assert made.addresses["writers"] == (made.nodes[0].address, made.nodes[1].address)
        assert ("admin" in made.addresses) == (proxy == "haproxy")
        assert [name for name, _, _ in requirements(ctx, "n1")][3] == "size 3"
        names = ["SQL", "rw", "ro", *(["admin"] if proxy == "haproxy" else [])]
        assert [(name, met) for name, met, _ in requirements(ctx, "n4")] == [
            (name, True) for name in names
        ]
        assert requirements(ctx, "n3") == [("agent", True, "")]
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        assert query(ctx, "shop", "n2", "SELECT COUNT(*) FROM t").rows == ((0,),)
        assert (reached(ctx, "sql"), reached(ctx, "ro")) == ("n1", "n2")
        assert activity(ctx, "shop", patience=5.0).counters.count(":") == 2
        # The writer stops: the next node gets the writes.
        power.stop(ctx, "shop", node="n1")
        assert (reached(ctx, "sql"), reached(ctx, "ro")) == ("n2", "n2")
        assert query(ctx, "shop", None, "SELECT COUNT(*) FROM t").rows == ((0,),)
        unmet_ = [name for name, met, _ in requirements(ctx, "n4") if met is False]
        assert unmet_ == ["ro"]
        assert start_node(ctx, "shop", "n1", timeout=10).state == "ready"
        assert reached(ctx, "sql") == "n1"
        # So does the arbiter, then the proxy.
        power.stop(ctx, "shop", node="n3")
        assert [name for name, met, _ in requirements(ctx, "n1") if met is False] == ["size 3"]
        start_node(ctx, "shop", "n3", timeout=10)
        power.stop(ctx, "shop", node="n4")
        assert [one for one in requirements(ctx, "n1") if not one[1]] == []
        with pytest.raises(NotReady, match="n4 of shop does not run"):
            query(ctx, "shop", None, "SELECT 1")
        assert start_node(ctx, "shop", "n4", timeout=10).state == "ready"
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        power.stop(ctx, "shop", force=True)
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert wait(ctx, "shop", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=10).state == "ready"
        assert query(ctx, "shop", None, "SELECT COUNT(*) FROM t").rows == ((0,),)
        (other,) = branch(
            ctx, BranchLab(lab="shop", name="own", at="one", identity="new"), timeout=10
        )
        assert other.state == "ready"
        assert query(ctx, "own", None, "SELECT COUNT(*) FROM t").rows == ((0,),)
        down(ctx, "own")
        assert rollback(ctx, RollBack(lab="shop"), timeout=10).state == "ready"
        assert collecting.gc(ctx).removed == ()
        down(ctx, "shop")
        assert {r.owner.kind for r in ctx.store.resources.all()} <= {"image", "template"}


@pytest.mark.parametrize(
    ("blueprint", "options", "cold"),
    [
        ("replication", {}, False),
        pytest.param("replication", {"topology": "chain"}, True, marks=pytest.mark.rare),
        pytest.param("group", {}, False, marks=pytest.mark.rare),
        pytest.param("group", {}, True, marks=pytest.mark.rare),
    ],
)
def test_every_verb_with_roles(
    world: World, blueprint: str, options: dict[str, Any], cold: bool
) -> None:
    """Protects labs whose servers have roles: the proxy is none of them."""
    with world.open() as ctx:
        made = up(ctx, shop(blueprint, proxy="haproxy", **options, cold=cold))
        assert made.state == "ready"
        assert made.nodes[3].role == "proxy"
        assert made.endpoints["rw"] == made.endpoints["ro"] == ("n4",)
        assert (made.endpoints["writers"], made.endpoints["readers"]) == (("n1",), ("n2", "n3"))
        query(ctx, "shop", None, "CREATE TABLE t (a INT)")
        assert (reached(ctx, "sql"), reached(ctx, "ro")) == ("n1", "n2")
        view = lab(ctx, "shop")
        assert unmet(WaitCondition("primary", "", "n1"), view, _no_sql, 1.0) == ""
        power.stop(ctx, "shop", node="n1")
        if blueprint == "group":
            assert reached(ctx, "sql") == "n2"
            assert lab(ctx, "shop").endpoints["writers"] == ("n2",)
            query(ctx, "shop", None, "INSERT INTO t VALUES (1)")
        else:
            with pytest.raises(NotReady):
                query(ctx, "shop", None, "SELECT 1")
        assert start_node(ctx, "shop", "n1", timeout=10).state == "ready"
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        power.stop(ctx, "shop", force=True)
        assert start(ctx, "shop", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="shop", to=taken.label), timeout=10).state == "ready"
        (own,) = branch(
            ctx, BranchLab(lab="shop", name="own", at="one", identity="new"), timeout=10
        )
        assert own.state == "ready"
        down(ctx, "own")
        down(ctx, "shop")


def _no_sql(statement: str, seconds: float) -> Rows:
    raise AssertionError(statement, seconds)


def test_where_all_take_writes_none_is_left_to_read_from(world: World) -> None:
    with world.open() as ctx:
        made = up(ctx, shop("group", 2, multi_primary=True, proxy="router"))
        assert made.state == "ready"
        assert [name for name, _, _ in requirements(ctx, "n3")] == ["SQL", "rw"]
        assert made.endpoints["writers"] == ("n1", "n2")


@pytest.mark.rare
def test_a_group_starts_again_without_its_proxy(world: World) -> None:
    """Protects from a proxy that keeps servers from becoming a group: it has no transactions."""
    with world.open() as ctx:
        up(ctx, shop("group", proxy="haproxy"))
        power.stop(ctx, "shop", force=True)
        servers = [node for node in nodes_of(ctx, "shop") if node.has_server]
        assert power.start(ctx, "shop", servers, 10, USUAL).nodes[3].state == "stopped"
        assert query(ctx, "shop", "n1", "SELECT 1").rows == ((1,),)


def test_what_users_see(world: World) -> None:
    """Protects what connects to a lab: the proxy, and each server by its own port."""
    with world.open() as ctx:
        made = up(ctx, shop("replication", proxy="haproxy"))
        variables = environment(made)
        front = made.nodes[3]
        assert variables["LAB_PORT"] == str(front.sql_port)
        assert variables["LAB_DSN_RO"].endswith(f"@127.0.0.1:{front.ports['ro']}/")
        assert variables["LAB_PORTS"] == ",".join(str(n.sql_port) for n in made.nodes[:3])
        assert "LAB_DSN_N4" not in variables
        text = lab_text(made, 0)
        assert re.search(r"^n4 +proxy +ready +127", text, re.MULTILINE)
        for name in ("ro", "admin"):
            assert re.search(rf"^{name} +127\.0\.0\.1:{front.ports[name]}$", text, re.MULTILINE)
        assert "writers" not in text
        # A page that does not answer is a proxy that is not ready.
        broken = replace(ctx, page=_no_page)
        found = [one for one in status(broken, "shop").requirements if one.node == "n4"]
        assert (found[0].name, found[0].met) == ("SQL", False)


def _no_page(host: str, port: int, *, timeout: float) -> str:
    raise NotReady(f"no page at {host}:{port}", details=[f"within {timeout}"])


def test_options_of_servers_are_not_for_proxies(world: World) -> None:
    with world.open() as ctx:
        made = up(
            ctx,
            shop("galera", 2, proxy="haproxy", arbiter=True, set=("max_connections=50",),
                 init="CREATE TABLE first (a INT);"),
        )  # fmt: skip
        assert query(ctx, "shop", "n2", "SELECT COUNT(*) FROM first").rows == ((0,),)
        seed = ctx.home.seed(template_ref(made.template), "n4").read_bytes()
        assert b"max_connections" not in seed


@pytest.mark.parametrize("proxy", ["haproxy", "router"])
@pytest.mark.parametrize("on", [("n3",), ()])
def test_replicas_that_are_late(world: World, proxy: str, on: tuple[str, ...]) -> None:
    """Protects a lab from waiting for a reader that its proxy reads from only as the last one."""
    with world.open() as ctx:
        made = up(ctx, shop("replication", 3, delay=3600.0, on=on, proxy=proxy))
        assert made.state == "ready"


def test_a_proxy_is_part_of_the_key(world: World) -> None:
    """Protects from a lab that is a clone of another topology."""
    with world.open() as ctx:
        keys = {
            template.build(ctx, shop("galera", 2, **options)).key
            for options in ({}, {"arbiter": True}, {"proxy": "haproxy"}, {"proxy": "router"})
        }
    assert len(keys) == 4


def test_its_template_travels(tmp_path: Path) -> None:
    wanted = shop("galera", 2, proxy="haproxy", arbiter=True)
    here, there = Side(tmp_path / "here", forms=True), Side(tmp_path / "there")
    with here.open() as ctx:
        key = template.build(ctx, wanted).key
    done = there.imported("template", here.exported("template", key), warm_only=True)
    with there.open() as ctx:
        made = up(ctx, wanted)
        assert (made.started, made.template, made.state) == ("warm", done.key, "ready")


def test_published_labs(tmp_path: Path) -> None:
    """Protects others that connect: the port for reads is published like that for writes."""
    world = World(tmp_path, publish=EVERYWHERE, publish_name="labs.example")
    with world.open() as ctx:
        made = up(ctx, shop("galera", 2, proxy="haproxy"))
        front = made.nodes[2]
        assert made.addresses["rw"] == (f"labs.example:{front.sql_port}",)
        assert made.addresses["ro"] == (f"labs.example:{front.ports['ro']}",)
        assert made.addresses["admin"] == (f"127.0.0.1:{front.ports['admin']}",)
        guest = json.loads((tmp_path / f"fake-guests/{front.guest}.json").read_text())
        places = {guest["ports"][port]: address for port, address in guest["addresses"].items()}
        assert places == {3306: EVERYWHERE, 3307: EVERYWHERE, 8404: "127.0.0.1", 22: "127.0.0.1"}


def test_guests_with_addresses_of_their_own(tmp_path: Path) -> None:
    """Protects from certificates that clients refuse: a server is reached at the proxy's."""
    can = Capabilities("fake", "fake", forwards=False)
    with World(tmp_path, can).open() as ctx:
        made = up(ctx, shop("galera", 2, proxy="haproxy", cold=True))
        row = ctx.store.nodes.get("shop", "n3")
        assert made.addresses["ro"] == (f"{row.guest_address}:3307",)
        power.stop(ctx, "shop", node="n1")
        start_node(ctx, "shop", "n1", timeout=10)
        for node in ("n1", "n2"):
            inside = ctx.hypervisor.servers.inside(  # type: ignore[attr-defined]
                GuestName(ctx.store.nodes.get("shop", node).guest)
            )
            assert row.guest_address in _names(inside.file("/etc/mysql/tls/cert.pem"))


def _names(certificate: bytes) -> list[str]:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name) for name in names.get_values_for_type(x509.IPAddress)]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (shop("single", 1, proxy="haproxy"), "single does not have the option proxy"),
        (shop("group", arbiter=True), "group does not have the option arbiter"),
        (shop("galera", 1, arbiter=True), "two members at least"),
        (shop("galera", 9, proxy="haproxy"), "9 servers and a node for the proxy are 10 nodes"),
        (shop("galera", 8, proxy="haproxy", arbiter=True), "and a node for the proxy are 10 nodes"),
        (shop("replication", topology="ring", proxy="haproxy"), "several sources"),
        (shop("replication", topology="fan-in", proxy="router"), "several sources"),
    ],
)
def test_what_is_refused(world: World, wanted: CreateLab, message: str) -> None:
    with world.open() as ctx, pytest.raises(InvalidSpec, match=message):
        up(ctx, wanted)
