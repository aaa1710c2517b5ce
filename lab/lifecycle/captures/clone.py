"""Cloning a capture: its disks, and its RAM where it has some, so that guests resume from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lab.errors import RestoreFailed
from lab.hypervisor import MemoryImage, memory_of
from lab.lifecycle.captures.capture import Capture, disk_snapshots
from lab.lifecycle.captures.page_cache import read_ahead
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.form import Formation, guest_of, intend, mark_origin, seed_of
from lab.lifecycle.nodes.nodes import Node
from lab.names import CaptureRef, VolumeName
from lab.storage import Volume
from lab.units import counted

if TYPE_CHECKING:
    from lab.lifecycle.nodes.personalise import Prepared


def clone(ctx: Context, capture: Capture, lab: Formation) -> Prepared:
    """Clone disks and RAM of ``capture`` into the guests of ``lab``; they run afterwards.

    The lab's lock is held, the capture kept from removal. Returns the identities that the
    nodes are to get, made while QEMU was starting. Raises as storage and hypervisor do; what
    was made stays: the caller releases the owner.
    """
    with ctx.progress.step("clone", f"cloning the disks of {counted(len(lab.nodes), 'node')}"):
        intent = intend(ctx, lab.nodes, lab.images)
        ctx.home.create_directory(lab.owner)
        made = []
        for node in lab.nodes:
            tags = {"owner": str(lab.owner), "node": node.name, "parent": str(capture.ref)}
            disks = lab.images[node.image].volumes
            for origin in disk_snapshots(ctx, capture, node.name, disks):
                volume = node.volume(origin.volume.volume)
                profile = lab.profile.volume(volume.volume)
                made.append(ctx.storage.clone(origin, volume, tags, profile=profile).name)
    result = wake(ctx, capture, capture.ref, lab.images, lab.nodes, lab.segment, new=made)
    ctx.store.resources.made(*intent)
    return result


def wake(
    ctx: Context,
    capture: Capture,
    parent: CaptureRef | None,
    images: Images,
    nodes: Sequence[Node],
    segment: int,
    *,
    new: Sequence[VolumeName] = (),
    disks: Mapping[str, Sequence[Volume]] | None = None,
) -> Prepared:
    """Bring up ``nodes``, whose disks are as captured: with their RAM, else by booting them.

    ``parent``: the capture that the lab is a clone of. ``new``: volumes that were just cloned; they
    are marked as the lab's origin before any node runs. ``disks``: those of each node, where they
    are not its volumes. The rest as for ``clone``.
    """
    if new and not capture.warm:
        mark_origin(ctx, new)

    def bring_up(node: Node) -> None:
        base = capture.node(node.name).base or capture.ref
        ram = ctx.home.ram(base, node.name) if capture.warm else None
        seed = seed_of(ctx, node, parent, segment)
        tags = {MEMORY: str(base)} if ram else {}
        volumes = disks[node.name] if disks else None
        guest = guest_of(
            ctx, node, images, segment, seed, volumes=volumes, memory_file=ram, tags=tags
        )
        if ram:
            state = ctx.home.device_state(capture.ref, node.name)
            memory_of(ctx.hypervisor).restore(guest, MemoryImage(ram, state, guest.memory))
        else:
            ctx.hypervisor.start(guest)

    def meanwhile() -> Prepared:
        from lab.lifecycle.nodes.personalise import prepare
        from lab.observe import sql  # noqa: F401  loaded while QEMU starts

        prepared = prepare(ctx, nodes[0].owner, nodes)
        if new and capture.warm:
            mark_origin(ctx, new)
        return prepared

    step = ("restore", "restoring RAM") if capture.warm else ("start", "booting the clones")
    with ctx.progress.step(*step), ThreadPoolExecutor() as pool:
        if capture.warm:
            for node in capture.nodes:
                pool.submit(read_ahead, ctx.home.ram(node.base or capture.ref, node.name))
        prepared = pool.submit(meanwhile)
        each(bring_up, nodes)
        result = prepared.result()
    if capture.warm:
        with ctx.progress.step("resume", "resuming all nodes together"):
            memory_of(ctx.hypervisor).resume([node.guest for node in nodes])
    return result


MEMORY = "memory"
"""The tag of a guest that was restored: the capture whose RAM file it maps."""


def unrestored(error: RestoreFailed) -> str:
    """Why the RAM of a capture was not restored, in one line, with the last line of QEMU's log."""
    return "; ".join([f"its RAM was not restored: {error}", *error.details[-1:]])
