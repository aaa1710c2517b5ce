"""``lab gc``: removes expired labs and leftovers of killed commands.

Only what the record says is ours and was not completed is removed, and only while no command
holds its lock. Tagged things that the record does not know (it may have been lost) are reported and
left alone, unless the user asks for them.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress

from lab.drafts import sweep_drafts
from lab.errors import Conflict, InvalidSpec, LabError
from lab.exchange.stage import remove_abandoned
from lab.lifecycle.captures import retire, template_record
from lab.lifecycle.captures.capture import parent_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import (
    branches,
    forget,
    leave_to_branches,
    lost_logs,
    mark_removing,
)
from lab.lifecycle.core.waiting import AHEAD
from lab.lifecycle.host import catalog
from lab.lifecycle.host.builds import remove_work
from lab.lifecycle.images import image
from lab.lifecycle.nodes import standby
from lab.lifecycle.snapshots import snapshot
from lab.locks import named
from lab.locks.named import lock
from lab.names import CaptureRef, GuestName, Owner, OwnerKind
from lab.paths import writing
from lab.requests.host import ORDINARY, CollectGarbage
from lab.state.records import ImageRecord, LabRecord
from lab.storage import clone_lock
from lab.views.host import GcReport

_UNWANTED = 86400.0
"""Seconds after which labs are no more to be made ahead like one that was created then."""
_UNRECORDED = "not recorded"
_UNUSED = "unused, and no request would use it"

_KINDS = ("lab", "template", "image")
"""The order where it is not known what is a clone of what: the record is lost, and the volumes were
made before their tags had their parent."""

Task = tuple[Owner, str]
"""An owner to remove, and why."""


def gc(ctx: Context, asked: CollectGarbage = ORDINARY) -> GcReport:
    """Remove what expired or was left over, and what else is asked for.

    Images and templates that no request would use any more, and things with our tags that are not
    recorded, are only reported otherwise. Nothing that a running command works on is touched.
    """
    found = list(tasks(ctx))
    left: list[str] = []
    for owner in _unrecorded(ctx):
        if asked.orphans:
            found.append((owner, _UNRECORDED))
        else:
            left.append(f"{owner}: not recorded; `lab gc --orphans` or `lab down` removes it")
    for owner in catalog.unused(ctx, time.time() - asked.age):
        if asked.unused:
            found.append((owner, _UNUSED))
        else:
            left.append(f"{owner}: {_UNUSED}; `lab gc --unused` removes it")
    report = perform(ctx, found, dry_run=asked.dry_run)
    if asked.dry_run:
        return GcReport(report.removed, (*report.left, *left))
    # Labs whose removal waited for a branch that is gone now, and so on.
    while waited := [task for task in tasks(ctx) if task not in found]:
        found += waited
        more = perform(ctx, waited)
        report = GcReport((*report.removed, *more.removed), (*report.left, *more.left))
    standbys = standby.sweep(ctx)
    with writing(ctx.home.ahead), suppress(FileNotFoundError):
        if time.time() - ctx.home.ahead.stat().st_mtime > _UNWANTED:  # it may hold secrets
            ctx.home.ahead.unlink()
    swept, kept = remove_abandoned(ctx.home.imports)
    left += kept
    swept += [*standbys, *ctx.storage.sweep(), *_scratch(ctx)]
    ctx.hypervisor.forget([])  # also redirected ports of guests that ended by themselves
    named.sweep(ctx.home)
    rotated = _rotate(ctx, left)
    return GcReport((*report.removed, *swept), (*report.left, *left), tuple(rotated))


def tasks(ctx: Context) -> Iterator[Task]:
    """What the record says is to be removed, as of now."""
    owners = [Owner("lab", lab.name) for lab in ctx.store.labs.all()]
    owners += [Owner("template", record.key) for record in ctx.store.templates.all()]
    owners += [Owner("image", record.key) for record in ctx.store.images.all()]
    owners += [owner for owner in ctx.store.resources.owners() if owner not in owners]
    for owner in owners:
        why = _why(ctx, owner)
        if why:
            yield owner, why


def perform(ctx: Context, found: Sequence[Task], *, dry_run: bool = False) -> GcReport:
    """Remove, one by one, what still is to be removed once its lock is held: clones first."""
    removed: list[str] = []
    left: list[str] = []
    for owner, why in _clones_first(ctx, found):
        _do(ctx, owner, why, removed, left, dry_run=dry_run)
    return GcReport(tuple(removed), tuple(left))


def _clones_first(ctx: Context, found: Sequence[Task]) -> list[Task]:
    """``found`` in order of dependence: whatever has clones comes after them."""
    if len(found) < 2:
        return list(found)
    clones, ordered = _clones(ctx), dict[Owner, str]()
    whys = dict(sorted(found, key=lambda task: _KINDS.index(task[0].kind)))

    def add(owner: Owner) -> None:
        if owner in whys and owner not in ordered:
            for clone in sorted(clones[owner]):
                add(clone)
            ordered[owner] = whys[owner]

    for owner in whys:
        add(owner)
    return list(ordered.items())


def _clones(ctx: Context) -> dict[Owner, set[Owner]]:
    """Whose volumes are clones of an owner's, by the record and by the tags of volumes."""
    found: dict[Owner, set[Owner]] = defaultdict(set)
    for made in ctx.store.labs_with_nodes():
        parent = parent_of(made.lab)
        images = [Owner("image", key) for key in made.images]
        for source in [parent.owner] if parent else images:
            found[source].add(Owner("lab", made.lab.name))
    for record in ctx.store.templates.all():
        for key in record.images:
            found[Owner("image", key)].add(Owner("template", record.key))
    for made_of in ctx.store.images.all():
        if made_of.parent:
            found[Owner("image", made_of.parent)].add(Owner("image", made_of.key))
    for volume in ctx.storage.volumes():
        with suppress(InvalidSpec):  # no tag, or not one of ours
            found[CaptureRef.parse(volume.tags.get("parent", "")).owner].add(volume.name.owner)
    return found


