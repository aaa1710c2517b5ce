"""Freezing a formed cluster, disks and RAM of all nodes, at one moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lab.blueprints import Blueprint
from lab.errors import Interrupted, LabError
from lab.hypervisor import memory_of
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.capture import Capture, CapturedNode
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each, each_until
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.nodes import GuestCluster, Node, engines_of, volumes_of
from lab.names import CaptureRef, GuestName, template_ref
from lab.paths import sync, writing
from lab.storage import VolumeSnapshot, sparse

_FLUSH_SECONDS = 30.0


def freeze(
    ctx: Context,
    ref: CaptureRef,
    nodes: Sequence[Node],
    images: Images,
    blueprint: Blueprint,
    *,
    warm: bool,
) -> Capture:
    """Capture the guests of ``nodes`` at one moment, their disks and RAM, and end them.

    Without RAM (``warm`` is false) their servers are stopped before, and they shut down. Raises as
    ``bring_to_rest``, storage and hypervisor do.
    """
    guests = [node.guest for node in nodes]
    if not warm:
        bring_to_rest(ctx, blueprint, images, nodes)
        halt = ctx.progress.halt
        each(lambda guest: ctx.hypervisor.stop(guest, force=False, halt=halt), guests)
    else:
        # Clones may have to boot: a node that goes back alone, or where the RAM is refused. Whom it
        # follows, MariaDB has in files that it does not sync.
        write_out(ctx, nodes)
        memory = memory_of(ctx.hypervisor)
        memory.pause(guests)
        each(
            lambda node: memory.save_memory(
                node.guest, ctx.home.ram(ref, node.name), ctx.home.device_state(ref, node.name)
            ),
            nodes,
        )
    volumes = [volume for node in nodes for volume in volumes_of(node, images)]
    snapshots = ctx.storage.snapshot(volumes, ref.label)
    if warm:
        each(lambda guest: ctx.hypervisor.stop(guest, force=True), guests)
    ctx.storage.persist(snapshots)
    return captured(ctx, ref, nodes, snapshots, warm=warm)


def write_out(ctx: Context, nodes: Sequence[Node], flush: Sequence[str] = ()) -> None:
    """Have servers and file systems of ``nodes`` write everything to their disks.

    First the statements ``flush`` of the blueprint, where there is a server, then the files. A node
    that does not answer is skipped, with a note: it is as if its power failed.
    """
    skipped: dict[GuestName, str] = {}
    statements = "".join(f"{statement}\n" for statement in flush).encode()

    def flush_node(node: Node, halt: Callable[[], None]) -> None:
        orders = [(["/bin/sync"], b"")]
        if statements and node.has_server:
            orders.insert(0, (["/usr/lib/lab/sql"], statements))
        for argv, stdin in orders:
            try:
                channel = ctx.hypervisor.channel(node.guest)
                channel.run(argv, stdin=stdin, timeout=_FLUSH_SECONDS, halt=halt)
            except Interrupted:
                raise
            except LabError as error:
                skipped.setdefault(node.guest, error.what)

    each_until(flush_node, nodes, ctx.progress.halt)
    for guest in (node.guest for node in nodes):
        if why := skipped.get(guest):
            ctx.progress.note(
                "flush", f"{guest} was not flushed, as if its power failed at this moment: {why}"
            )


def bring_to_rest(
    ctx: Context, blueprint: Blueprint, images: Images, nodes: Sequence[Node]
) -> None:
    """Stop the servers of ``nodes``, all of a cluster; see ``Blueprint.rest``."""
    blueprint.rest(GuestCluster(ctx, nodes), engines_of(nodes, images))


def captured(
    ctx: Context,
    ref: CaptureRef,
    nodes: Sequence[Node],
    snapshots: Sequence[VolumeSnapshot],
    *,
    warm: bool,
    why_cold: str = "",
) -> Capture:
    """The capture of ``nodes`` whose files and ``snapshots`` are in place; the files are synced."""
    found = each(lambda node: _node(ctx, ref, node, snapshots, warm=warm), nodes)
    return Capture(ref.owner, ref.label, tuple(found), why_cold=why_cold)


def _node(
    ctx: Context, ref: CaptureRef, node: Node, snapshots: Sequence[VolumeSnapshot], *, warm: bool
) -> CapturedNode:
    disk = ctx.home.seed(ref, node.name)
    sync(disk)
    seed = manifests.facts(disk)
    seals = tuple(ctx.storage.seal(s) for s in snapshots if s.volume.node == node.name)
    made = CapturedNode(
        node.name, node.role, seed=seed, seals=seals, image=node.image, size=node.size
    )
    if not warm:
        return made
    ram, state = ctx.home.ram(ref, node.name), ctx.home.device_state(ref, node.name)
    with writing(ram):
        freeze_ram(ctx, ram)
        state.chmod(0o400)  # QEMU is sent what is in it
        sync(ram, state)
    return replace(made, ram=manifests.facts(ram), state=manifests.facts(state))


def memory_file(ctx: Context, node: Node) -> Path:
    """The file in which a template's node keeps its RAM until it is captured."""
    path = ctx.home.ram(template_ref(node.owner.name), node.name)
    with writing(path):
        path.touch(0o600, exist_ok=False)  # who opens it early could read it for as long as it is
        os.truncate(path, node.size.memory)
        sparse.reserve(path)
    _give_to_qemu(ctx, path)
    return path


def _give_to_qemu(ctx: Context, path: Path) -> None:
    run_as = ctx.hypervisor.run_as
    with writing(path):
        path.chmod(0o600)
        if run_as is not None:
            os.chown(path, *run_as)


def freeze_ram(ctx: Context, ram: Path) -> None:
    """Let guests only read a file of RAM, where they can do with that; raises OSError."""
    run_as, reads = ctx.hypervisor.run_as, ctx.hypervisor.capabilities().reads_ram
    if reads and run_as is not None and ram.stat().st_uid == run_as[0]:
        # A new file: another guest's QEMU may have this one open, as it runs as the same user.
        frozen = ram.with_suffix(".frozen")
        sparse.copy(ram, frozen)
        frozen.replace(ram)
    sparse.reserve(ram)
    if not reads:
        _give_to_qemu(ctx, ram)
    elif run_as is None:
        ram.chmod(0o400)
    else:
        os.chown(ram, os.geteuid(), run_as[1])
        ram.chmod(0o440)
