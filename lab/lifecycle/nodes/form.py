"""Cold: clone the image once per node, boot, and wait until they are a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lab.blueprints import Blueprint, Engine, Member, server, writers_of
from lab.config.profile import Profile
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.hypervisor import GuestSpec
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images import image as images
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.nodes import (  # fmt: skip
    GuestCluster,
    Node,
    Wiring,
    address_seed,
    engines_of,
    guest_spec,
    seed_disk,
    volumes_of,
)
from lab.lifecycle.nodes.readiness import server_errors, until_ready
from lab.names import CaptureRef, Owner, VolumeName
from lab.observe.ask import FROM_INSIDE, through_agent
from lab.paths import writing
from lab.schedule import ORIGIN
from lab.state.records import ResourceKind
from lab.storage import Volume
from lab.units import counted
from lab.values import dataclass
from lab.wait import Deadline, attempts

_LOOK_EVERY = 0.4  # seconds; each look costs an emulated guest some of its processor
_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Formation:
    """What is to be formed."""

    owner: Owner
    images: Images
    blueprint: Blueprint
    profile: Profile
    nodes: tuple[Node, ...]
    segment: int
    memory_file: Callable[[Node], Path] | None = None
    """Gives a node's RAM file, None for ordinary RAM."""
    more: tuple[Volume, ...] = ()
    """Further disks of each node, which are there already."""


def form(
    ctx: Context,
    formation: Formation,
    timeout: float,
    *,
    formed: Callable[[], None] = lambda: None,
) -> Deadline:
    """Create, boot and form; the owner's lock is held and its segment reserved.

    Returns when the nodes must be ready: see ``Context.ready_by``, from their start. Raises
    NotReady if they are no cluster by then, InvalidSpec for options that a server refuses, and as
    storage and hypervisor do. What was made stays: the caller releases the owner.
    """
    with ctx.progress.step(
        "clone", f"cloning the image for {counted(len(formation.nodes), 'node')}"
    ):
        volumes = _volumes(ctx, formation)
    with ctx.progress.step("boot", "booting the nodes"):
        specs = [_prepare(ctx, formation, node, volumes[node.name]) for node in formation.nodes]
        each(ctx.hypervisor.start, specs)
    deadline = ctx.ready_by(timeout)
    until_formed(
        ctx, formation.nodes, formation.blueprint, formation.images, deadline, formed=formed
    )
    return deadline


def until_formed(
    ctx: Context,
    nodes: Sequence[Node],
    plan: Blueprint,
    images: Images,
    deadline: Deadline,
    *,
    formed: Callable[[], None] = lambda: None,
) -> None:
    """Have all nodes of a lab, which boot from disks of images, become what was asked for.

    ``formed`` is called when they are, before they execute what a user gave to them. Raises
    NotReady, and InvalidSpec where servers refuse what was given to them.
    """
    engines, cluster = engines_of(nodes, images), GuestCluster(ctx, nodes, deadline.saw)
    with ctx.progress.step("form", "forming the cluster"):
        if plan.options.set or plan.options.my_cnf:
            _until_started(ctx, cluster, plan, engines, deadline)
        plan.form(cluster, engines, deadline)
        ask = through_agent(plan, ctx.hypervisor, nodes)
        until_ready(ctx, nodes, plan, ask, deadline, pause=_LOOK_EVERY, way=FROM_INSIDE)
        formed()
        if plan.options.init:
            _initialise(cluster, plan, engines, deadline)
            until_ready(ctx, nodes, plan, ask, deadline, pause=_LOOK_EVERY, way=FROM_INSIDE)


def intend(ctx: Context, nodes: Sequence[Node], images: Images) -> list[int]:
    """Record that guests, volumes and console logs of ``nodes`` are about to be made."""
    things: list[tuple[ResourceKind, str]] = [("guest", str(node.guest)) for node in nodes]
    things += [("volume", str(volume)) for node in nodes for volume in volumes_of(node, images)]
    return ctx.store.resources.intend_all(nodes[0].owner, things)


def mark_origin(ctx: Context, volumes: Sequence[VolumeName]) -> None:
    """Note what a lab is now, before any of its nodes ran, as what it can be put back to."""
    ctx.storage.snapshot(volumes, ORIGIN)


def write_seed(ctx: Context, formation: Formation, node: Node) -> Path:
    """Write the seed disk of ``node`` and return its path."""
    path = ctx.home.seed(formation.owner, node.name)
    content = seed_disk(
        node,
        formation.nodes,
        formation.blueprint,
        formation.images[node.image].engine,
        formation.profile.engine,
        formation.segment,
    )
    return put_seed(ctx, path, content)