def _rotate(ctx: Context, left: list[str]) -> list[str]:
    """Take and remove the snapshots that schedules ask for; what cannot be done is noted."""
    done: list[str] = []
    for lab in ctx.store.labs.all():
        if lab.snapshots or snapshot.is_due(ctx, lab):
            try:
                done += snapshot.rotate(ctx, lab.name)
            except Exception as error:  # noqa: BLE001  of one lab; the others have their turn
                left.append(f"snapshots of {lab.name}: {error}")
    return done


def _why(ctx: Context, owner: Owner) -> str:
    """Why the things of ``owner`` are to be removed now; empty if they are not."""
    if owner.kind == "lab":
        lab = ctx.store.labs.find(owner.name)
        if lab is not None:
            if lab.state == "removing" and branches(ctx, lab.name):
                return ""  # it is removed with the last of them
            return _why_lab(ctx, lab)
    else:
        keyed = ctx.store.templates if owner.kind == "template" else ctx.store.images
        record = keyed.find(owner.name)
        if isinstance(record, ImageRecord) and retire.is_over(ctx, record):
            return "removed, and no lab uses it"
        if record is not None:
            return f"left in state {record.state}" if record.state != "ready" else ""
    return "left without a record" if ctx.store.resources.of(owner) else ""


def _why_lab(ctx: Context, lab: LabRecord) -> str:
    if lab.expires_at is not None and lab.expires_at <= time.time():
        return "expired"
    waits = lab.pool == AHEAD and lab.state == "ready"
    # Who makes one pauses it a moment after it is ready.
    if waits and not named.held(ctx.home, "state", "ahead") and _runs(ctx, lab.name):
        return "left running by a command that was to take it"
    return f"left in state {lab.state}" if lab.state in ("creating", "removing") else ""


def _runs(ctx: Context, name: str) -> bool:
    guests = ctx.hypervisor.guests()
    there = (guests.get(GuestName(node.guest)) for node in ctx.store.nodes.of(name))
    return any(guest is not None and guest.state == "running" for guest in there)


