"""A lab whose nodes have different images, sizes, roles and services, from `up` to `down`."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.api.http.answers import answer
from lab.api.http.lab_answer import lab_answer, lab_of
from lab.blueprints import NodePlan
from lab.cli.terminal.show import lab_text, preview_text
from lab.cli.verbs.template import shown
from lab.errors import CommandFailed, Conflict, HostUnfit, InvalidSpec, NotFound
from lab.fake.images import build
from lab.fake.inside import read_inside
from lab.host import Memory, check_memory
from lab.hypervisor import Capabilities, Disk
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.environment import environment
from lab.lifecycle.host import gc as collecting
from lab.lifecycle.host.catalog import templates
from lab.lifecycle.images import image
from lab.lifecycle.images.order import resolve
from lab.lifecycle.images.ready import Images
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.inspect import status
from lab.lifecycle.service.activity import activity
from lab.lifecycle.snapshots import snapshot
from lab.names import EVERYWHERE, Owner, VolumeName, template_ref
from lab.requests.labs import RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.units import GIB, MIB
from tests.support.exchange_world import Side, as_it_was, rewritten
from tests.support.lifecycle_world import SIZE, World, at, lab_request, raising
from tests.support.mixed import FRONT, Mixed, register

REQUEST = lab_request("mixed", "two", nodes=2)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    register(monkeypatch)
    return World(tmp_path)


def guest(ctx: Context, node: str, owner: str = "two") -> Any:
    return json.loads((ctx.home.root / f"fake-guests/lab-{owner}-{node}.json").read_text())


def origin(ctx: Context, volume: str) -> str:
    """What the fake storage says that a volume is a clone of."""
    found = json.loads((ctx.home.storage / "state.json").read_text())
    return str(found[volume]["origin"])


def images_of(ctx: Context) -> tuple[str, str]:
    """The keys of the images of both nodes."""
    found = {one.recipe: one.key for one in ctx.store.images.all()}
    return found["mariadb"], found[FRONT.recipe]


def statements_of(ctx: Context, node: str) -> list[str]:
    """What changed the data or accounts of a node's server."""
    disks = [Disk(ctx.storage.get(VolumeName(Owner("lab", "two"), node, "os")).path, "raw", "os")]
    return read_inside(disks).statements


def check_guests(ctx: Context) -> None:
    """Memory, processors and ports are those of each node."""
    one, two = guest(ctx, "n1"), guest(ctx, "n2")
    assert (one["shape"]["memory"], one["shape"]["cpus"]) == (SIZE.memory, 1)
    assert (two["shape"]["memory"], two["shape"]["cpus"]) == (512 * MIB, 2)
    assert sorted(one["ports"].values()) == [22, 3306]
    assert sorted(two["ports"].values()) == [22, 6032, 6033]


@pytest.mark.parametrize("cold", [False, True])
def test_every_verb(world: World, cold: bool) -> None:
    """Protects labs of servers and proxies: nothing takes one node for another's equal."""
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        first, second = made.nodes
        assert (first.role, second.role) == ("server", "front")
        assert (first.image, second.image) == images_of(ctx)
        assert made.image == first.image
        assert (second.memory, second.cpus) == (512 * MIB, 2)
        check_guests(ctx)
        source = Owner("template", made.template) if not cold else None
        for node in made.nodes:
            parent = (
                f"templates/{made.template}/{node.name}/" if source else f"images/{node.image}/"
            )
            assert origin(ctx, f"labs/two/{node.name}/os").startswith(parent)
        if source:
            record = ctx.store.templates.get(source.name)
            assert record.images == set(images_of(ctx))
            assert record.nodes["n2"] == {
                "image": second.image, "memory": 512 * MIB, "cpus": 2, "disk": 0
            }  # fmt: skip
        met = [(one.node, one.name, one.met) for one in status(ctx, "two").requirements]
        assert met == [
            ("n1", "SQL", True), ("n1", "writable of 2", True),
            ("n2", "SQL", True), ("n2", "open of 2", True),
        ]  # fmt: skip
        query(ctx, "two", "n1", "CREATE TABLE t (a INT)")
        query(ctx, "two", None, "CREATE TABLE front (a INT)")  # the first endpoint's
        assert query(ctx, "two", "n1", "SELECT COUNT(*) FROM t").rows == ((0,),)
        assert query(ctx, "two", "n2", "SELECT COUNT(*) FROM front").rows == ((0,),)
        taken = snapshot.take(ctx, TakeSnapshot(lab="two", name="one"))
        query(ctx, "two", "n1", "INSERT INTO t VALUES (1)")
        assert power.stop(ctx, "two").state == "stopped"
        assert start(ctx, "two", timeout=10).state == "ready"
        check_guests(ctx)
        power.stop(ctx, "two", node="n2")
        assert start_node(ctx, "two", "n2", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="two", to=taken.label), timeout=10).state == "ready"
        assert query(ctx, "two", "n1", "SELECT COUNT(*) FROM t").rows == ((0,),)
        back = rollback(ctx, RollBack(lab="two"), timeout=10)
        assert (back.state, back.started) == ("ready", "cold" if cold else "warm")
        check_guests(ctx)
        assert collecting.gc(ctx).removed == ()
        down(ctx, "two")
        assert ctx.store.labs.all() == []
        assert {r.owner.kind for r in ctx.store.resources.all()} <= {"image", "template"}