def seed_of(ctx: Context, node: Node, parent: CaptureRef | None, segment: int) -> Path:
    """The seed that ``node`` boots with once it was made; ``parent``: what it is a clone of.

    Where guests have addresses of their own, a clone has a seed of its own, which is written. So
    has a clone of another lab, whose seed it is a copy of, and a node whose system was replaced.
    """
    replaced = ctx.home.seed(node.owner, node.name, node.image) if node.image else None
    if replaced is not None and replaced.exists():
        return replaced
    own = ctx.home.seed(node.owner, node.name)
    if parent is not None and node.guest_address:
        return put_seed(ctx, own, address_seed(node, segment))
    if parent is None or parent.owner.kind == "lab":
        return own
    return ctx.home.seed(parent, node.name)


def guest_of(
    ctx: Context,
    node: Node,
    images: Images,
    segment: int,
    seed: Path,
    *,
    volumes: Sequence[Volume] | None = None,
    memory_file: Path | None = None,
    tags: Mapping[str, str] | None = None,
) -> GuestSpec:
    """The guest of a node of this home; its ``volumes`` are those of its image by default."""
    if volumes is None:
        volumes = [ctx.storage.get(volume) for volume in volumes_of(node, images)]
    log = ctx.home.console_log(node.guest)
    wiring = Wiring(ctx.home.id, segment, seed, log, memory_file, tags or {})
    return guest_spec(node, volumes, images[node.image], wiring)


def put_seed(ctx: Context, path: Path, content: bytes) -> Path:
    """Write a seed disk, in which passwords may be (``--my-cnf``); returns ``path``."""
    with writing(path):
        path.touch(0o600)
        path.write_bytes(content)
    let_read(ctx, path)
    return path


def let_read(ctx: Context, path: Path) -> None:
    """Let QEMU read a file of ours, and no other user: its group may, as with the disks."""
    run_as = ctx.hypervisor.run_as
    with writing(path):
        if run_as is not None:
            os.chown(path, os.geteuid(), run_as[1])
        path.chmod(0o600 if run_as is None else 0o640)


def _until_started(
    ctx: Context,
    cluster: GuestCluster,
    plan: Blueprint,
    engines: Mapping[str, Engine],
    deadline: Deadline,
) -> None:
    """Return once no server can fail to start any more because of its options.

    Raises InvalidSpec, with the server's own message, as soon as one has ended.
    """

    def until_active(member: Member) -> None:
        (node,) = (node for node in cluster.nodes if node.name == member.name)
        if not node.has_server:
            return
        for _ in attempts(deadline):
            try:
                standing = plan.standing(engines[member.name])
                state = server.state(cluster.run(member, standing, timeout=_LOOK_SECONDS))
            except NotReady:
                continue  # its guest boots
            if state == "active":
                return
            if state == "failed":
                raise InvalidSpec(
                    f"the server of {member.name} does not start with the options that were given",
                    hint="change --set or --my-cnf",
                    details=server_errors(ctx, node),
                )

    cluster.each(until_active)


def _initialise(
    cluster: GuestCluster, plan: Blueprint, engines: Mapping[str, Engine], deadline: Deadline
) -> None:
    """Execute the statements that were given, where clients would; raises InvalidSpec."""
    name = writers_of(plan.endpoints(cluster.members))[0]
    (member,) = (member for member in cluster.members if member.name == name)
    try:
        cluster.run(
            member,
            server.client(engines[name]),
            stdin=plan.options.init.encode(),
            timeout=max(deadline.left, 1.0),
        )
    except CommandFailed as error:
        raise InvalidSpec(
            f"{name} refused a statement of those that were given",
            hint="change the file of --init",
            details=error.stderr.splitlines()[-3:],
        ) from None


def _volumes(ctx: Context, formation: Formation) -> dict[str, list[Volume]]:
    origins = {image.key: images.snapshots(ctx, image) for image in formation.images.all}
    for image in formation.images.all:
        images.check_disks(ctx, image)
    grows = {image.key: image.grows for image in formation.images.all}
    intent = intend(ctx, formation.nodes, formation.images)
    ctx.home.create_directory(formation.owner)
    made = {
        node.name: [
            ctx.storage.clone(
                origin,
                node.volume(disk),
                {"owner": str(formation.owner), "node": node.name},
                size=max(node.size.disk, origin.size) if disk == grows[node.image] else 0,
                profile=formation.profile.volume(disk),
            )
            for disk, origin in origins[node.image].items()
        ]
        for node in formation.nodes
    }
    if formation.owner.kind == "lab":
        mark_origin(ctx, [volume.name for found in made.values() for volume in found])
    ctx.store.resources.made(*intent)
    return made


def _prepare(ctx: Context, formation: Formation, node: Node, volumes: list[Volume]) -> GuestSpec:
    return guest_of(
        ctx,
        node,
        formation.images,
        formation.segment,
        write_seed(ctx, formation, node),
        volumes=[*volumes, *formation.more],
        memory_file=formation.memory_file(node) if formation.memory_file else None,
    )
