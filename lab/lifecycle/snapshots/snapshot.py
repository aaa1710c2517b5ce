"""Snapshots of labs: captures of all volumes of all nodes, to which a lab can be rolled back.

Which there are, the storage knows; none is recorded. A snapshot counts if every node's
volumes have it: they were taken in one call, which is all or nothing. What else belongs to it, RAM
included, is in files of the home, whose manifest is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace

from lab import host, schedule
from lab.errors import Busy, Conflict, LabError, NotFound
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures import take as captures
from lab.lifecycle.captures.capture import Capture, of_lab, position
from lab.lifecycle.captures.freeze import write_out
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.asleep import awake, is_asleep
from lab.lifecycle.nodes.inspect import check_usable, images_of, nodes_of, record_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.recovery import resume_paused
from lab.lifecycle.nodes.standby import forget_standby
from lab.locks.named import held, lock
from lab.names import CaptureRef, GuestName, Owner, VolumeName
from lab.paths import MANIFEST, REACHABLE, entries, make_directory, sync, writing
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import FORMER, ORIGIN, Taken
from lab.state.records import LabRecord, NodeRecord
from lab.storage import VolumeSnapshot, sparse
from lab.suggest import did_you_mean
from lab.undo import Undo
from lab.views.snapshots import SnapshotView

KEPT = 3600.0
"""Seconds for which a snapshot that was taken for branches stays once it has none."""
_STARTED = 120.0
"""Seconds for which such a snapshot stays if its command was killed; a running one keeps it."""


def take(
    ctx: Context,
    asked: TakeSnapshot,
    *,
    labelled: Callable[[str], object] = lambda _: None,
    failed: bool = False,
) -> SnapshotView:
    """Snapshot a lab, running or stopped.

    A running lab's nodes are paused, all at the same time, while it is taken; where they
    cannot, its volumes are taken at one moment, as by a power failure. Its RAM is included where
    all nodes run and the hypervisor can, unless the request is for disks only. ``labelled`` is
    called with its label before anything of it is there. ``failed``: also where the creation of the
    lab failed, and its guests were kept. Raises NotFound, HostUnfit if less than
    ``space_floor`` would be left, and Conflict while another command works on the lab.
    """
    awake(ctx, asked.lab)
    with lock(ctx.home, "lab", asked.lab, wait=False):
        record = record_of(ctx, asked.lab)
        if not (failed and record.state == "failed"):
            check_usable(record)
        interrupted.check(ctx, asked.lab)
        owner, keep = Owner("lab", asked.lab), asked.protected
        expires = None if asked.ttl is None else time.time() + asked.ttl
        blank = Capture(owner, "", (), protected=keep, expires_at=expires)
        made = _take(ctx, record, asked.name, blank, ram=not asked.disks_only, labelled=labelled)
        return view_of(ctx, made)


def snapshots(ctx: Context, name: str) -> list[SnapshotView]:
    """The snapshots of a lab, oldest first; raises NotFound."""
    record = record_of(ctx, name)
    nodes = ctx.store.nodes.of(name)
    found = [load(ctx, record, nodes, one.label) for one in taken(ctx, name)]
    return [view_of(ctx, capture) for capture in found]


def protect(ctx: Context, name: str, label: str, *, protected: bool) -> SnapshotView:
    """Keep a snapshot from removal, or no longer; raises NotFound and Conflict."""
    with lock(ctx.home, "lab", name, wait=False):
        record_of(ctx, name)
        capture = replace(find(ctx, name, label), protected=protected)
        _describe(ctx, capture)
        return view_of(ctx, capture)


def prolong(ctx: Context, name: str, label: str, ttl: float) -> None:
    """Let a snapshot expire ``ttl`` seconds from now.

    Where another command works on the lab, or has removed it, that is left.
    """
    with suppress(Conflict, NotFound), lock(ctx.home, "lab", name, wait=False):
        _describe(ctx, replace(find(ctx, name, label), expires_at=time.time() + ttl))


def _describe(ctx: Context, capture: Capture) -> None:
    """Write the manifest of a snapshot again, or that of one that has no files.

    A directory without a manifest is one of an interrupted command, whose snapshot is removed: so
    a new one appears with it.
    """
    directory = ctx.home.directory(capture.ref)
    known = directory.exists()
    draft = directory if known else directory.with_name(f"{directory.name}.new")
    make_directory(directory.parent, REACHABLE)
    make_directory(draft, REACHABLE)
    manifests.write(draft / MANIFEST, capture)
    if not known:
        with writing(directory):
            draft.rename(directory)
            sync(directory.parent)


def persist(ctx: Context, name: str, label: str) -> None:
    """Make a snapshot durable whose command was interrupted before that."""
    found = [s for v in volumes_of(ctx, name) for s in ctx.storage.snapshots(v)]
    ctx.storage.persist([one for one in found if one.label == label])


def remove(ctx: Context, name: str, labels: Sequence[str], *, force: bool = False) -> None:
    """Remove snapshots, by label or name; ``force``: protected ones as well.

    Raises NotFound, and Conflict for the origin, for one that is protected, that is being branched,
    or that other labs or snapshots descend from, before anything is removed.
    """
    with ExitStack() as locks:
        locks.enter_context(lock(ctx.home, "lab", name, wait=False))
        record_of(ctx, name)
        found = {one.label: one for one in (find(ctx, name, wanted) for wanted in labels)}
        for label in found:
            locks.enter_context(_unbranched(ctx, name, label))
        for capture in found.values():
            if capture.label == ORIGIN:
                raise Conflict(
                    f"origin is the state of {name} after its creation, to which `lab rollback`"
                    " goes back",
                    hint="it is removed with the lab",
                )
            if capture.protected and not force:
                raise Conflict(
                    f"the snapshot {capture.label} of {name} is protected",
                    hint="`--force` removes it anyway",
                )
            check_unused(ctx, capture, besides=list(found))
        for label in found:
            _drop(ctx, name, label)


@contextmanager
def kept(ctx: Context, name: str, wanted: str) -> Iterator[Capture]:
    """A snapshot, by label or name, which nobody removes in the block; raises NotFound."""
    label = find(ctx, name, wanted).label
    with lock(ctx.home, "snapshot", f"{name}.{label}", shared=True):
        yield find(ctx, name, label)  # a removal may have been waited for


@contextmanager
def kept_or_taken(
    ctx: Context, name: str, wanted: str, what: str, *, failed: bool = False
) -> Iterator[Capture]:
    """Keep a snapshot as ``kept`` does, or take one called ``what`` if none is ``wanted``.

    That is removed afterwards, unless it has branches: then it stays for a while.
    """

    def leave() -> None:
        if branches(ctx, CaptureRef(Owner("lab", name), wanted)):
            prolong(ctx, name, wanted, KEPT)
        else:
            remove_unused(ctx, name, wanted)

    with Undo() as undo:
        if not wanted:
            wanted = take(ctx, TakeSnapshot(lab=name, name=what, ttl=_STARTED), failed=failed).label
            undo.push(f"snapshot {wanted}", leave)
        with kept(ctx, name, wanted) as capture:
            yield capture


def remove_unused(ctx: Context, name: str, label: str) -> None:
    """Remove a snapshot that was taken for branches, unless it has some.

    Where another command works on the lab, it stays until it expires.
    """
    with suppress(Conflict, NotFound):
        remove(ctx, name, [label])


def _unbranched(ctx: Context, name: str, label: str) -> AbstractContextManager[bool]:
    """The lock of a snapshot that is removed in the block; raises Busy while it is ``kept``.

    Not waited for, as the lab's lock is held.
    """
    return lock(ctx.home, "snapshot", f"{name}.{label}", wait=False)


def check_unused(ctx: Context, capture: Capture, *, besides: Sequence[str] = ()) -> None:
    """Raise Conflict if labs, or other snapshots of its lab than ``besides``, need a snapshot."""
    labs, needing = branches(ctx, capture.ref), _needing(ctx, capture)
    if labs:
        raise Conflict(
            f"the snapshot {capture.label} of {capture.owner.name} has branches: {', '.join(labs)}",
            hint=f"`lab down {' '.join(labs)}` first",
        )
    if others := [label for label in needing if label not in besides]:
        raise Conflict(
            f"the RAM of {', '.join(others)} is kept as what differs from {capture.label}",
            hint=f"`lab snapshot rm {capture.owner.name} {' '.join(others)}` first",
        )


def branches(ctx: Context, snapshot: CaptureRef) -> list[str]:
    """The labs that are clones of a snapshot."""
    return [lab.name for lab in ctx.store.labs.all() if lab.parent == str(snapshot)]


def _needing(ctx: Context, capture: Capture) -> list[str]:
    """The snapshots of the same lab whose RAM is relative to that of ``capture``."""
    if all(node.base is not None or node.ram is None for node in capture.nodes):
        return []
    found = []
    for one in taken(ctx, capture.owner.name):
        ref = CaptureRef(capture.owner, one.label)
        with suppress(Damaged):
            if any(
                node.base == capture.ref for node in manifests.read(ctx.home.manifest(ref)).nodes
            ):
                found.append(one.label)
    return found


def rotate(ctx: Context, name: str, *, take_due: bool = True) -> list[str]:
    """Take the snapshots that are due by the lab's schedule, remove those beyond its count.

    Nodes that a killed ``take`` left paused are resumed. Says what was done, a line each. Raises
    Conflict while another command works on the lab.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = ctx.store.labs.find(name)
        if record is None or not _kept_up(record):
            return []
        if record.asleep_at is None and _incomplete(ctx, name):  # before what shows that is removed
            resume_paused(ctx, nodes_of(ctx, name))
        due = _due(ctx, record) if take_due else []
        too_many = _drop_excess(ctx, record)  # first: there may be too little space for another
        blank = Capture(Owner("lab", name), "", ())
        new = [_take(ctx, record, kind, blank, ram=False).label for kind in due]
        too_many += _drop_excess(ctx, record)
        return [f"took {name}@{t}" for t in new] + [f"removed {name}@{t}" for t in too_many]


