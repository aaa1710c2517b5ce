"""Cloning a capture: its disks, and its RAM where it has some, so that guests resume from it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import RestoreFailed
from lab.hypervisor import MemoryImage, memory_of
from lab.lifecycle.captures.capture import Capture, disk_snapshots
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.form import Formation, intend, mark_origin, seed_of
from lab.lifecycle.nodes.nodes import Node, Wiring, guest_spec, volumes_of
from lab.names import CaptureRef, VolumeName
from lab.storage.sparse import extents

if TYPE_CHECKING:
    from lab.lifecycle.nodes.personalise import Prepared


def clone(ctx: Context, capture: Capture, lab: Formation) -> Prepared:
    """Clone disks and RAM of ``capture`` into the guests of ``lab``; they run afterwards.

    The lab's lock is held, the capture kept from removal. Returns the identities that the
    nodes are to get, made while QEMU was starting. Raises as storage and hypervisor do; what
    was made stays: the caller releases the owner.
    """
    with ctx.progress.step("clone", f"cloning the disks of {len(lab.nodes)} nodes"):
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
) -> Prepared:
    """Bring up ``nodes``, whose disks are as captured: with their RAM, else by booting them.

    ``parent``: the capture that the lab is a clone of. ``new``: volumes that were just cloned; they
    are marked as the lab's origin before any node runs. The rest as for ``clone``.
    """
    if new and not capture.warm:
        mark_origin(ctx, new)

    def bring_up(node: Node) -> None:
        base = capture.node(node.name).base or capture.ref
        ram = ctx.home.ram(base, node.name) if capture.warm else None
        wiring = Wiring(
            home=ctx.home.id,
            segment=segment,
            seed=seed_of(ctx, node, parent, segment),
            console_log=ctx.home.console_log(node.guest),
            memory_file=ram,
            tags={MEMORY: str(base)} if ram else {},
        )
        volumes = [ctx.storage.get(volume) for volume in volumes_of(node, images)]
        guest = guest_spec(node, volumes, images[node.image], wiring)
        if ram:
            state = ctx.home.device_state(capture.ref, node.name)
            memory_of(ctx.hypervisor).restore(guest, MemoryImage(ram, state, guest.memory))
        else:
            ctx.hypervisor.start(guest)

    def meanwhile() -> Prepared:
        from lab.lifecycle.core import sql  # noqa: F401  loaded while QEMU starts
        from lab.lifecycle.nodes.personalise import prepare

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

_READ_AHEAD = 128 << 10
"""Bytes per call: of a larger range Linux reads only the device's read-ahead size, usually this, or
its largest request (force_page_cache_ra in mm/readahead.c)."""


def read_ahead(path: Path) -> None:
    """Have the kernel read a RAM file into the page cache, while QEMU starts.

    After a reboot of the host nothing is cached, and a resumed guest would wait for the disk at
    each page fault, 128 KiB at a time (readahead), while its cluster waits for it. Holes are
    skipped: reading them would fill the cache with zeros. The calls take 10 to 25 ms for 300 MB
    that are cached, so samples decide whether to make them. Guests are resumed after all calls:
    before that their own reads would queue behind these. Source: posix_fadvise(2), preadv2(2).
    """
    with suppress(OSError), path.open("rb") as file:  # without it guests are slower, no more
        handle = file.fileno()
        if not _is_cached(handle):
            for start, length in extents(handle):
                for offset in range(start, start + length, _READ_AHEAD):
                    size = min(_READ_AHEAD, start + length - offset)
                    os.posix_fadvise(handle, offset, size, os.POSIX_FADV_WILLNEED)


def _is_cached(handle: int) -> bool:
    """Whether the data of an open file is in the page cache, as far as 64 samples show."""
    size = os.fstat(handle).st_size
    try:
        for number in range(64):
            offset = os.lseek(handle, size * number // 64, os.SEEK_DATA)
            os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:  # BlockingIOError: this page is not; ENXIO: a hole up to the end
        return error.errno == errno.ENXIO
    return True


def unrestored(error: RestoreFailed) -> str:
    """Why the RAM of a capture was not restored, in one line, with the last line of QEMU's log."""
    return "; ".join([f"its RAM was not restored: {error}", *error.details[-1:]])
