"""A lab becomes a dataset: one of its nodes wakes alone, stops cleanly, and its disks are copied.

The node wakes from its RAM, with the server that runs in it: booted, it would look for its cluster,
and recover as after a crash. The disks are copied, not cloned, so that lab and dataset can be
removed independently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from lab import host
from lab.blueprints import Blueprint
from lab.datasets.source import LabCapture
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.hypervisor import MemoryImage, memory_of
from lab.imagebuild.manifest import BuiltImage, ExtentsDigest
from lab.lifecycle.captures import system
from lab.lifecycle.captures.capture import Capture, disk_snapshots, parent_of
from lab.lifecycle.captures.clone import MEMORY
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets.load import STAGE
from lab.lifecycle.datasets.loader import Server
from lab.lifecycle.datasets.masking import columns_of
from lab.lifecycle.datasets.worth import Accept
from lab.lifecycle.images import image, publish
from lab.lifecycle.images.provenance import Provenance
from lab.lifecycle.images.publish import BASE, Disk
from lab.lifecycle.images.ready import Images
from lab.lifecycle.labs.rollback import sound
from lab.lifecycle.nodes.form import guest_of, intend, put_seed, seed_of
from lab.lifecycle.nodes.inspect import images_of, record_of
from lab.lifecycle.nodes.inspect import lab as view_of_lab
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.lifecycle.nodes.ports import reserve_segment
from lab.lifecycle.nodes.start_slots import start_slot
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner, VolumeName
from lab.observe.ask import through_agent
from lab.state.records import LabRecord
from lab.storage import VolumeSnapshot
from lab.wait import Deadline, attempts

_ANSWER_SECONDS = 30.0


@contextmanager
def captured(ctx: Context, source: LabCapture) -> Iterator[tuple[Capture, Images, Node]]:
    """A capture of a lab with RAM, kept from removal in the block, and the images of its nodes.

    And the node to wake: the first, or the one that takes writes now.

    Without a label a snapshot is taken, and removed afterwards. Raises NotFound, Conflict, and
    InvalidSpec for a capture without RAM.
    """
    record = record_of(ctx, source.lab)
    with snapshot.kept_or_taken(ctx, source.lab, source.label, "dataset") as found:
        was, nodes = system.as_captured(ctx, record, found)
        images = images_of(ctx, was, nodes)
        capture = sound(ctx, found, images)
        if not capture.warm:
            raise InvalidSpec(
                f"{source} has no RAM, which a dataset is made from: {capture.why_cold}",
                hint=f"`lab start {source.lab}`, then make the dataset from the running lab",
            )
        yield capture, images, _origin(ctx, record, nodes)


def _origin(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> Node:
    first, *_ = nodes
    if not record.plan.elects:
        return first
    ends = view_of_lab(ctx, record.name).endpoints
    name, *_ = (*ends.get("writers", ends.get("rw", ())), first.name)
    return next(node for node in nodes if node.name == name)


def copied(
    ctx: Context,
    key: str,
    origin: Node,
    made: Provenance,
    capture: Capture,
    images: Images,
    accept: Accept,
) -> tuple[Provenance, BuiltImage]:
    """Make the image ``key`` of a node's disks, and return what is known of their data.

    Raises as ``_wake``, InvalidSpec for queries that the server
    refuses, and what ``accept`` raises; what was made stays if it fails.
    """
    server = _wake(ctx, Owner("image", key), STAGE, origin, capture, images)
    with ctx.progress.step("rest", "stopping the server"):
        server.forget()
        if made.warm:
            server.try_queries(made.warm)
        tables, columns = server.analyse(), columns_of(server)
        accept(tables)
        server.rest(images[server.node.image])
    with ctx.progress.step("copy", "copying the disks"):
        disks = _copy_disks(ctx, server.node, images)
        server.discard()
        built = publish.derive(ctx, key, image.built(ctx, images[origin.image].key), disks)
    return replace(made, tables=tuple(tables), columns=columns), built


def _wake(
    ctx: Context, owner: Owner, name: str, origin: Node, capture: Capture, images: Images
) -> Server:
    """Wake ``origin`` of ``capture`` as the node ``name`` of ``owner``, whose lock is held.

    Nobody is sent a new identity: the guest has
    a segment of its own. Raises InvalidSpec if it did not take writes at that time, and as storage
    and hypervisor do; what was made stays if it fails.
    """
    lab = capture.owner.name
    record = record_of(ctx, lab)
    node = replace(origin, owner=owner, name=name, ports={}, redirect=0, known_as=None)
    host.check_memory([node.size.memory], host.memory(), ctx.settings.memory_floor)
    tags = {"owner": str(owner), "node": name}
    with ctx.progress.step("clone", f"cloning {origin.name} of {lab}"):
        segment, intent = reserve_segment(ctx, owner), intend(ctx, [node], images)
        ctx.home.create_directory(owner)
        volumes = [
            ctx.storage.clone(found, node.volume(found.volume.volume), tags)
            for found in disk_snapshots(ctx, capture, origin.name, images[node.image].volumes)
        ]
        former = seed_of(ctx, origin, parent_of(record), record.segment)
        seed = put_seed(ctx, ctx.home.seed(owner, name), former.read_bytes())
    base = capture.node(origin.name).base or capture.ref
    ram = ctx.home.ram(base, origin.name)
    tags = {MEMORY: str(base)}
    guest = guest_of(ctx, node, images, segment, seed, volumes=volumes, memory_file=ram, tags=tags)
    memory = memory_of(ctx.hypervisor)
    with ctx.progress.step("restore", "restoring RAM"), start_slot(ctx, warm=True):
        state = ctx.home.device_state(capture.ref, origin.name)
        memory.restore(guest, MemoryImage(ram, state, guest.memory))
        memory.resume([node.guest])
    ctx.store.resources.made(*intent)
    if record.plan.elects:
        _check_role(ctx, record.plan, node, origin.name, capture)
    return Server(ctx, node, images, segment, ())


def _check_role(ctx: Context, plan: Blueprint, node: Node, original: str, capture: Capture) -> None:
    """Raise InvalidSpec if a node, which woke alone, takes no writes: it follows another one."""
    ask = through_agent(plan, ctx.hypervisor, [node])
    for _ in attempts(Deadline.after(_ANSWER_SECONDS)):
        with suppress(NotReady, CommandFailed):
            if plan.role(node.role, ask(node)) in plan.writers:
                return
            raise InvalidSpec(
                f"{original} did not take writes when {capture.label} was taken: another node did",
                hint=f"`lab rollback {capture.owner.name} --to {capture.label}`, then make the"
                " dataset from the running lab",
            )
    raise NotReady(f"the server of {original} does not answer")


def _copy_disks(ctx: Context, node: Node, images: Images) -> list[Disk]:
    """Copies of the disks of ``node``, which does not run, as those of its owner's image."""
    origins = ctx.storage.snapshot(volumes_of(node, images), BASE)
    return [_copy(ctx, node.owner, origin) for origin in origins]


def _copy(ctx: Context, owner: Owner, origin: VolumeSnapshot) -> Disk:
    """A copy and its digest, of which the disk is read once: hashes are most of the work."""
    volume = VolumeName(owner, BASE, origin.volume.volume)
    intent = ctx.store.resources.intend_all(owner, [("volume", str(volume))])
    tags = {"owner": str(owner), "node": BASE}
    with ctx.storage.read(origin) as content:
        digest = ExtentsDigest(content.size)
        hashed = replace(content, extents=digest.passed(content.extents))
        made = ctx.storage.write(volume, origin.label, hashed, tags)
    ctx.store.resources.made(*intent)
    return Disk(made, digest.hexdigest())
