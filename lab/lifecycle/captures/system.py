"""Another image's system under a node that keeps its data: how a server is upgraded.

The volume with the system stays, with its snapshots, to all of which the node can go back: its
content becomes that of the other image. What the node has of its own is taken over in the guest,
from a clone of the volume as it was, by the program ``images/guest/usr/lib/lab/carry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lab import host
from lab.blueprints import Blueprint
from lab.config import enginefile
from lab.config.enginefile import family_of
from lab.config.profile import Profile
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.exchange import content
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.capture import Capture, of_lab, parent_of
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.ready import Image, Images
from lab.lifecycle.nodes.form import guest_of, put_seed, seed_of
from lab.lifecycle.nodes.inspect import images_of, nodes_of
from lab.lifecycle.nodes.nodes import Node, seed_disk
from lab.names import VolumeName
from lab.schedule import FORMER, ORIGIN
from lab.state.records import LabRecord
from lab.storage import VolumeSnapshot
from lab.storage.overwrite import overwrite
from lab.units import format_size
from lab.wait import Deadline, attempts

_SYSTEM = "os"
_CARRY = "/usr/lib/lab/carry"
_CARRY_SECONDS = 3600.0


def check(ctx: Context, node: Node, new: Image) -> None:
    """Raise InvalidSpec or HostUnfit unless a node can have the system of the image ``new``."""
    have = ctx.storage.get(node.volume(_SYSTEM)).size
    origin = images.snapshots(ctx, new)[_SYSTEM]
    if have < origin.size:
        raise InvalidSpec(
            f"the system disk of {node.name} has {format_size(have)}, that of the image"
            f" {new.key} {format_size(origin.size)}",
            hint="such a lab is upgraded by a dump: `lab dump`, then `lab dataset create`",
        )
    if not ctx.hypervisor.capabilities().direct:
        raise InvalidSpec("systems are replaced where guests boot kernels directly: under QEMU")
    with ctx.storage.read(origin) as read:
        needed = read.data
    floor = ctx.settings.space_floor
    host.check_space(
        ctx.storage.space().free, floor, ctx.home.root, needed=needed, what="another system"
    )


def replace_system(
    ctx: Context, record: LabRecord, node: Node, new: Image, label: str, timeout: float
) -> Node:
    """Give ``node``, whose guest was stopped, the system of the image ``new``; it is not started.

    ``label``: of the snapshot that a rollback of the node completes to if this is interrupted.
    ``timeout``: seconds that a guest may take to boot. The lab's lock is held, the image kept from
    removal. Raises NotReady, CommandFailed, and as the storage does.
    """
    former = images_of(ctx, record, [node])[node.image]
    volume, old = node.volume(_SYSTEM), node.volume(FORMER)
    forget_former(ctx, node)
    (was,) = ctx.storage.snapshot([volume], FORMER)
    intent = ctx.store.resources.intend_all(node.owner, [("volume", str(old))])
    tags = {"owner": str(node.owner), "node": node.name}
    ctx.storage.clone(was, old, tags)
    ctx.store.resources.made(*intent)
    interrupted.begin(ctx, record.name, label, node.name)
    with ctx.progress.step("system", f"replacing the system of {node.name}"):
        _overwrite(ctx, volume, images.snapshots(ctx, new)[_SYSTEM])
        ctx.store.nodes.update(record.name, node.name, image=new.key)
        upgraded = replace(node, image=new.key)
        _write_seed(ctx, record, upgraded, new)
    with ctx.progress.step("carry", f"taking over the data of {node.name}"):
        _carry(ctx, record, upgraded, Images(new), old, former.engine.config_path, timeout)
    forget_former(ctx, node)
    return upgraded


def _overwrite(ctx: Context, volume: VolumeName, origin: VolumeSnapshot) -> None:
    """Have the content of ``origin`` on a volume, in place of its own; its snapshots stay."""
    blank = ctx.storage.rollback(volume, ORIGIN)  # a clone that nobody wrote to
    base = VolumeSnapshot(volume, ORIGIN, blank.size)
    below, above = partial(ctx.storage.read, base), partial(ctx.storage.read, origin)
    overwrite(blank, content.of_changes(below, above))


def _write_seed(ctx: Context, record: LabRecord, node: Node, new: Image) -> None:
    plan: Blueprint = record.plan
    profile: Profile = ctx.settings.profile_of(record.profile)
    others = [node if one.name == node.name else one for one in nodes_of(ctx, record.name)]
    found = seed_disk(node, others, plan, new.engine, profile.engine, record.segment)
    put_seed(ctx, ctx.home.seed(node.owner, node.name, new.key), found)


def _carry(
    ctx: Context,
    record: LabRecord,
    node: Node,
    found: Images,
    old: VolumeName,
    former: str,
    timeout: float,
) -> None:
    """Boot a node once, with its former system as a disk more, and without a server."""
    engine = found[node.image].engine
    disks = [node.volume(disk) for disk in found[node.image].volumes]
    volumes = [ctx.storage.get(volume) for volume in (*disks, old)]
    seed = seed_of(ctx, node, None, record.segment)
    guest = guest_of(ctx, node, found, record.segment, seed, volumes=volumes)
    ctx.hypervisor.start(guest)
    channel = ctx.hypervisor.channel(node.guest)
    for _ in attempts(Deadline.after(timeout)):
        if channel.ping(1.0):
            break
    else:
        raise NotReady(f"the guest of {node.name} does not answer after its system was replaced")
    argv = [_CARRY, former, engine.config_path, engine.user, *family_of(engine.name).checks]
    try:
        channel.run(argv, timeout=_CARRY_SECONDS, halt=ctx.progress.halt)
    except CommandFailed as error:
        lines = error.stderr.splitlines()
        raise NotReady(
            f"the server {engine.name} {engine.version} refuses what {node.name} has",
            details=[line for line in lines if "[ERROR]" in line][-5:] or lines[-3:],
        ) from None
    ctx.hypervisor.stop(node.guest, force=False, halt=ctx.progress.halt)


def forget_former(ctx: Context, node: Node) -> None:
    """Remove the clone of a node's former system, and the snapshot below it; fine if absent."""
    former = node.volume(FORMER)
    ctx.storage.destroy(former)
    ctx.store.resources.gone(former.owner, "volume", str(former))
    ctx.storage.drop(VolumeSnapshot(node.volume(_SYSTEM), FORMER, 0))