def test_each_service_has_a_port_that_is_recorded_and_shown(world: World) -> None:
    """Protects what users connect to besides SQL: a proxy's administration."""
    with world.open() as ctx:
        made = up(ctx, REQUEST)
        row = ctx.store.nodes.get("two", "n2")
        second = made.nodes[1]
        assert row.services == second.services == {"sql": 6033, "ssh": 22, "admin": 6032}
        assert set(row.ports) == {"admin"}
        assert second.ports == {
            "sql": second.sql_port, "ssh": second.ssh_port, "admin": row.ports["admin"]
        }  # fmt: skip
        leads = {int(port): to for port, to in guest(ctx, "n2")["ports"].items()}
        assert leads == {second.ports[name]: port for name, port in second.services.items()}
        reserved = {int(r.ref) for r in ctx.store.resources.all() if r.kind == "port"}
        assert reserved == {port for node in made.nodes for port in node.ports.values()}
        assert made.addresses == {
            "rw": (second.address,),
            "server": (made.nodes[0].address,),
            "admin": (f"127.0.0.1:{row.ports['admin']}",),
        }
        assert made.dsn.endswith(f":{second.sql_port}/")
        power.stop(ctx, "two")
        with socket.socket() as other:
            other.bind(("127.0.0.1", row.ports["admin"]))
            other.listen()
            moved = start(ctx, "two", timeout=10).nodes[1]
        assert moved.ports["admin"] != row.ports["admin"]
        assert moved.sql_port == second.sql_port
        assert ctx.store.nodes.get("two", "n2").ports == {"admin": moved.ports["admin"]}


def test_guests_with_addresses_of_their_own_serve_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without forwarded ports, a service is at its own port of the guest's address."""
    register(monkeypatch)
    can = Capabilities("fake", "fake", forwards=False)
    with World(tmp_path, can).open() as ctx:
        made = up(ctx, structs.replace(REQUEST, cold=True))
        row = ctx.store.nodes.get("two", "n2")
        assert made.nodes[1].ports == row.all_ports == {"sql": 6033, "ssh": 22, "admin": 6032}
        assert made.addresses["admin"] == (f"{row.guest_address}:6032",)
        assert query(ctx, "two", None, "SELECT 1").rows == ((1,),)


@pytest.mark.parametrize("cold", [False, True])
def test_a_node_without_sql(world: World, cold: bool) -> None:
    """Protects arbiters and proxies: no verb asks them a statement, or gives out a port of none."""
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, blueprint="watched", cold=cold))
        arbiter = made.nodes[2]
        assert (made.state, arbiter.state) == ("ready", "ready")
        assert (arbiter.sql_port, arbiter.address, set(arbiter.ports)) == (0, "", {"ssh"})
        assert statements_of(ctx, "n3") == []
        assert [one.name for one in status(ctx, "two").requirements if one.node == "n3"] == [
            "agent"
        ]
        with pytest.raises(NotFound, match="n3 of two has no service sql"):
            query(ctx, "two", "n3", "SELECT 1")
        assert activity(ctx, "two", patience=5.0).counters.count(":") == 2
        variables = environment(made)
        assert variables["LAB_PORTS"] == f"{made.nodes[0].sql_port},{made.nodes[1].sql_port}"
        assert variables["LAB_HOSTS"] == "127.0.0.1,127.0.0.1"
        assert re.search(r"^n3 +arbiter +ready +- +\d+ ", lab_text(made, 0), re.MULTILINE)
        taken = snapshot.take(ctx, TakeSnapshot(lab="two", name="one"))
        power.stop(ctx, "two")
        assert start(ctx, "two", timeout=10).state == "ready"
        power.stop(ctx, "two", node="n3")
        assert status(ctx, "two").lab.nodes[2].state == "stopped"
        assert start_node(ctx, "two", "n3", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="two", to=taken.label), timeout=10).state == "ready"
        assert wait(ctx, "two", timeout=10).state == "ready"
        assert statements_of(ctx, "n3") == []
        down(ctx, "two")