def prune(ctx: Context, name: str) -> list[str]:
    """Remove the snapshots of a lab that are not kept; says so as ``rotate``. Raises NotFound."""
    record_of(ctx, name)
    return rotate(ctx, name, take_due=False)


def is_due(ctx: Context, record: LabRecord) -> bool:
    """Whether ``rotate`` has anything to do for a lab, and can; asks the storage only.

    What looks like a leftover may be what another command is making.
    """
    if not _kept_up(record):
        return False
    found = _due(ctx, record) or _too_many(ctx, record)
    return bool(found) and not held(ctx.home, "lab", record.name)


def _kept_up(record: LabRecord) -> bool:
    """Whether snapshots of a lab are removed in time; one that failed may have those of bundles."""
    return record.usable or record.state == "failed"


def _due(ctx: Context, record: LabRecord) -> list[str]:
    """The kinds of which a snapshot is to be taken; a lab that does not run does not change."""
    if record.state != "ready" or is_asleep(ctx, record) or interrupted.exists(ctx, record.name):
        return []
    return schedule.due(schedule.parse(record.snapshots), taken(ctx, record.name), time.time())


def _too_many(ctx: Context, record: LabRecord) -> list[str]:
    """The labels of those that are not kept, and of what interrupted commands left."""
    wanted, found = schedule.parse(record.snapshots), taken(ctx, record.name)
    nodes, now = ctx.store.nodes.of(record.name), time.time()
    loaded = {one.label: load(ctx, record, nodes, one.label) for one in found}
    gone = schedule.excess(wanted, found)
    # By the host's clock, also after a step: the sweeper moves leases with one, which are in the
    # record, but not these times, which are in manifests.
    gone += [
        label
        for label, one in loaded.items()
        if one.expires_at is not None and one.expires_at <= now and label not in gone
    ]
    return [
        *(label for label in gone if _unused(ctx, loaded[label])),
        *_torn(ctx, record.name),
    ]


