"""``lab rollback``: a lab, or one node of it, as it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from lab import host
from lab.errors import Busy, Conflict, Interrupted, LabError, RestoreFailed
from lab.hypervisor import Guest
from lab.lifecycle.captures import manifests, system, template
from lab.lifecycle.captures.capture import Capture, parent_of, unformed
from lab.lifecycle.captures.clone import unrestored, wake
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Images
from lab.lifecycle.labs import power
from lab.lifecycle.labs.takeover import take_over
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.form import until_formed
from lab.lifecycle.nodes.hand_over import Started, personalise, wait_ready
from lab.lifecycle.nodes.inspect import (
    check_usable,
    images_of,
    lab,
    node_of,
    nodes_of,
    record_of,
    running_nodes,
)
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import Prepared, prepare
from lab.lifecycle.nodes.ports import move_taken
from lab.lifecycle.nodes.recovery import until_back_inside
from lab.lifecycle.nodes.standby import clear, end_strays
from lab.lifecycle.nodes.start_slots import start_slot
from lab.lifecycle.snapshots.snapshot import find, load, volumes_of
from lab.locks.named import lock
from lab.names import GuestName, Owner
from lab.requests.labs import ResetLab, RollBack
from lab.schedule import ORIGIN
from lab.state.records import LabRecord
from lab.undo import Undo
from lab.values import dataclass
from lab.views.labs import LabView
from lab.wait import Deadline


def rollback(ctx: Context, asked: RollBack, *, timeout: float, leave: bool = False) -> LabView:
    """Put a lab, or one node, back to a snapshot, and wait until it is ready.

    Password, ports and addresses stay. Where the snapshot has RAM all nodes resume from it, and
    the sessions of clients that it has are ended, unless the request says otherwise. A single node
    boots, and takes what it then lacks from its cluster, whose nodes boot with it if none of them
    runs. What was written since is lost, the snapshots stay. Raises NotFound, Conflict while
    another command works on the lab, HostUnfit and, after ``timeout`` seconds, NotReady. If all
    nodes were to resume, or to boot as at their origin, they are stopped then; nodes that boot from
    a snapshot keep running, as for ``start``.

    ``leave``: where a standby took over, the former guests end by themselves, and the next one,
    or ``lab gc``, forgets them.
    """
    guests: Mapping[GuestName, Guest] | None = None
    with lock(ctx.home, "lab", asked.lab, wait=False):
        record = record_of(ctx, asked.lab)
        check_usable(record)
        capture = find(ctx, asked.lab, asked.to)
        if interrupted.exists(ctx, asked.lab):
            clear(ctx, asked.lab)  # the lab's ports may lead to half a standby
        if asked.node and len(nodes_of(ctx, asked.lab)) > 1:
            _one_to(ctx, record, capture, node_of(ctx, asked.lab, asked.node), timeout)
        else:
            if not (asked.cold or asked.keep_sessions):
                guests = _by_standby(ctx, record, capture, timeout, leave=leave)
            if guests is None:
                end_strays(ctx, asked.lab)  # which the last reset left
                _all_back(ctx, capture, timeout, asked)
    return lab(ctx, asked.lab, proved=True, guests=guests)


def reset(ctx: Context, asked: ResetLab, *, timeout: float) -> LabView:
    """Put a lab back to a snapshot, by default to the one that it was put back to last.

    Raises as ``rollback`` does. The caller makes the standby for the next one afterwards, unless
    the request says ``once``; until then the former guests, which end by themselves, are recorded.
    """
    to = asked.to or last_label(record_of(ctx, asked.lab))
    back = RollBack(lab=asked.lab, to=to)
    return rollback(ctx, back, timeout=timeout, leave=not asked.once)


def last_label(record: LabRecord) -> str:
    """The label of the snapshot that a lab was put back to last, by a rollback or a reset."""
    return record.reset_to or ORIGIN


def _by_standby(
    ctx: Context, record: LabRecord, capture: Capture, timeout: float, *, leave: bool
) -> Mapping[GuestName, Guest] | None:
    """The guests once a standby for ``capture`` took the place of the nodes of a lab; or None.

    ``leave``: as of ``take_over``. Where that fails, the rollback is to be done without it.
    """
    if interrupted.exists(ctx, record.name):
        return None
    try:
        return take_over(ctx, record, capture, nodes_of(ctx, record.name), timeout, leave=leave)
    except Interrupted:
        raise
    except Busy:
        return None
    except LabError as error:
        ctx.progress.note("standby", f"the standby of {record.name} did not take over: {error}")
        clear(ctx, record.name)  # the lab's ports may lead to it
        return None


def _one_to(ctx: Context, record: LabRecord, capture: Capture, node: Node, timeout: float) -> None:
    """Put one node back and boot it."""
    if capture.label == ORIGIN:
        _check_alone(ctx, record, node)
    record, nodes = _put_back(ctx, record, capture, [node], node.name)
    nodes = move_taken(ctx, nodes)
    if capture.label == ORIGIN:
        images = images_of(ctx, record, nodes_of(ctx, record.name))
        _boot_new(ctx, record, images, nodes, timeout)
    else:
        interrupted.end(ctx, record.name)  # what its disks are now can be started
        _boot_used(ctx, record, nodes, timeout)
    _set_ready(ctx, record)


def _all_back(ctx: Context, capture: Capture, timeout: float, asked: RollBack) -> None:
    """Put all nodes back, by restoring or booting them."""
    record, nodes = ctx.store.labs.get(asked.lab), nodes_of(ctx, asked.lab)
    if capture.label == ORIGIN:
        _all_to_origin(ctx, record, capture, nodes, timeout, cold=asked.cold)
    else:
        _all_to_snapshot(ctx, record, capture, nodes, timeout, asked)


def _all_to_origin(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    nodes: Sequence[Node],
    timeout: float,
    *,
    cold: bool,
) -> None:
    """Put a lab back to what it was when it was made: a clone that is resumed, or booted new."""
    record, nodes = _put_back(ctx, record, capture, nodes)
    nodes, images = move_taken(ctx, nodes), images_of(ctx, record, nodes)
    # Lock order: a command that makes the template again holds it while it waits for a slot.
    with (
        stopped_on_failure(ctx, record.name, ORIGIN, nodes),
        memory_of_origin(ctx, capture, images) as kept,
    ):
        source = _unless_cold(kept, cold=cold)
        found = resume(ctx, source, record, images, nodes, timeout) if source.warm else None
        if found is None or found.why_cold:
            why_cold = found.why_cold if found else source.why_cold
            found = StartedNodes(_boot_new(ctx, record, images, nodes, timeout), why_cold)
        _set_ready(ctx, record, at="", reset_to=ORIGIN, **_how(found, "its origin"))


def _all_to_snapshot(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    nodes: Sequence[Node],
    timeout: float,
    asked: RollBack,
) -> None:
    """Put a lab back to a snapshot: resumed from its RAM, or booted from its disks."""
    warm = capture.warm and not asked.cold
    record, nodes = _put_back(ctx, record, capture, nodes)
    if not warm:
        interrupted.end(ctx, record.name)  # what its disks are now can be started
    nodes, images = move_taken(ctx, nodes), images_of(ctx, record, nodes)
    undone = stopped_on_failure(ctx, record.name, capture.label, nodes)
    with undone if warm else nullcontext():
        source = _unless_cold(sound(ctx, capture, images), cold=asked.cold)
        found = None
        if source.warm:
            keep = asked.keep_sessions
            found = resume(ctx, source, record, images, nodes, timeout, keep_sessions=keep)
        if found is None or found.why_cold:
            why_cold = found.why_cold if found else source.why_cold
            found = StartedNodes(_boot_used(ctx, record, nodes, timeout), why_cold)
        label = capture.label
        _set_ready(ctx, record, at=label, reset_to=label, **_how(found, label))


def _unless_cold(source: Capture, *, cold: bool) -> Capture:
    return source.without_ram("`--cold` was given") if cold else source


def _how(started: StartedNodes, label: str) -> dict[str, Any]:
    """What to record of how a lab started that was put back to ``label``."""
    why_cold = f"rolled back to {label}: {started.why_cold}" if started.why_cold else ""
    return power.how_started(started.began, why_cold)


def _set_ready(ctx: Context, record: LabRecord, **fields: Any) -> None:
    """Record that a rollback is complete. In this order: else it could be completed once more."""
    interrupted.end(ctx, record.name)
    ctx.store.labs.update(record.name, state="ready", **fields)


def _put_back(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    nodes: Sequence[Node],
    node: str | None = None,
) -> tuple[LabRecord, Sequence[Node]]:
    """Stop ``nodes`` and roll their disks back; ``node``: the name of the only one.

    Returns the record and the nodes as they are then: with the images that they had.
    """
    name, label = record.name, capture.label
    volumes = volumes_of(ctx, name, node)
    if not interrupted.exists(ctx, name):  # an interrupted one must be completed
        if label != ORIGIN:  # a rollback to the origin frees space
            space, floor = ctx.storage.space(), ctx.settings.space_floor
            host.check_space(space.free, floor, ctx.home.root, what="a rollback")
        # Of all volumes, before any is changed: they must not end at different points in time.
        ctx.storage.check_rollback(volumes, label)
    interrupted.begin(ctx, name, label, node)
    with ctx.progress.step("rollback", f"rolling {node or name} back to {label}"):
        each(lambda n: ctx.hypervisor.stop(n.guest, force=True), nodes)
        # Until it runs again: a command that is killed now leaves a lab that can be started.
        if node is None:
            ctx.store.labs.update(name, **power.STOPPED)
        each(lambda n: system.forget_former(ctx, n), nodes)
        each(lambda v: ctx.storage.rollback(v, label), volumes)
        return system.put_back(ctx, record, capture, nodes)


def _check_alone(ctx: Context, record: LabRecord, node: Node) -> None:
    """Raise Conflict if a node cannot go back to the origin of its lab without the others."""
    if record.identity:
        why = f"{record.name} was given an identity of its own after that"
    elif unformed(ctx, parent_of(record)) and node.has_server and not record.plan.transfers:
        why = f"{record.name} was made without a template: its nodes were formed together later"
    else:
        return
    raise Conflict(
        f"{node.name} cannot go back to the origin of {record.name} alone: {why}",
        hint=f"`lab rollback {record.name}` puts all nodes back; with --to a snapshot, {node.name}"
        " can go back alone",
    )


@contextmanager
def stopped_on_failure(
    ctx: Context, name: str, label: str, nodes: Sequence[Node]
) -> Iterator[None]:
    """If the block fails, end the guests of ``nodes``: their disks are rolled back again anyway."""

    def end() -> None:
        each(lambda n: ctx.hypervisor.stop(n.guest, force=True), nodes)

    with Undo() as undo:
        undo.push(f"guests of {name}", end)
        try:
            yield
            undo.keep()
        except LabError as error:
            again = f"`lab rollback {name} --to {label}` again, or `lab start {name}`"
            error.hint = "; ".join(filter(None, (error.hint, f"{name} is stopped: {again}")))
            raise


@dataclass(frozen=True)
class StartedNodes:
    """When the nodes of a lab began to start, and why they were booted, empty if they were not."""

    began: float
    why_cold: str = ""


def resume(
    ctx: Context,
    source: Capture,
    record: LabRecord,
    images: Images,
    nodes: Sequence[Node],
    timeout: float,
    *,
    keep_sessions: bool = False,
) -> StartedNodes:
    """Restore ``nodes`` from the RAM of ``source`` and make them usable.

    No node runs if that was refused; the result says why.
    """
    with start_slot(ctx, warm=True):
        began = time.time()
        prepared, why_cold = restore(ctx, source, record, images, nodes)
        if prepared is not None:
            make_usable(
                ctx,
                record,
                images,
                nodes,
                prepared,
                ctx.ready_by(timeout),
                end_sessions=source.in_use and not keep_sessions,
                # What it is a clone of has other identities; what was captured of itself has these.
                identity=0 if source.owner.name == record.name else record.identity,
            )
    return StartedNodes(began, why_cold)


def _boot_new(
    ctx: Context, record: LabRecord, images: Images, nodes: Sequence[Node], timeout: float
) -> float:
    """Boot ``nodes``, clones that never ran, and make them usable; when that began."""
    with start_slot(ctx):
        began = time.time()
        boot_clones(ctx, record, images, nodes, timeout)
    return began


def _boot_used(ctx: Context, record: LabRecord, nodes: Sequence[Node], timeout: float) -> float:
    """Boot ``nodes`` from disks that ran before, and make them usable; when that began."""
    with start_slot(ctx) as give_back:
        began = time.time()
        power.bring_back(ctx, record, _with_others(ctx, record, nodes), timeout, booted=give_back)
    return began


def _with_others(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> Sequence[Node]:
    """``nodes``, and of a stopped lab all others as well: one takes from them what it lacks."""
    running = running_nodes(ctx, record.name)
    others = any(node.has_server and node not in nodes for node in running)
    return nodes if others else nodes_of(ctx, record.name)


def boot_clones(
    ctx: Context, record: LabRecord, images: Images, nodes: Sequence[Node], timeout: float
) -> None:
    """Boot ``nodes``, clones that never ran, and make them usable."""
    power.boot(ctx, record, _with_others(ctx, record, nodes))
    deadline, plan = ctx.ready_by(timeout), record.plan
    cluster = running_nodes(ctx, record.name)
    whole = len(nodes) == len(nodes_of(ctx, record.name))
    if whole and unformed(ctx, parent_of(record)):
        until_formed(ctx, cluster, plan, images, deadline)
    else:
        # Where some of the nodes go back, the others have the lab's password.
        known = record.password if len(nodes) < len(cluster) else ""
        until_back_inside(ctx, cluster, plan, images, deadline, password=known)
    prepared = prepare(ctx, Owner("lab", record.name), nodes, cluster)
    make_usable(ctx, record, images, nodes, prepared, deadline, identity=record.identity)


def make_usable(
    ctx: Context,
    record: LabRecord,
    images: Images,
    nodes: Sequence[Node],
    prepared: Prepared,
    deadline: Deadline,
    *,
    end_sessions: bool = False,
    identity: int = 0,
) -> None:
    """Personalise ``nodes`` and wait until all running nodes of the lab are ready.

    ``end_sessions``, ``identity``: see ``Started``.
    """
    plan, account = record.plan, account_of(ctx.home, record)
    cluster = running_nodes(ctx, record.name)
    started = Started(
        nodes, plan, images, account, prepared, deadline, cluster, end_sessions, identity
    )
    personalise(ctx, started)
    wait_ready(ctx, started)


def restore(
    ctx: Context, source: Capture, record: LabRecord, images: Images, nodes: Sequence[Node]
) -> tuple[Prepared | None, str]:
    """Resume ``nodes``, whose disks are as in ``source``, from its RAM; their new identities.

    None, and why, if the RAM was refused: a template is then not used again, or one that was
    captured from a lab in use is without RAM from now on, and no node runs.
    """
    power.check_room(ctx, nodes)
    try:
        return wake(ctx, source, parent_of(record), images, nodes, record.segment), ""
    except RestoreFailed as error:
        why = unrestored(error)
        note = f"{why}; {record.name} boots from its disks"
        if source.owner.kind == "template" and source.in_use:
            template.give_up_ram(ctx, source.owner.name, why)
        elif source.owner.kind == "template":
            template.mark_broken(ctx, source.owner.name, note)
        else:
            ctx.progress.note("rollback", note)
        each(lambda n: ctx.hypervisor.stop(n.guest, force=True), nodes)
        return None, why


@contextmanager
def memory_of_origin(ctx: Context, capture: Capture, images: Images) -> Iterator[Capture]:
    """The capture whose RAM goes with a lab's origin, kept from removal in the block.

    None of its nodes had run at that point, so it is what the lab is a clone of, if that is still
    sound; else the capture itself. Without RAM it says why.
    """
    why = ctx.hypervisor.capabilities().why_cold or capture.why_cold
    itself = capture.without_ram(why)
    if capture.parent is None:
        yield itself
        return
    if capture.parent.owner.kind == "lab":  # which stays as long as it has branches
        record = ctx.store.labs.get(capture.parent.owner.name)
        nodes = ctx.store.nodes.of(record.name)
        yield sound(ctx, load(ctx, record, nodes, capture.parent.label), images)
        return
    with template.kept(ctx, capture.parent.owner.name, images) as parent:
        if parent is None:
            yield itself
        else:
            yield parent if parent.warm else parent.without_ram(parent.why_cold or why)


def sound(ctx: Context, capture: Capture, images: Images) -> Capture:
    """A lab's capture, without RAM and with the reason where that does not fit, or is damaged."""
    found = template.fitting(ctx, capture, images)
    if not found.warm:
        return found
    try:
        manifests.check(ctx, found, images)
    except Damaged as error:
        return found.without_ram(f"the files of {found.label} are damaged: {error}")
    return found