def test_no_port_is_led_to_a_node_without_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects published labs where guests have addresses of their own."""
    register(monkeypatch)
    can = Capabilities("fake", "fake", forwards=False)
    world = World(tmp_path, can, publish=EVERYWHERE, publish_name="labs.example", redirects=True)
    with world.open() as ctx:
        made = up(ctx, structs.replace(REQUEST, blueprint="watched", cold=True))
        rows = [ctx.store.nodes.get("two", node.name) for node in made.nodes]
        assert [bool(row.redirect) for row in rows] == [True, True, False]
        assert made.nodes[2].sql_port == 0


def test_the_template_is_of_all_of_them(world: World) -> None:
    """Protects clones: another image, size or role is another template."""
    with world.open() as ctx:
        made = template.build(ctx, REQUEST)
        capture = manifests.read(ctx.home.manifest(template_ref(made.key)))
        assert [(n.name, n.role, n.image, n.size) for n in capture.nodes] == [
            ("n1", "server", images_of(ctx)[0], SIZE),
            ("n2", "front", images_of(ctx)[1], FRONT.size),
        ]  # fmt: skip
        assert [n.ram.size for n in capture.nodes if n.ram] == [SIZE.memory, FRONT.size.memory]
        for node, key in zip(("n1", "n2"), images_of(ctx), strict=True):
            assert origin(ctx, f"templates/{made.key}/{node}/os").startswith(f"images/{key}/")
        assert [one.use for one in templates(ctx)] == ["current"]
        assert preview(ctx, REQUEST).template == made.key
        ctx.store.templates.remove(made.key)  # its record is lost
        assert template.build(ctx, REQUEST).key == made.key
        assert ctx.store.templates.get(made.key).nodes["n2"]["memory"] == 512 * MIB


def test_another_image_size_or_role_is_another_key(world: World) -> None:
    """Protects clones from the capture of a node that is none of theirs."""
    with world.open() as ctx:
        engine, front = (
            image.ensure(ctx, image.spec_of(ctx, one)) for one in ("mariadb", FRONT.recipe)
        )
        all_ = Images(engine, {front.recipe: front})
        alike = NodePlan("n2", "server", SIZE)
        fronts = [
            FRONT, alike, replace(alike, role="front"), replace(alike, recipe=front.recipe),
            replace(alike, size=FRONT.size), replace(alike, size=replace(SIZE, disk=GIB)),
        ]  # fmt: skip
        plans = [Mixed(front=one) for one in fronts]
        order = resolve(ctx, REQUEST)
        orders = [replace(order, blueprint=one, nodes=one.plan(REQUEST.size)) for one in plans]
        keys = {template.key_of(ctx, one, all_) for one in orders}
    assert len(keys) == len(fronts)


def test_no_image_that_a_node_needs_is_removed(world: World) -> None:
    """Protects labs that run: the kernel of a stopped node is a file of its image."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        for key in images_of(ctx):
            with pytest.raises(Conflict, match="lab two, template"):
                image.remove(ctx, key)
        down(ctx, "two")
        for key in images_of(ctx):
            with pytest.raises(Conflict, match="is used by template"):
                image.remove(ctx, key)
        template.remove(ctx, ctx.store.templates.all()[0].key)
        for key in images_of(ctx):
            image.remove(ctx, key)


def test_an_image_of_one_node_that_cannot_be_built(world: World) -> None:
    """Its failure is reported as what it is; the image of the other node stays, and no lab."""

    def fails(recipe: Recipe, out: Path, **options: Any) -> BuiltImage:
        if recipe.name == FRONT.recipe:
            raise CommandFailed(["apt-get"], 100, stderr="no such package")
        return build(recipe, out, **options)

    world.build = fails
    with world.open() as ctx:
        with pytest.raises(CommandFailed, match="apt-get"):
            up(ctx, REQUEST)
        assert ctx.store.labs.all() == []
        assert [one.recipe for one in ctx.store.images.all()] == ["mariadb"]
        assert preview(ctx, REQUEST).image_exists is False
    world.build = build
    with world.open() as ctx:
        assert up(ctx, REQUEST).state == "ready"


def test_a_failure_before_its_guests_leaves_no_lab(world: World) -> None:
    with (
        world.open(at("storage.clone", raising(HostUnfit("no")))) as ctx,
        pytest.raises(HostUnfit),
    ):
        up(ctx, REQUEST)
    with world.open() as ctx:
        assert ctx.store.labs.all() == []
        assert up(ctx, REQUEST).state == "ready"


def test_room_is_that_of_all_nodes() -> None:
    """The memory of different nodes is added, and no size is printed that only some have."""
    have = Memory(available=800 * MIB, total=4096 * MIB)
    check_memory([256 * MIB, 512 * MIB], have, 0)
    with pytest.raises(HostUnfit, match="2 nodes need 896M of memory"):
        check_memory([384 * MIB, 512 * MIB], have, 0)
    with pytest.raises(HostUnfit, match="2 nodes of 512M need 1G of memory"):
        check_memory([512 * MIB, 512 * MIB], have, 0)