def _unused(ctx: Context, capture: Capture) -> bool:
    """Whether a snapshot can be removed without harm."""
    try:
        check_unused(ctx, capture)
    except Conflict:
        return False
    return not capture.protected


def _drop_excess(ctx: Context, record: LabRecord) -> list[str]:
    dropped, owner = [], Owner("lab", record.name)
    for label in _too_many(ctx, record):
        # One that is being branched, or has become a parent since it was listed, goes later.
        with suppress(Busy), _unbranched(ctx, record.name, label):
            if not branches(ctx, CaptureRef(owner, label)):
                _drop(ctx, record.name, label)
                dropped.append(label)
    return dropped


def find(ctx: Context, name: str, wanted: str) -> Capture:
    """The snapshot of that label, or the newest of that name; raises NotFound."""
    found = taken(ctx, name)
    for one in reversed(found):
        if wanted in (one.label, one.name):
            record = ctx.store.labs.get(name)
            return load(ctx, record, ctx.store.nodes.of(name), one.label)
    names = [one.label for one in found]
    raise NotFound(
        f"the lab {name} has no snapshot {wanted!r}",
        hint=did_you_mean(wanted, names, otherwise=f"`lab snapshot ls {name}` lists them"),
    )


def load(ctx: Context, record: LabRecord, nodes: Sequence[NodeRecord], label: str) -> Capture:
    """A snapshot as its manifest has it; without RAM, and with the reason, if that is damaged."""
    plain = of_lab(record, nodes, label)
    path = ctx.home.manifest(plain.ref)
    try:
        return manifests.read(path)
    except Damaged as error:
        if not path.exists():  # it has none, or is being removed
            return plain
        return replace(plain, why_cold=f"the files of {label} are damaged: {error}")


