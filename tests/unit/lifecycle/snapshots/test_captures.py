"""Captures: what identifies them, how their manifests are read, in which order they are removed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lab.blueprints import blueprint
from lab.errors import InvalidSpec
from lab.hypervisor import Hypervisor
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.captures.capture import Capture, CapturedNode
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.snapshots.snapshot import find, take
from lab.names import FORMED, CaptureRef, Owner, VolumeName, template_ref
from lab.requests.host import CollectGarbage
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import ORIGIN
from lab.storage import VolumeSnapshot
from lab.units import MIB
from tests.support.lifecycle_world import REQUEST, SIZE, World, make_template, named


class Watching:
    """A hypervisor; ``modes`` of the RAM files that are there when its user is queried."""

    def __init__(self, real: Hypervisor, templates: Path) -> None:
        self._real, self._templates = real, templates
        self.modes: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def run_as(self) -> tuple[int, int] | None:
        found = self._templates.rglob("*.ram")
        self.modes |= {stat.S_IMODE(path.stat().st_mode) for path in found}
        return self._real.run_as


def test_nobody_else_can_ever_open_a_file_of_ram(world: World) -> None:
    """Protects what a guest will have there: who opened it early could read it later."""
    before = os.umask(0)
    try:
        with world.open() as ctx:
            watching = Watching(ctx.hypervisor, ctx.home.templates)
            make_template(replace(ctx, hypervisor=watching))
    finally:
        os.umask(before)
    assert watching.modes
    assert all(not mode & 0o077 for mode in watching.modes), watching.modes


def as_format(number: int, path: Path) -> None:
    """Rewrite a manifest as earlier versions of the program wrote it."""
    capture = manifests.read(path)
    nodes = [asdict(node) for node in capture.nodes]
    for node in nodes:
        del node["image"], node["size"]
    ref: dict[str, str | None] = {"key": capture.owner.name, "label": capture.label}
    if number == 4:
        ref = {"capture": str(capture.ref), "parent": None}
    values = {**ref, "nodes": nodes, "why_cold": capture.why_cold}
    content = json.dumps(values, sort_keys=True).encode()
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    path.write_text(json.dumps({"format": number, "digest": digest, **values}, indent=1))


@pytest.mark.parametrize("number", [3, 4])
def test_templates_of_an_earlier_version_are_used(world: World, number: int) -> None:
    """Protects homes that are upgraded: their templates take minutes to form."""
    with world.open() as ctx:
        make_template(ctx)
        (before,) = template.templates(ctx)
        path = ctx.home.manifest(template_ref(before.key))
        capture = manifests.read(path)
        assert {(node.image, node.size) for node in capture.nodes} == {(before.image, SIZE)}
        as_format(number, path)
        nodes = tuple(replace(node, image="", size=None) for node in capture.nodes)
        assert manifests.read(path) == replace(capture, nodes=nodes)
        view = up(ctx, named("shop"))
        assert (view.started, view.template) == ("warm", before.key)
        assert [one.state for one in template.templates(ctx)] == ["ready"]


def test_keys_of_templates_stay(world: World) -> None:
    """Protects homes that are upgraded: under another key no template would be used again."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        shape = template.shape_of(image.find(ctx, found.image), REQUEST.size)
        parts = [
            3, ctx.home.id, found.image, "galera", blueprint("galera").version, REQUEST.nodes,
            REQUEST.memory, REQUEST.cpus, REQUEST.disk,
            ctx.settings.profile_of("").content(), ctx.hypervisor.fingerprint(shape),
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        assert found.key == digest[:14]


def test_a_manifest_holds_any_capture(world: World, tmp_path: Path) -> None:
    """Protects captures of labs: owner, label and parent come back as they were written."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        ref = template_ref(found.key)
        nodes = manifests.read(ctx.home.manifest(ref)).nodes
    capture = Capture(Owner("lab", "shop"), "mine.20261122t200000", nodes, ref, "a reason")
    path = tmp_path / "manifest.json"
    manifests.write(path, capture)
    assert manifests.read(path) == capture
    assert capture.warm
    assert not capture.without_ram("it was refused").warm
    assert not Capture(capture.owner, capture.label, ()).warm


def test_captures_have_places_of_their_own(world: World) -> None:
    """Protects a lab's captures from each other, and from the lab's own files."""
    shop = Owner("lab", "shop")
    one, other = CaptureRef(shop, "one"), CaptureRef(shop, "other")
    home = world.home
    files = [home.seed(shop, "n1"), home.seed(one, "n1"), home.ram(one, "n1"), home.manifest(one)]
    assert len({*files, home.seed(other, "n1"), home.ram(other, "n1")}) == 6
    assert home.directory(one).parent.parent == home.directory(shop)
    assert home.directory(template_ref("k")) == home.template("k")


@pytest.mark.parametrize("text", ["", "lab:shop", "lab:shop@", "shop@origin", "lab:shop@../x"])
def test_what_names_no_capture_is_refused(text: str) -> None:
    assert str(CaptureRef.parse("lab:shop@origin")) == "lab:shop@origin"
    with pytest.raises(InvalidSpec):
        CaptureRef.parse(text)


def test_snapshots_of_labs_are_captures(world: World) -> None:
    """The origin and later ones have the template's capture as parent; later ones have RAM."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        take(ctx, TakeSnapshot(lab="shop", name="mine"))
        parent = template_ref(lab(ctx, "shop").template)
        for label in (ORIGIN, "mine"):
            capture = find(ctx, "shop", label)
            assert (capture.owner, capture.parent) == (Owner("lab", "shop"), parent)
            assert capture.label.startswith(label)
            plain = [
                CapturedNode(node.name, node.role, image=node.image, size=node.size)
                for node in capture.nodes
            ]
            assert plain == [
                CapturedNode(node.name, "member", image=node.image, size=SIZE)
                for node in lab(ctx, "shop").nodes
            ]
            assert capture.warm == (label != ORIGIN)
            assert bool(capture.why_cold) == (label == ORIGIN)
            assert {node.base for node in capture.nodes} == {parent if capture.warm else None}
        up(ctx, named("cold", cold=True))
        assert find(ctx, "cold", ORIGIN).parent is None


def test_a_clone_is_tagged_with_its_parent(world: World) -> None:
    """Protects the order of removal when the record is lost."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        parents = {
            volume.tags.get("parent")
            for volume in ctx.storage.volumes()
            if volume.name.owner == Owner("lab", "shop")
        }
        assert parents == {str(template_ref(lab(ctx, "shop").template))}


def cloned(ctx: Context, owner: Owner, parent: CaptureRef | None, label: str) -> CaptureRef:
    """A volume of ``owner``, a clone of the parent's or a new one, and a snapshot of it."""
    volume = VolumeName(owner, "n1", "os")
    if parent is None:
        ctx.storage.create(volume, MIB, {"owner": str(owner)})
    else:
        origin = VolumeSnapshot(VolumeName(parent.owner, "n1", "os"), parent.label, MIB)
        ctx.storage.clone(origin, volume, {"owner": str(owner), "parent": str(parent)})
    ctx.storage.snapshot([volume], label)
    return CaptureRef(owner, label)


def test_gc_removes_a_chain_from_its_end(world: World) -> None:
    """A lab that is a clone of a lab, and a template made of a lab: kinds give no order."""
    chain = [
        Owner("image", "debian-1"),
        Owner("template", "aaaa"),
        Owner("lab", "a"),
        Owner("lab", "b"),
        Owner("template", "bbbb"),
        Owner("lab", "c"),
    ]
    with world.open() as ctx:
        parent = None
        for owner in chain:
            parent = cloned(ctx, owner, parent, FORMED)
        report = gc(ctx, CollectGarbage(orphans=True))
        assert report.left == ()
        assert [line.rpartition(": ")[0] for line in report.removed] == [
            str(owner) for owner in reversed(chain)
        ]
        assert ctx.storage.volumes() == []


def test_what_has_a_clone_that_stays_is_left(world: World) -> None:
    """Protects a recorded lab: what it is a clone of is reported, and stays."""
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        record = ctx.store.templates.get(view.template)
        ctx.store.templates.update(record.key, state="broken")
        report = gc(ctx)
        assert report.removed == ()
        assert any(record.key in line for line in report.left)
        ctx.store.labs.update("shop", expires_at=1.0)
        removed = [line.partition(": ")[0] for line in gc(ctx).removed]
        assert removed == ["lab:shop", f"template:{record.key}"]