def test_a_disk_must_fit_the_image_of_its_node(world: World) -> None:
    with world.open() as ctx, pytest.raises(InvalidSpec, match="disk cannot be 4M"):
        up(ctx, lab_request("mixed", disk=4 * MIB))


@pytest.mark.parametrize("with_image", [True, False])
def test_its_template_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_image: bool
) -> None:
    """Protects exchange: each node is a clone of its own image there as well, with its RAM."""
    register(monkeypatch)
    here, there = Side(tmp_path / "here", forms=True), Side(tmp_path / "there")
    with here.open() as ctx:
        key = template.build(ctx, REQUEST).key
    archive = here.exported("template", key, image=with_image)
    if not with_image:
        with pytest.raises(NotFound, match="of the image mariadb-"):
            there.imported("template", archive)
        for one in ("mariadb", FRONT.recipe):
            there.imported("image", here.exported("image", one))
    done = there.imported("template", archive, warm_only=True)
    assert done.outcome == "imported"
    [note] = done.notes
    assert "RAM and device states" in note
    assert there.imported("template", archive).outcome == "exists"
    assert there.disks(Owner("template", done.key)) == here.disks(Owner("template", key))
    with there.open() as ctx:
        first, second = images_of(ctx)
        assert origin(ctx, f"templates/{done.key}/n1/os").startswith(f"images/{first}/")
        assert origin(ctx, f"templates/{done.key}/n2/os").startswith(f"images/{second}/")
        made = up(ctx, REQUEST)
        assert (made.started, made.template) == ("warm", done.key)
        check_guests(ctx)


def test_a_template_of_more_nodes_than_requested_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects exchange of labs with a proxy: it is no node that was requested there either."""
    register(monkeypatch)
    here, there = Side(tmp_path / "here", forms=True), Side(tmp_path / "there")
    alone = structs.replace(REQUEST, nodes=1)
    with here.open() as ctx:
        key = template.build(ctx, alone).key
    done = there.imported("template", here.exported("template", key), warm_only=True)
    with there.open() as ctx:
        assert ctx.store.templates.get(done.key).node_count == 1
        made = up(ctx, alone)
        assert (made.started, made.template) == ("warm", done.key)


def test_without_ram_its_disks_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    here, there = Side(tmp_path / "here", forms=True), Side(tmp_path / "there", version="2")
    with here.open() as ctx:
        key = template.build(ctx, REQUEST).key
    archive = here.exported("template", key)
    with pytest.raises(HostUnfit, match="cannot be restored here"):
        there.imported("template", archive, warm_only=True)
    done = there.imported("template", archive)
    with there.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.started, made.template) == ("cold", done.key)
        check_guests(ctx)


def test_an_archive_of_other_nodes_than_planned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from an archive whose nodes this version's blueprint plans in another way."""
    register(monkeypatch)
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    with here.open() as ctx:
        key = template.build(ctx, REQUEST).key
        first, second = (key.encode() for key in images_of(ctx))
    archive = here.exported("template", key, ram=False)
    larger = (b'"memory":536870912', b'"memory":537919488')
    with pytest.raises(InvalidSpec, match="other sizes than those of mixed"):
        there.imported("template", rewritten(archive, *larger))
    unknown = (b'"image":"%s"' % second, b'"image":"%s"' % second.replace(b"percona", b"unknown"))
    with pytest.raises(InvalidSpec, match="header is invalid"):
        there.imported("template", rewritten(archive, *unknown))
    assert as_it_was(there) == set()
    assert first != second


def test_users_see_what_each_node_has(world: World) -> None:
    """Protects from figures that are right for one node only, in tables and in the API."""
    with world.open() as ctx:
        before = preview(ctx, REQUEST)
        made = up(ctx, REQUEST)
        (kept,) = templates(ctx)
        first, second = images_of(ctx)
    assert "nodes     2, memory: n1 384M, n2 512M" in preview_text(before)
    assert [(node.name, node.image) for node in before.each] == [("n1", first), ("n2", second)]
    assert before.each == kept.each
    table = shown([kept], 0)
    assert "384M,512M" in table
    assert f"{first},{second}" in table
    admin = f"127.0.0.1:{made.nodes[1].ports['admin']}"
    assert re.search(rf"^admin +{admin}$", lab_text(made, 0), re.MULTILINE)
    api = lab_answer(lab_of(made, None, login=False)).model_dump()
    assert api["addresses"]["admin"] == [admin]
    assert api["nodes"][1]["ports"] == made.nodes[1].ports
    assert [node["memory"] for node in answer(kept).model_dump()["each"]] == [
        SIZE.memory,
        FRONT.size.memory,
    ]
