"""Snapshots of labs: captures of all volumes of all nodes, to which a lab can be rolled back.

Which there are, the storage knows; none is recorded. A snapshot counts if every node's
volumes have it: they were taken in one call, which is all or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lab import host, schedule
from lab.blueprints import blueprint
from lab.errors import Conflict, Interrupted, LabError, NotFound
from lab.hypervisor import Memory
from lab.lifecycle.captures import interrupted
from lab.lifecycle.captures.capture import Capture, of_lab
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.core.views import SnapshotView
from lab.lifecycle.nodes.inspect import nodes_of, record_of
from lab.lifecycle.nodes.personalise import set_clocks
from lab.lifecycle.nodes.quiesce import write_out
from lab.locks.named import lock
from lab.names import GuestName, Owner, VolumeName
from lab.schedule import Taken
from lab.state.records import LabRecord
from lab.storage import VolumeSnapshot
from lab.suggest import did_you_mean


def take(ctx: Context, name: str, what: str = "manual") -> SnapshotView:
    """Snapshot a lab, running or stopped; ``what``: a name for it, or a kind of a schedule.

    A running lab's nodes are paused, all at the same time, while it is taken; where they
    cannot, its volumes are taken at one moment, as by a power failure. Raises
    NotFound, HostUnfit if less than ``space_floor`` would be left, and Conflict while another
    command works on the lab.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = record_of(ctx, name)
        if record.state not in ("ready", "stopped"):
            raise Conflict(f"the lab {name} is {record.state}")
        interrupted.check(ctx, name)
        return _view(_take(ctx, name, what))


def snapshots(ctx: Context, name: str) -> list[SnapshotView]:
    """The snapshots of a lab, oldest first; raises NotFound."""
    record_of(ctx, name)
    return [_view(found) for found in taken(ctx, name)]


def persist(ctx: Context, name: str, label: str) -> None:
    """Make a snapshot durable whose command was interrupted before that."""
    found = [s for v in volumes_of(ctx, name) for s in ctx.storage.snapshots(v)]
    ctx.storage.persist([one for one in found if one.label == label])


def remove(ctx: Context, name: str, labels: Sequence[str]) -> None:
    """Remove snapshots, by label or name; raises NotFound before anything is removed."""
    with lock(ctx.home, "lab", name, wait=False):
        record_of(ctx, name)
        for found in [find(ctx, name, wanted) for wanted in labels]:
            _drop(ctx, name, found.label)