def put_back(
    ctx: Context, record: LabRecord, capture: Capture, nodes: Sequence[Node]
) -> tuple[LabRecord, list[Node]]:
    """Record that ``nodes`` have the images that they had in ``capture``; both as they are then."""
    was = images_in(ctx, record, capture)
    changed = {one.name: was.get(one.name, one.image) for one in nodes}
    changed = {one.name: changed[one.name] for one in nodes if changed[one.name] != one.image}
    if not changed:
        return record, list(nodes)
    for name, image in changed.items():
        ctx.store.nodes.update(record.name, name, image=image)
    names, now = {node.name for node in nodes}, update_lab(ctx, record)
    return now, [node for node in nodes_of(ctx, record.name) if node.name in names]


def as_captured(
    ctx: Context, record: LabRecord, capture: Capture
) -> tuple[LabRecord, tuple[Node, ...]]:
    """A lab as ``capture`` has it: its record and its nodes, with the images that they had then.

    They may have others since an upgrade. Raises NotFound if one is not there any more.
    """
    was, now = images_in(ctx, record, capture), nodes_of(ctx, record.name)
    keys = {node.name: was.get(node.name, node.image) for node in now}
    if all(keys[node.name] == node.image for node in now):
        return record, now
    found = {key: images.find(ctx, key).engine.release for key in {*keys.values()} - {""}}
    nodes = tuple(
        replace(node, image=keys[node.name], release=found.get(keys[node.name], node.release))
        for node in now
    )
    return replace(record, **_engines(ctx, record, nodes)), nodes


def images_in(ctx: Context, record: LabRecord, capture: Capture) -> dict[str, str]:
    """The keys of the images of nodes in a capture of a lab, as far as they were recorded.

    The origin of a lab has no manifest: its nodes were as in what it is a clone of. So were those
    of a capture from before nodes could differ, which has no keys: labs were not upgraded then.
    """
    known = {node.name: node.image for node in capture.nodes if node.image}
    if capture.label != ORIGIN:
        whole = len(known) == len(capture.nodes)
        return known if whole else {**_of_origin(ctx, record), **known}
    return {**known, **_of_origin(ctx, record)}


def _of_origin(ctx: Context, record: LabRecord) -> dict[str, str]:
    """The keys of the images that the nodes of a lab had when it was made, as far as known."""
    if (parent := parent_of(record)) is None:
        return {}
    path = ctx.home.manifest(parent)
    if parent.owner.kind == "lab":
        other = ctx.store.labs.get(parent.owner.name)
        try:
            capture = manifests.read(path)
        except Damaged:  # an origin has none
            capture = of_lab(other, ctx.store.nodes.of(other.name), parent.label)
        return images_in(ctx, other, capture)
    template = ctx.store.templates.find(parent.owner.name)
    found = {name: str(node["image"]) for name, node in template.nodes.items()} if template else {}
    with suppress(Damaged):  # it has lost it
        for node in manifests.read(path).nodes:
            key = node.image or found.get(node.name) or (template.image if template else "")
            found[node.name] = key
    return {name: key for name, key in found.items() if key}


def update_lab(ctx: Context, record: LabRecord) -> LabRecord:
    """Record what a lab has since images of its nodes changed; the record as it is then."""
    ctx.store.labs.update(record.name, **_engines(ctx, record, nodes_of(ctx, record.name)))
    return ctx.store.labs.get(record.name)


def _engines(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> dict[str, Any]:
    """What is recorded of the engines of a lab whose nodes have these images.

    Its engine is that of its first server, the others' are recorded as if they had been requested.
    """
    servers = [node for node in nodes if node.has_server and node.image]
    image = servers[0].image if servers else record.image
    found = {key: images.find(ctx, key) for key in {image, *(node.image for node in servers)}}
    others = [
        f"{node.name}={enginefile.named(found[node.image].recipe)}"
        for node in servers
        if node.image != image
    ]
    options = {name: value for name, value in record.options.items() if name != "node"}
    return {
        "image": image,
        "engine": found[image].engine.name,
        "engine_version": found[image].engine.version,
        "options": {**options, "node": others} if others else options,
    }
