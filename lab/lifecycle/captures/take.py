"""Capturing a lab that stays: its disks, and the RAM of nodes that run, at one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lab.errors import Interrupted, LabError
from lab.hypervisor import Memory, MemoryImage
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.capture import Capture, CapturedNode, FileFacts, disk_snapshots
from lab.lifecycle.captures.clone import MEMORY
from lab.lifecycle.captures.freeze import freeze_ram
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.captures.template import shape_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.lifecycle.nodes.personalise import set_clocks
from lab.names import CaptureRef, GuestName, VolumeName
from lab.paths import REACHABLE, make_directory, remove_directory, writing
from lab.storage import VolumeSnapshot
from lab.undo import Undo
from lab.values import dataclass


@dataclass(frozen=True)
class RestoredFrom:
    """What a guest was restored from: the capture ``base``, whose RAM file it maps."""

    base: CaptureRef
    image: MemoryImage
    facts: FileFacts


Saved = Callable[[], MemoryImage]
"""Completes the copy of a node's RAM; see ``Memory.copy_memory``."""


def take(
    ctx: Context,
    ref: CaptureRef,
    nodes: Sequence[Node],
    images: Images,
    running: Sequence[GuestName],
    capture: Capture,
    *,
    ram: bool,
) -> Capture:
    """Capture a lab as ``ref``: all of it or nothing; its lock is held.

    ``running``: its guests that run, which are paused together meanwhile; ``ram``: with the RAM of
    all nodes, which run then. ``capture`` has the rest of what is recorded. Raises as storage and
    hypervisor do.
    """
    volumes = [volume for node in nodes for volume in volumes_of(node, images)]
    origins = {node.name: _origin(ctx, node) for node in nodes} if ram else {}
    with Undo() as undo:
        undo.push(f"snapshot {ref.label}", lambda: discard(ctx, ref, nodes, images))
        make_directory(ctx.home.directory(ref).parent, REACHABLE)
        make_directory(ctx.home.directory(ref), REACHABLE)
        memory, saved, pause = ctx.hypervisor.memory, dict[str, Saved](), 0.0
        if memory is not None and running:
            snapshots, saved, pause = _paused(ctx, memory, ref, nodes, origins, running, volumes)
        else:
            snapshots = ctx.storage.snapshot(volumes, ref.label)
        ctx.storage.persist(snapshots)
        found = each(
            lambda node: _node(
                ctx, ref, node, images, origins.get(node.name), saved.get(node.name)
            ),
            nodes,
        )
        made = replace(capture, owner=ref.owner, label=ref.label, nodes=tuple(found), pause=pause)
        manifests.write(ctx.home.manifest(ref), made)
        undo.keep()
    return made


def discard(ctx: Context, ref: CaptureRef, nodes: Sequence[Node], images: Images) -> None:
    """Remove a capture of a lab: its disks' snapshots, then its files; fine if absent.

    Raises Conflict if a disk of it has clones.
    """

    def drop(node: Node) -> None:
        for volume in volumes_of(node, images):
            ctx.storage.drop(VolumeSnapshot(volume, ref.label, 0))

    each(drop, nodes)
    remove_files(ctx, ref)


def remove_files(ctx: Context, ref: CaptureRef) -> None:
    """Remove the files of a capture of a lab; fine if absent."""
    directory = ctx.home.directory(ref)
    with writing(directory):
        remove_directory(directory)


def _paused(
    ctx: Context,
    memory: Memory,
    ref: CaptureRef,
    nodes: Sequence[Node],
    origins: dict[str, RestoredFrom | None],
    running: Sequence[GuestName],
    volumes: Sequence[VolumeName],
) -> tuple[list[VolumeSnapshot], dict[str, Saved], float]:
    """Disks and, of nodes with an entry in ``origins``, RAM, of guests that are paused.

    Also for how many seconds they were.
    """

    def save(node: Node) -> Saved:
        origin = origins[node.name]
        new = _files(ctx, ref, node)
        return memory.copy_memory(node.guest, origin.image if origin else None, new)

    def resume() -> None:
        guests = ctx.hypervisor.guests()
        memory.resume([guest for guest in running if guest in guests])

    began = time.monotonic()
    with Undo() as paused:  # in which no interrupt keeps the nodes from running again
        paused.push(f"the pause of {ref.owner.name}", resume)
        memory.pause(running)
        captured = [node for node in nodes if node.name in origins]
        saved = dict(zip(origins, each(save, captured), strict=True))
        snapshots = ctx.storage.snapshot(volumes, ref.label)
    pause = time.monotonic() - began
    # Their clocks were stopped.
    try:
        set_clocks(ctx, [node for node in nodes if node.guest in running])
    except Interrupted:
        raise
    except LabError as error:
        ctx.progress.note(
            "clock", f"the clocks of {ref.owner.name} were not corrected: {error.what}"
        )
    return snapshots, saved, pause


def _node(
    ctx: Context,
    ref: CaptureRef,
    node: Node,
    images: Images,
    origin: RestoredFrom | None,
    saved: Saved | None,
) -> CapturedNode:
    image = images[node.image]
    own = Capture(ref.owner, ref.label, ())
    seals = [ctx.storage.seal(s) for s in disk_snapshots(ctx, own, node.name, image.volumes)]
    made = CapturedNode(node.name, node.role, seals=tuple(seals), image=node.image, size=node.size)
    if saved is None:
        return made
    found = saved()
    state = manifests.facts(found.state)
    fingerprint = ctx.hypervisor.fingerprint(shape_of(image, node.size))
    if origin is not None and found.ram == origin.image.ram:
        return replace(
            made, ram=origin.facts, state=state, base=origin.base, fingerprint=fingerprint
        )
    with writing(found.ram):
        freeze_ram(ctx, found.ram)
    return replace(made, ram=manifests.facts(found.ram), state=state, fingerprint=fingerprint)


def _files(ctx: Context, ref: CaptureRef, node: Node) -> MemoryImage:
    return MemoryImage(
        ctx.home.ram(ref, node.name), ctx.home.device_state(ref, node.name), node.size.memory
    )


def _origin(ctx: Context, node: Node) -> RestoredFrom | None:
    """What the guest of a node was restored from; None if it was booted, or that is damaged."""
    guest = ctx.hypervisor.guests().get(node.guest)
    tag = guest.tags.get(MEMORY, "") if guest else ""
    if not tag:
        return None
    base = CaptureRef.parse(tag)
    image = _files(ctx, base, node)
    try:
        found = manifests.read(ctx.home.manifest(base)).node(node.name)
        if found.ram is None or found.state is None:
            return None
        manifests.unharmed(image.ram, found.ram)
        manifests.unharmed(image.state, found.state, read=True)
    except Damaged:
        return None
    return RestoredFrom(base, image, found.ram)