def taken(ctx: Context, name: str) -> list[Taken]:
    """The labels of the snapshots that all volumes of a lab have, oldest first."""
    labels = [[s.label for s in ctx.storage.snapshots(v)] for v in volumes_of(ctx, name)]
    return _whole(labels, _incomplete(ctx, name))


def everywhere(ctx: Context) -> dict[str, list[Taken]]:
    """``taken`` of all labs that have volumes, by name; asks the storage once."""
    labels: dict[str, list[list[str]]] = {}
    for volume, found in ctx.storage.labels().items():
        if volume.owner.kind == "lab" and volume.volume != FORMER:
            labels.setdefault(volume.owner.name, []).append(found)
    return {name: _whole(found, _incomplete(ctx, name)) for name, found in labels.items()}


def _whole(labels: Sequence[Sequence[str]], incomplete: Collection[str]) -> list[Taken]:
    """The snapshots that all volumes have; ``labels``: those of each."""
    if not labels:
        return []
    first, *others = labels
    whole = [label for label in first if all(label in other for other in others)]
    whole = [label for label in whole if label != FORMER]
    return [schedule.read(label) for label in whole if label not in incomplete]


def _incomplete(ctx: Context, name: str) -> set[str]:
    """The labels of snapshots whose taking, or removal, was interrupted: they have no manifest."""
    directories = ctx.home.capture_directories(name)
    return {path.name for path in directories if not (path / MANIFEST).exists()}


def volumes_of(ctx: Context, name: str, node: str | None = None) -> list[VolumeName]:
    """The volumes of a lab, or of one of its nodes, that nodes boot from."""
    owner = Owner("lab", name)
    names = [v.name for v in ctx.storage.volumes() if v.name.owner == owner]
    names = [name for name in names if name.volume != FORMER]
    return [volume for volume in names if node in (None, volume.node)]


