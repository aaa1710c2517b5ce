"""``lab rollback``: a lab, or one node of it, as it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from lab import host
from lab.blueprints import blueprint
from lab.errors import Conflict, RestoreFailed
from lab.lifecycle import power
from lab.lifecycle.captures import interrupted, template
from lab.lifecycle.captures.clone import unrestored, wake
from lab.lifecycle.captures.manifests import Manifest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.core.views import LabView
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.form import until_formed
from lab.lifecycle.nodes.hand_over import hand_over
from lab.lifecycle.nodes.inspect import lab, node_of, nodes_of, record_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import Prepared, prepare
from lab.lifecycle.nodes.ports import move_taken
from lab.lifecycle.nodes.start_slots import turn
from lab.lifecycle.snapshot import find, volumes_of
from lab.locks.named import lock
from lab.schedule import ORIGIN
from lab.spec import NodeSize
from lab.state.records import LabRecord
from lab.wait import Deadline


def rollback(
    ctx: Context, name: str, to: str = ORIGIN, *, node: str | None = None, timeout: float
) -> LabView:
    """Put a lab, or one node, back to a snapshot, and wait until it is ready.

    ``to``: a label, a name (its newest), or what the lab was when it was made. Password, ports
    and addresses stay. A single node takes what it then lacks from its cluster. What was
    written since is lost, the snapshots stay. Raises NotFound, Conflict while another command
    works on the lab, HostUnfit and, after ``timeout`` seconds, NotReady.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = record_of(ctx, name)
        if record.state not in ("ready", "stopped"):
            raise Conflict(f"the lab {name} is {record.state}")
        nodes = nodes_of(ctx, name) if node is None else (node_of(ctx, name, node),)
        label = find(ctx, name, to).label
        volumes = volumes_of(ctx, name, node)
        if not interrupted.exists(ctx, name):  # what was begun must come to its end
            if label != ORIGIN:  # going back to the origin frees space
                space, floor = ctx.storage.space(), ctx.settings.space_floor
                host.check_space(space.free, floor, ctx.home.root, what="a rollback")
            # Of all volumes, before any is changed: they must not end at different points in time.
            ctx.storage.check_rollback(volumes, label)
        interrupted.begin(ctx, name, label, node)
        with ctx.progress.step("rollback", f"putting {node or name} back to {label}"):
            each(lambda n: ctx.hypervisor.stop(n.guest, force=True), nodes)
            # Until it runs again: a command that is killed now leaves a lab that can be started.
            if node is None:
                ctx.store.labs.update(name, **power.STOPPED)
            each(lambda v: ctx.storage.rollback(v, label), volumes)
        if label != ORIGIN:
            interrupted.end(ctx, name)
        nodes = move_taken(ctx, nodes)
        image = power.image_of(ctx, record)
        origin = _template(ctx, record, image) if label == ORIGIN else nullcontext()
        # Lock order: a command that makes the template again holds it while it waits for a slot.
        with origin as manifest:
            if label == ORIGIN:
                began, why_cold = _from_origin(ctx, record, image, manifest, nodes, timeout)
            else:
                with turn(ctx) as give_back:
                    began, why_cold = time.time(), f"rolled back to {label}: a snapshot has no RAM"
                    power.bring_back(ctx, record, nodes, timeout, booted=give_back)
        interrupted.end(ctx, name)
        how = power.how_started(began, why_cold) if len(nodes) == record.node_count else {}
        ctx.store.labs.update(name, state="ready", **how)
    return lab(ctx, name, proved=True)


def _from_origin(
    ctx: Context,
    record: LabRecord,
    image: Image,
    manifest: Manifest | None,
    nodes: Sequence[Node],
    timeout: float,
) -> tuple[float, str]:
    """Bring up nodes that are clones which never ran, and make them this lab's again.

    ``manifest``: of the template that they are clones of, if its RAM can be trusted. Returns when
    the start that succeeded began, and why they were booted; empty if their RAM was restored.
    """
    plan = blueprint(record.blueprint)
    why = (manifest.why_cold if manifest else "") or ctx.hypervisor.capabilities().why_cold
    why = why or "rolled back to its origin: no template has its RAM"

    def finish(prepared: Prepared, deadline: Deadline) -> None:
        account = account_of(ctx, record)
        cluster = power.running(ctx, record.name)
        hand_over(ctx, nodes, plan, image.engine, account, prepared, deadline, cluster=cluster)

    if manifest and _warm(record, manifest, nodes):
        with turn(ctx, warm=True):
            began = time.time()
            power.check_room(ctx, record, len(nodes))
            size = NodeSize(record.memory, record.cpus, record.disk)
            try:
                prepared = wake(ctx, manifest, image, size, nodes, record.segment)
            except RestoreFailed as error:
                why = unrestored(error)
                template.mark_broken(
                    ctx, manifest.key, f"{why}; {record.name} boots from its disks"
                )
                each(lambda n: ctx.hypervisor.stop(n.guest, force=True), nodes)
            else:
                finish(prepared, Deadline.after(timeout))
                return began, ""
    with turn(ctx):
        began = time.time()
        power.boot(ctx, record, nodes)
        deadline = Deadline.after(timeout)
        until_formed(ctx, power.running(ctx, record.name), plan, deadline)
        finish(prepare(ctx, nodes[0].owner, nodes), deadline)
    return began, why


def _warm(record: LabRecord, manifest: Manifest | None, nodes: Sequence[Node]) -> bool:
    """Whether RAM is restored: of the template that the whole lab is a clone of."""
    return manifest is not None and manifest.warm and len(nodes) == record.node_count


def _template(
    ctx: Context, record: LabRecord, image: Image
) -> AbstractContextManager[Manifest | None]:
    """What the lab is a clone of, if its RAM can still be trusted."""
    return template.kept(ctx, record.template, image) if record.template else nullcontext()
