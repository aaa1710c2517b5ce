"""A template that is not what was captured is never used: it is reported, and recreated."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, LimitReached, NotFound
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.core.context import Context, Origin
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.locks.named import lock
from lab.names import GuestName, Owner, VolumeName, template_ref
from lab.units import MIB
from tests.support.lifecycle_world import REQUEST, World, make_template, named

Damage = Callable[[Context, str], object]


def _flip(path: Path) -> None:
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _flip_ram(ctx: Context, key: str) -> None:
    ctx.home.ram(template_ref(key), "n2").chmod(0o600)
    with ctx.home.ram(template_ref(key), "n2").open("r+b") as ram:
        ram.seek(1 << 20)
        ram.write(b"\x01")


def _truncate_ram(ctx: Context, key: str) -> None:
    ctx.home.ram(template_ref(key), "n1").chmod(0o600)
    with ctx.home.ram(template_ref(key), "n1").open("r+b") as ram:
        ram.truncate(1 << 20)


def _lose_ram(ctx: Context, key: str) -> None:
    ctx.home.ram(template_ref(key), "n1").unlink()


def _flip_state(ctx: Context, key: str) -> None:
    _flip(ctx.home.device_state(template_ref(key), "n1"))


def _truncate_state(ctx: Context, key: str) -> None:
    ctx.home.device_state(template_ref(key), "n2").chmod(0o600)
    ctx.home.device_state(template_ref(key), "n2").write_bytes(b"")


def _flip_manifest(ctx: Context, key: str) -> None:
    _flip(ctx.home.manifest(template_ref(key)))


def _truncate_manifest(ctx: Context, key: str) -> None:
    ctx.home.manifest(template_ref(key)).write_text("")


def _lose_manifest(ctx: Context, key: str) -> None:
    ctx.home.manifest(template_ref(key)).unlink()


def _foreign_manifest(ctx: Context, key: str) -> None:
    ctx.home.manifest(template_ref(key)).write_text('"teapot"')


def _manifest_without_nodes(ctx: Context, key: str) -> None:
    _alter_manifest(ctx, key, {"nodes": []})


def _manifest_without_ram(ctx: Context, key: str) -> None:
    """Would make clones boot cold, and nobody would know why."""
    nodes = [{"name": n, "role": "member", "ram": None, "state": None} for n in ("n1", "n2")]
    _alter_manifest(ctx, key, {"nodes": nodes})


def _alter_manifest(ctx: Context, key: str, change: dict[str, object]) -> None:
    path = ctx.home.manifest(template_ref(key))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def _lose_volume(ctx: Context, key: str) -> None:
    ctx.storage.destroy(VolumeName(Owner("template", key), "n2", "os"))


def _flip_disk(ctx: Context, key: str) -> None:
    """Every frozen disk of the template."""
    for name, volume in json.loads((ctx.home.storage / "state.json").read_text()).items():
        if key in name:
            for content in volume["snapshots"].values():
                _flip_in_place(ctx.home.storage / "contents" / content)


def _flip_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(MIB)
        file.write(b"\x01")


def _lose_seed(ctx: Context, key: str) -> None:
    ctx.home.seed(Owner("template", key), "n1").unlink()


DAMAGES: list[Damage] = [
    _flip_ram,
    _truncate_ram,
    _lose_ram,
    _flip_state,
    _truncate_state,
    _flip_manifest,
    _truncate_manifest,
    _lose_manifest,
    _foreign_manifest,
    _manifest_without_nodes,
    _manifest_without_ram,
    _lose_volume,
    _flip_disk,
    _lose_seed,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_template_is_made_anew(world: World, damage: Damage) -> None:
    with world.open() as ctx:
        make_template(ctx)
        before = world.there()
        (found,) = template.templates(ctx)
        damage(ctx, found.key)
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        assert view.started == "warm"
        (new,) = template.templates(ctx)
        assert (new.key, new.state) == (found.key, "ready")
        assert new.created_at > found.created_at
        down(ctx, "shop")
    assert any("is not used" in note for note in world.notes)
    assert world.there() == before, "nothing of the damaged one is left"


def test_a_host_without_free_file_handles_harms_no_template(world: World) -> None:
    """A busy service would else form all of its templates again, for minutes each."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        manifest = manifests.read(ctx.home.manifest(template_ref(found.key)))
        state = ctx.home.device_state(template_ref(found.key), "n1")
        facts = manifest.nodes[0].state
        assert facts is not None
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        next_ = os.open(os.devnull, os.O_RDONLY)
        os.close(next_)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_, usual[1]))
            with pytest.raises(HostUnfit, match="Too many open files"):
                manifests.read(ctx.home.manifest(template_ref(found.key)))
            with pytest.raises(HostUnfit, match="Too many open files"):
                manifests.unharmed(state, facts, read=True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize("damage", [_flip_state, _lose_manifest, _truncate_ram])
def test_labs_on_a_damaged_template_live_on(world: World, damage: Damage) -> None:
    """Protects data: what labs were cloned from stays until the last of them is gone."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        up(ctx, named("old"))
        damage(ctx, found.key)
        new = up(ctx, named("new"))
        assert new.template != found.key
        states = {view.key: view.state for view in template.templates(ctx)}
        assert states == {found.key: "broken", new.template: "ready"}
        gc(ctx)
        power.stop(ctx, "old")
        assert start(ctx, "old", timeout=10).state == "ready"
        with pytest.raises(Conflict, match="old"):
            template.remove(ctx, found.key)
        down(ctx, "old")
        report = gc(ctx)
        assert any(found.key in line for line in report.removed)
        assert [view.key for view in template.templates(ctx)] == [new.template]
        assert up(ctx, named("newer")).template == new.template
        template_key = new.template.partition(".")[0]
        assert template_key == found.key


def test_each_difference_has_a_template_of_its_own(world: World) -> None:
    """RAM of another size, count or QEMU must never be restored."""
    with world.open() as ctx:
        make_template(ctx)
        template.build(ctx, named("", nodes=1))
        template.build(ctx, named("", memory=2 * REQUEST.memory))
        template.build(ctx, named("", cpus=2))
        template.build(ctx, REQUEST)
        assert len(template.templates(ctx)) == 4
    world.version = "2"
    with world.open() as ctx:
        assert up(ctx, REQUEST).started == "warm"
        assert len(template.templates(ctx)) == 5


def test_without_warm_restore_clones_boot_formed_disks(world: World) -> None:
    """As on bhyve: the same template without RAM, and the reason is reported."""
    world.capabilities = Capabilities("fake", "bhyve", why_cold="bhyve cannot")
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        assert (view.started, view.why_cold) == ("cold", "bhyve cannot")
        assert view.template
        assert not template.templates(ctx)[0].warm
        assert lab(ctx, "shop").state == "ready"


def test_removal_takes_a_key_or_what_it_begins_with(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        for wrong in ("", "zz"):
            with pytest.raises(NotFound):
                template.remove(ctx, wrong)
        ctx.store.templates.add(
            replace(ctx.store.templates.get(found.key), key=f"{found.key}.2", state="broken")
        )
        template.remove(ctx, found.key)
        assert [view.key for view in template.templates(ctx)] == [f"{found.key}.2"]
        template.remove(ctx, found.key[:5])
        assert template.templates(ctx) == []


def test_servers_of_clones_are_reseeded(world: World) -> None:
    """Protects secrets: clones would take the same numbers for random. Their clocks are right."""
    with world.open() as ctx:
        make_template(ctx)
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        seeds = []
        for name in ("shop", "other"):
            view = up(ctx, named(name))
            assert view.started == "warm"
            for node in view.nodes:
                inside = ctx.hypervisor.servers.inside(GuestName(node.guest))
                assert inside.seeds == inside.entropy
                seeds.append(inside.seeds)
                assert abs(ctx.hypervisor.servers.clock(GuestName(node.guest)) - time.time()) < 1
        assert len(set(seeds)) == len(seeds) == 4


def _of(ctx: Context, nodes: int) -> str:
    template.build(ctx, named("", nodes=nodes))
    (key,) = (view.key for view in template.templates(ctx) if view.nodes == nodes)
    return key


def test_the_least_recently_used_template_makes_room(world: World) -> None:
    """Protects the disk from a token that asks for labs of ever new sizes."""
    with world.open() as opened:
        ctx = replace(opened, settings=replace(opened.settings, max_templates=2))
        first, second = _of(ctx, 1), _of(ctx, 2)
        up(ctx, named("shop", nodes=1))
        down(ctx, "shop")
        third = _of(ctx, 3)
        assert {view.key for view in template.templates(ctx)} == {first, third}
        assert not ctx.home.template(second).exists()
        assert not [v for v in ctx.storage.volumes() if v.name.owner.name == second]
    what = f"the least recently used template {second} (galera, 2 nodes)"
    before, after = (note for note in world.notes if what in note)
    assert "is removed: the limit is 2 (max_templates)" in before
    assert after.startswith("removed ")


def test_a_project_at_its_limit_takes_no_template_of_others(world: World) -> None:
    """Protects others: what is refused removes nothing. Its own unused one makes room."""
    with world.open() as opened:
        others = _of(opened, 1)
        limited = replace(opened.settings, max_templates=2)
        ctx = replace(opened, settings=limited, origin=Origin(project="p"), templates=1)
        up(ctx, named("shop2", nodes=2))
        with pytest.raises(LimitReached, match="labs use them all"):
            up(ctx, named("shop3", nodes=3))
        assert {view.nodes for view in template.templates(ctx)} == {1, 2}
        up(ctx, named("again2", nodes=2))
        for name in ("shop2", "again2"):
            down(ctx, name)
        up(ctx, named("shop3", nodes=3))
        assert {view.nodes for view in template.templates(ctx)} == {1, 3}
        assert others in {view.key for view in template.templates(ctx)}


def test_templates_of_labs_stay_however_many_there_are(world: World) -> None:
    with world.open() as opened:
        ctx = replace(opened, settings=replace(opened.settings, max_templates=1))
        for nodes in (1, 2, 3):
            up(ctx, named(f"shop{nodes}", nodes=nodes))
        assert len(template.templates(ctx)) == 3
        for nodes in (1, 2, 3):
            down(ctx, f"shop{nodes}")
        _of(ctx, 4)
        assert [view.nodes for view in template.templates(ctx)] == [4]


def test_a_template_that_is_being_used_stays(world: World) -> None:
    """Protects a command that is just cloning it, and has no lab on record yet."""
    with world.open() as opened:
        ctx = replace(opened, settings=replace(opened.settings, max_templates=1))
        first = _of(ctx, 1)
        with lock(ctx.home, "template", first, shared=True):
            second = _of(ctx, 2)
        assert {view.key for view in template.templates(ctx)} == {first, second}