def _take(
    ctx: Context,
    record: LabRecord,
    what: str,
    blank: Capture,
    *,
    ram: bool,
    labelled: Callable[[str], object] = lambda _: None,
) -> Capture:
    """Take a snapshot, with RAM if asked and possible; ``blank``: what else is recorded of it."""
    name = record.name
    space, floor = ctx.storage.space(), ctx.settings.space_floor
    host.check_space(space.free, floor, ctx.home.root, what="a snapshot")
    nodes = nodes_of(ctx, name)
    for left in _torn(ctx, name):
        _drop(ctx, name, left)
    resume_paused(ctx, nodes)
    label = schedule.label(what, time.time(), [one.label for one in taken(ctx, name)])
    labelled(label)
    with ctx.progress.step("snapshot", f"taking the snapshot {label}"):
        running = _running(ctx, nodes)
        why_cold = _why_cold(ctx, nodes, running) if ram else "it was taken with disks only"
        write_out(ctx, [node for node in nodes if node.guest in running], record.plan.flush)
        made = captures.take(
            ctx,
            CaptureRef(blank.owner, label),
            nodes,
            images_of(ctx, record, nodes),
            running,
            replace(blank, parent=position(record), why_cold=why_cold),
            ram=not why_cold,
        )
        ctx.store.labs.update(name, at=label)
    return made


def _why_cold(ctx: Context, nodes: Sequence[Node], running: Sequence[GuestName]) -> str:
    """Why a snapshot that is taken now has no RAM; empty if it has."""
    if ctx.hypervisor.memory is None:
        return ctx.hypervisor.capabilities().why_cold
    off = [node.name for node in nodes if node.guest not in running]
    return f"{', '.join(off)} did not run when it was taken" if off else ""


def _torn(ctx: Context, name: str) -> list[str]:
    """The labels of what is not whole: it was interrupted when it was taken, or removed."""
    labels = [{s.label for s in ctx.storage.snapshots(v)} for v in volumes_of(ctx, name)]
    if not labels:
        return []
    whole = set(labels[0]).intersection(*labels) - _incomplete(ctx, name)
    known = {path.name for path in ctx.home.capture_directories(name)}
    return sorted(known.union(*labels) - whole - {FORMER})


def _running(ctx: Context, nodes: Sequence[Node]) -> list[GuestName]:
    guests = ctx.hypervisor.guests()
    names = [node.guest for node in nodes]
    return [g for g in names if g in guests and guests[g].state == "running"]


def _drop(ctx: Context, name: str, label: str) -> None:
    """Remove a snapshot of all volumes, also if the last attempt was interrupted.

    The lab's standby for it goes first.
    """
    volumes = volumes_of(ctx, name)
    forget_standby(ctx, name, label)

    def drop(volume: VolumeName) -> LabError | None:
        try:
            ctx.storage.drop(VolumeSnapshot(volume, label, 0))
        except LabError as error:
            return error
        return None

    failed = [error for error in each(drop, volumes) if error is not None]
    if failed:
        raise failed[0]
    captures.remove_files(ctx, CaptureRef(Owner("lab", name), label))


def view_of(ctx: Context, capture: Capture) -> SnapshotView:
    """A snapshot, as it is shown."""
    one, directory = schedule.read(capture.label), ctx.home.directory(capture.ref)
    lab = ctx.store.labs.find(capture.owner.name)
    return SnapshotView(
        one.label,
        one.name,
        one.at,
        warm=capture.warm,
        why_cold="" if capture.warm else capture.why_cold,
        pause=capture.pause,
        ram=sparse.taken(entries(directory)),
        protected=capture.protected,
        expires_at=capture.expires_at,
        parent=str(capture.parent or ""),
        branches=tuple(branches(ctx, capture.ref)),
        current=lab is not None and (lab.at or ORIGIN) == capture.label,
    )