def rotate(ctx: Context, name: str, *, take_due: bool = True) -> list[str]:
    """Take the snapshots that are due by the lab's schedule, remove those beyond its count.

    Says what was done, a line each. Raises Conflict while another command works on the lab.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = ctx.store.labs.find(name)
        if record is None or record.state not in ("ready", "stopped"):
            return []
        due = _due(ctx, record) if take_due else []
        too_many = _drop_excess(ctx, record)  # first: there may be too little space for another
        new = [_take(ctx, name, kind).label for kind in due]
        too_many += _drop_excess(ctx, record)
        return [f"took {name}@{t}" for t in new] + [f"removed {name}@{t}" for t in too_many]


def is_due(ctx: Context, record: LabRecord) -> bool:
    """Whether ``rotate`` has anything to do for a lab; asks the storage only."""
    if record.state not in ("ready", "stopped"):
        return False
    return bool(_due(ctx, record) or _too_many(ctx, record))


def _due(ctx: Context, record: LabRecord) -> list[str]:
    """The kinds of which a snapshot is to be taken; a lab that does not run does not change."""
    if record.state != "ready" or interrupted.exists(ctx, record.name):
        return []
    return schedule.due(schedule.parse(record.snapshots), taken(ctx, record.name), time.time())


def _too_many(ctx: Context, record: LabRecord) -> list[str]:
    """The labels of those that are not kept."""
    wanted, found = schedule.parse(record.snapshots), taken(ctx, record.name)
    return [*schedule.excess(wanted, found), *_torn(ctx, record.name)]


def _drop_excess(ctx: Context, record: LabRecord) -> list[str]:
    labels = _too_many(ctx, record)
    for label in labels:
        _drop(ctx, record.name, label)
    return labels


def find(ctx: Context, name: str, wanted: str) -> Capture:
    """The snapshot of that label, or the newest of that name; raises NotFound."""
    found = taken(ctx, name)
    for one in reversed(found):
        if wanted in (one.label, one.name):
            return of_lab(ctx.store.labs.get(name), ctx.store.nodes.of(name), one.label)
    names = [one.label for one in found]
    raise NotFound(
        f"the lab {name} has no snapshot {wanted!r}",
        hint=did_you_mean(wanted, names, otherwise=f"`lab snapshot ls {name}` lists them"),
    )


def taken(ctx: Context, name: str) -> list[Taken]:
    """The labels of the snapshots that all volumes of a lab have, oldest first."""
    return _whole([[s.label for s in ctx.storage.snapshots(v)] for v in volumes_of(ctx, name)])


def everywhere(ctx: Context) -> dict[str, list[Taken]]:
    """``taken`` of all labs that have volumes, by name; asks the storage once."""
    labels: dict[str, list[list[str]]] = {}
    for volume, found in ctx.storage.labels().items():
        if volume.owner.kind == "lab":
            labels.setdefault(volume.owner.name, []).append(found)
    return {name: _whole(found) for name, found in labels.items()}


def _whole(labels: Sequence[Sequence[str]]) -> list[Taken]:
    """The snapshots that all volumes have; ``labels``: those of each."""
    if not labels:
        return []
    first, *others = labels
    return [schedule.read(label) for label in first if all(label in other for other in others)]


def volumes_of(ctx: Context, name: str, node: str | None = None) -> list[VolumeName]:
    """The volumes of a lab, or of one of its nodes."""
    owner = Owner("lab", name)
    names = [v.name for v in ctx.storage.volumes() if v.name.owner == owner]
    return [volume for volume in names if node in (None, volume.node)]


def _take(ctx: Context, name: str, what: str) -> Taken:
    space, floor = ctx.storage.space(), ctx.settings.space_floor
    host.check_space(space.free, floor, ctx.home.root, what="a snapshot")
    volumes = volumes_of(ctx, name)
    label = schedule.label(what, time.time(), [one.label for one in taken(ctx, name)])
    with ctx.progress.step("snapshot", f"taking the snapshot {label}"):
        running = _running(ctx, name)
        write_out(ctx, blueprint(ctx.store.labs.get(name).blueprint), running)
        if (memory := ctx.hypervisor.memory) is not None:
            made = _paused(ctx, name, memory, running, volumes, label)
        else:
            made = ctx.storage.snapshot(volumes, label)
        ctx.storage.persist(made)
    return schedule.read(label)


def _paused(
    ctx: Context,
    name: str,
    memory: Memory,
    running: Sequence[GuestName],
    volumes: Sequence[VolumeName],
    label: str,
) -> Sequence[VolumeSnapshot]:
    """Take a snapshot while the guests that run are paused."""
    try:
        memory.pause(running)
        made = ctx.storage.snapshot(volumes, label)
    finally:
        guests = ctx.hypervisor.guests()
        memory.resume([guest for guest in running if guest in guests])
    # Their clocks were stopped.
    try:
        set_clocks(ctx, [node for node in nodes_of(ctx, name) if node.guest in running])
    except Interrupted:
        raise
    except LabError as error:
        ctx.progress.note("clock", f"the clocks of {name} were not corrected: {error.what}")
    return made


def _torn(ctx: Context, name: str) -> list[str]:
    """The labels that only some volumes have: a removal was interrupted."""
    labels = [{s.label for s in ctx.storage.snapshots(v)} for v in volumes_of(ctx, name)]
    if not labels:
        return []
    everywhere = set(labels[0]).intersection(*labels)
    return sorted(set(labels[0]).union(*labels) - everywhere)


def _running(ctx: Context, name: str) -> list[GuestName]:
    guests = ctx.hypervisor.guests()
    names = [node.guest for node in nodes_of(ctx, name)]
    return [g for g in names if g in guests and guests[g].state == "running"]


def _drop(ctx: Context, name: str, label: str) -> None:
    """Remove a snapshot of all volumes, also if the last attempt was interrupted."""

    def one(volume: VolumeName) -> LabError | None:
        try:
            ctx.storage.drop(VolumeSnapshot(volume, label, 0))
        except LabError as error:
            return error
        return None

    failed = [error for error in each(one, volumes_of(ctx, name)) if error is not None]
    if failed:
        raise failed[0]


def _view(one: Taken) -> SnapshotView:
    return SnapshotView(one.label, one.name, one.at)