def _remove(ctx: Context, owner: Owner) -> None:
    if owner.kind == "lab" and ctx.store.labs.find(owner.name) and branches(ctx, owner.name):
        leave_to_branches(ctx, owner.name)
        standby.clear(ctx, owner.name)
    elif owner.kind == "lab":
        forget(ctx, owner)
    elif owner.kind == "template":
        template_record.discard(ctx, owner.name)
    elif (record := ctx.store.images.find(owner.name)) is not None and record.dataset:
        retire.discard(ctx, owner.name)
    else:
        image.discard(ctx, owner.name)


def _locked(ctx: Context, owner: Owner) -> AbstractContextManager[object]:
    """The locks of all who may work on ``owner``; raises Conflict."""
    if owner.kind == "template":
        return template_record.locked(ctx, owner.name)
    return lock(ctx.home, owner.kind, owner.name, wait=False)


def _do(
    ctx: Context,
    owner: Owner,
    why: str,
    removed: list[str],
    left: list[str],
    *,
    dry_run: bool,
) -> None:
    """Remove one thing under its lock; what is busy or cannot be removed is noted."""
    try:
        with _locked(ctx, owner):
            # Since it was listed it may have become ready, or been given a new lease.
            if not _still_to_remove(ctx, owner, why):
                return
            if not dry_run:
                if owner.kind == "lab" and not _mark(ctx, owner):
                    return
                _remove(ctx, owner)
    except Conflict as error:
        left.append(f"{owner}: {why}, but {error}")
    except LabError as error:
        left.append(f"{owner}: {why}, not removed: {error}")
    else:
        removed.append(f"{owner}: {why}")


def _mark(ctx: Context, owner: Owner) -> bool:
    """Record that a lab is being removed, unless its lease was extended in this moment.

    A lease is extended without the lab's lock, so it is looked at in the same transaction.
    """
    with ctx.store.transaction():
        record = ctx.store.labs.find(owner.name)
        if record is not None and not _why(ctx, owner):
            return False
        if record is not None:
            mark_removing(ctx, owner.name)
    return True


def _still_to_remove(ctx: Context, owner: Owner, why: str) -> bool:
    if why == _UNUSED:
        return True  # what is used again has clones, which keep it
    return owner in _unrecorded(ctx) if why == _UNRECORDED else bool(_why(ctx, owner))


def _known(ctx: Context) -> set[Owner]:
    known = {Owner("lab", lab.name) for lab in ctx.store.labs.all()}
    known |= {Owner("template", record.key) for record in ctx.store.templates.all()}
    return known | {Owner("image", record.key) for record in ctx.store.images.all()}


def _unrecorded(ctx: Context) -> list[Owner]:
    owners = {guest.tags.get("owner", "") for guest in ctx.hypervisor.guests().values()}
    found = {Owner.parse(owner) for owner in owners if owner}
    found |= {volume.name.owner for volume in ctx.storage.volumes()}
    kinds: tuple[OwnerKind, ...] = ("lab", "template", "image")
    for owner in (Owner(kind, name) for kind in kinds for name in _directories(ctx, kind)):
        with suppress(InvalidSpec):  # not one of ours
            found.add(Owner.parse(str(owner)))
    return sorted(found - _known(ctx) - set(ctx.store.resources.owners()))


def _directories(ctx: Context, kind: OwnerKind) -> list[str]:
    return [path.name for path in ctx.home.directory(Owner(kind, "x")).parent.iterdir()]


def _scratch(ctx: Context) -> list[str]:
    """Remove build directories and sockets of ended commands, and logs of removed guests."""
    removed = []
    for directory in sorted(ctx.home.builds.iterdir()):
        try:
            with lock(ctx.home, "image", directory.name, wait=False):
                remove_work(ctx, directory)
        except Conflict:
            continue
        removed.append(f"build files {directory}")
    for directory in clone_lock.abandoned(ctx.home.sockets):
        shutil.rmtree(directory, ignore_errors=True)
        removed.append(f"socket {directory}")
    for log in lost_logs(ctx):
        log.unlink(missing_ok=True)
        removed.append(f"console log {log}")
    removed += [f"draft {draft}" for draft in sweep_drafts(ctx.home)]
    return removed
