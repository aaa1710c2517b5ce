"""Capturing: a formed cluster, disks and RAM of all nodes, at one moment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lab.blueprints import Blueprint
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.manifests import CapturedNode, Manifest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.quiesce import bring_to_rest
from lab.paths import writing
from lab.storage import VolumeSnapshot, sparse

FORMED = "formed"
"""The label of the snapshots of a freshly formed cluster."""


def capture(
    ctx: Context, name: str, nodes: tuple[Node, ...], image: Image, plan: Blueprint, *, warm: bool
) -> Manifest:
    """Freeze the guests of ``nodes`` at one moment, disks and RAM, and end them.

    Without RAM (``warm`` is false) their servers are stopped before, and they shut down. Raises as
    ``bring_to_rest``, storage and hypervisor do.
    """
    guests = [node.guest for node in nodes]
    if not warm:
        bring_to_rest(ctx, plan, image.engine, nodes)
        each(lambda guest: ctx.hypervisor.stop(guest, force=False), guests)
    else:
        ctx.hypervisor.pause(guests)
        each(
            lambda node: ctx.hypervisor.save_memory(
                node.guest, ctx.home.ram(name, node.name), ctx.home.device_state(name, node.name)
            ),
            nodes,
        )
    volumes = [node.volume(disk) for node in nodes for disk in image.volumes]
    snapshots = ctx.storage.snapshot(volumes, FORMED)
    if warm:
        each(lambda guest: ctx.hypervisor.stop(guest, force=True), guests)
    ctx.storage.persist(snapshots)
    found = each(lambda node: captured_node(ctx, node, snapshots, warm=warm), nodes)
    return Manifest(name, FORMED, tuple(found))


def captured_node(
    ctx: Context, node: Node, snapshots: Sequence[VolumeSnapshot], *, warm: bool
) -> CapturedNode:
    """What a template's manifest says of ``node``, whose files are in place; they are synced."""
    name = node.owner.name
    disk = ctx.home.seed(node.owner, node.name)
    sparse.sync(disk)
    seed = manifests.facts(disk)
    seals = tuple(ctx.storage.seal(s) for s in snapshots if s.volume.node == node.name)
    if not warm:
        return CapturedNode(node.name, node.role, None, None, seed, seals)
    ram, state = ctx.home.ram(name, node.name), ctx.home.device_state(name, node.name)
    with writing(ram):
        _freeze(ctx, ram)
        state.chmod(0o400)  # QEMU is sent what is in it
        sparse.sync(ram, state)
    found = manifests.facts(ram), manifests.facts(state)
    return CapturedNode(node.name, node.role, *found, seed, seals)


def memory_file(ctx: Context, node: Node, size: int) -> Path:
    """The file in which a node that is to be captured keeps its RAM of ``size`` bytes."""
    path = ctx.home.ram(node.owner.name, node.name)
    with writing(path), path.open("xb") as file:
        file.truncate(size)
    _give_to_qemu(ctx, path)
    return path


def _give_to_qemu(ctx: Context, path: Path) -> None:
    run_as = ctx.hypervisor.run_as
    with writing(path):
        path.chmod(0o600)
        if run_as is not None:
            os.chown(path, *run_as)


def _freeze(ctx: Context, ram: Path) -> None:
    """Let guests only read a file of RAM, where they can do with that."""
    run_as = ctx.hypervisor.run_as
    if not ctx.hypervisor.capabilities().reads_ram:
        _give_to_qemu(ctx, ram)
    elif run_as is None:
        ram.chmod(0o400)
    else:
        if ram.stat().st_uid == run_as[0]:
            # A new file: another guest's QEMU may have this one open, as it runs as the same user.
            frozen = ram.with_suffix(".frozen")
            sparse.copy(ram, frozen)
            frozen.replace(ram)
        os.chown(ram, os.geteuid(), run_as[1])
        ram.chmod(0o440)
