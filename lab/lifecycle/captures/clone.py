"""Warm: clone a captured cluster, disks and RAM, and let it go on where it stood."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lab.config.profile import Profile
from lab.errors import RestoreFailed
from lab.hypervisor import GuestSpec, MemoryImage
from lab.lifecycle.captures.manifests import Manifest
from lab.lifecycle.captures.template import origins
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.form import intend, mark_origin, seed_of
from lab.lifecycle.nodes.nodes import Node, Wiring, guest_spec
from lab.names import Owner
from lab.spec import LabSpec, NodeSize
from lab.storage import Volume
from lab.storage.sparse import extents

if TYPE_CHECKING:
    from lab.lifecycle.nodes.personalise import Prepared


def clone(
    ctx: Context,
    manifest: Manifest,
    image: Image,
    spec: LabSpec,
    nodes: Sequence[Node],
    segment: int,
) -> Prepared:
    """Clone the template's disks and RAM into the guests of ``nodes``; they run afterwards.

    The lab's lock is held, the template kept from removal. Returns the identities that the
    nodes are to get, made while QEMU was starting. Raises as storage and hypervisor do; what
    was made stays: the caller releases the owner.
    """
    with ctx.progress.step("clone", f"cloning the disks of {len(nodes)} nodes"):
        intent = intend(ctx, nodes, image.volumes)
        ctx.home.create_directory(nodes[0].owner)
        profile = ctx.settings.profile_of(spec.profile)
        volumes = {node.name: _clone_disks(ctx, manifest, node, image, profile) for node in nodes}
    names = [volume.name for found in volumes.values() for volume in found]
    result = wake(
        ctx, manifest, image, spec.size, nodes, segment, aside=partial(mark_origin, ctx, names)
    )
    ctx.store.resources.made(*intent)
    return result


def wake(
    ctx: Context,
    manifest: Manifest,
    image: Image,
    size: NodeSize,
    nodes: Sequence[Node],
    segment: int,
    *,
    aside: Callable[[], object] = lambda: None,
) -> Prepared:
    """Bring up ``nodes``, whose disks are as captured: with their RAM, else by booting them.

    ``aside`` is called meanwhile, before any of them runs. The rest as for ``clone``.
    """
    owner = nodes[0].owner
    template = Owner("template", manifest.key)
    warm = manifest.warm
    if not warm:
        aside()

    def bring_up(node: Node) -> None:
        wiring = Wiring(
            home=ctx.home.id,
            segment=segment,
            seed=seed_of(ctx, node, template, segment),
            console_log=ctx.home.console_log(node.guest),
            memory_file=ctx.home.ram(manifest.key, node.name) if warm else None,
        )
        volumes = [ctx.storage.get(node.volume(disk)) for disk in image.volumes]
        guest = guest_spec(node, volumes, image, size, wiring)
        if warm:
            ctx.hypervisor.restore(guest, _memory(ctx, manifest, node, guest))
        else:
            ctx.hypervisor.start(guest)

    def beside() -> Prepared:
        prepared = _identities(ctx, owner, nodes)
        if warm:
            aside()
        return prepared

    step = ("restore", "restoring RAM") if warm else ("start", "booting the clones")
    with ctx.progress.step(*step), ThreadPoolExecutor() as pool:
        if warm:
            for node in nodes:
                pool.submit(read_ahead, ctx.home.ram(manifest.key, node.name))
        prepared = pool.submit(beside)
        each(bring_up, nodes)
        result = prepared.result()
    if warm:
        with ctx.progress.step("resume", "resuming all nodes together"):
            ctx.hypervisor.resume([node.guest for node in nodes])
    return result


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
    """Why a template's RAM was not restored, in one line, with the last line of QEMU's log."""
    return "; ".join([f"its RAM was not restored: {error}", *error.details[-1:]])


def _identities(ctx: Context, owner: Owner, nodes: Sequence[Node]) -> Prepared:
    from lab.lifecycle.nodes.personalise import prepare

    return prepare(ctx, owner, nodes)


def _clone_disks(
    ctx: Context, manifest: Manifest, node: Node, image: Image, profile: Profile
) -> list[Volume]:
    tags = {"owner": str(node.owner), "node": node.name}
    found = origins(ctx, manifest, node.name, image.volumes)
    kept = [(origin, origin.volume.volume) for origin in found]
    return [
        ctx.storage.clone(origin, node.volume(disk), tags, profile=profile.volume(disk))
        for origin, disk in kept
    ]


def _memory(ctx: Context, manifest: Manifest, node: Node, guest: GuestSpec) -> MemoryImage:
    return MemoryImage(
        ram=ctx.home.ram(manifest.key, node.name),
        state=ctx.home.device_state(manifest.key, node.name),
        size=guest.memory,
    )
