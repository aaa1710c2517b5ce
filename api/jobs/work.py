"""The work of jobs: a function for each kind, on the same lifecycle as the commands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from lab.api.jobs import stored
from lab.datasets.source import LabCapture
from lab.datasets.source import parse as parse_source
from lab.errors import Conflict, HostUnfit, Interrupted, LabError, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.core.release import branches
from lab.lifecycle.datasets import dataset as datasets
from lab.lifecycle.host import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.sleep import reachable
from lab.lifecycle.nodes import inspect
from lab.lifecycle.nodes.recovery import resume_paused
from lab.lifecycle.perform import perform
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import held, lock
from lab.names import CaptureRef, Owner, parse_dataset
from lab.request import Request
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
from lab.requests.labs import (
    BranchLab,
    CreateLab,
    DeleteLab,
    DropStandby,
    ExpireLab,
    FillPool,
    LabRequest,
    MakeStandby,
    Power,
    Promote,
    ResetLab,
    RestartLab,
    RollBack,
    SleepLab,
    StartLab,
    StopLab,
    UpgradeLab,
    WakeLab,
)
from lab.requests.snapshots import DeleteSnapshot, PruneSnapshots, TakeSnapshot
from lab.state.records import LabRecord
from lab.state.service import JobKind, JobRecord
from lab.state.store import Store
from lab.undo import Undo
from lab.values import dataclass
from lab.views.datasets import DatasetView
from lab.views.labs import LabView
from lab.views.upgrades import UpgradeView
from lab.wait import Deadline, until

_PATIENCE = 5.0
"""Seconds that other jobs and commands have to release a lab that is to be removed."""
_COPYING = 60.0
"""Seconds that they have after the lab's guests were killed: one may be copying a disk."""
_REMAINS = "left by an interrupted job"


R_co = TypeVar("R_co", bound=Request, covariant=True)
R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class Task(Generic[R_co]):
    """A job to run. ``again``: an earlier attempt was interrupted at any point."""

    job: JobRecord
    request: R_co
    again: bool


@dataclass(frozen=True)
class Work(Generic[R]):
    """A kind of job: the type of its requests, and the function that runs it.

    The function returns the name of the lab, or the job's other subject (``ABOUT_OTHERS``). It is
    called again after it was interrupted at any point.
    """

    request: type[R]
    run: Callable[[Context, Task[R]], str]


def create(ctx: Context, task: Task[CreateLab]) -> str:
    """Create a lab, and return its name."""
    made = lab_made_by(ctx.store, task.job.id) if task.again else None
    if made is not None:
        ctx.progress.note(
            "undo", f"removing the incomplete lab {made.name}: the service was interrupted"
        )
        _clear(ctx, made.name)
    request = task.request
    try:
        view: LabView = perform(ctx, request)
        return view.name
    except LabError as error:
        if request.keep_failed and (kept := lab_made_by(ctx.store, task.job.id)) is not None:
            _keep(ctx, kept.name, error)
        raise


def _keep(ctx: Context, name: str, error: LabError) -> None:
    """Add to ``error`` that the lab is kept; remove it if the job was cancelled."""
    if isinstance(error, Interrupted):
        down(ctx, name, force=True)
    else:
        error.details += (f"lab {name} is kept for inspection until its lease ends",)


def delete(ctx: Context, task: Task[DeleteLab]) -> str:
    """Remove a lab, unless its name belongs to a newer lab."""
    name = task.job.lab
    record = ctx.store.labs.find(name)
    if record is not None and not stored.concerns(task.job, record):
        return name
    force, defer = task.request.force, task.request.defer
    if (
        record is not None
        and record.state != "creating"
        and (force or not record.protected)
        and (defer or not _has_branches(ctx, name))
    ):
        _end_others(ctx, record, lambda: True)
    try:
        down(ctx, name, force=force, defer=defer)
    except NotFound:
        if record is None and not task.again:
            raise
    return name


def _has_branches(ctx: Context, name: str) -> bool:
    """Whether a lab has branches, besides those that a job makes, which is cancelled with it."""
    making = {job.id for job in ctx.store.jobs.open() if job.lab == name}
    found = [ctx.store.labs.find(one) for one in branches(ctx, name)]
    return any(lab is not None and lab.job not in making for lab in found)


def expire(ctx: Context, task: Task[ExpireLab]) -> str:
    """Remove a lab if its lease is still expired; raises Conflict if it cannot be removed now."""
    name = task.job.lab
    record = ctx.store.labs.find(name)
    if record is not None and _is_over(record):
        _end_others(ctx, record, lambda: _is_over(ctx.store.labs.find(name)))
    report = gc.perform(ctx, [(Owner("lab", task.job.lab), "expired")])
    if report.left:
        raise Conflict(report.left[0])
    return task.job.lab


def _is_over(lab: LabRecord | None) -> bool:
    """Whether the lease has expired; while a lab is being created it has not begun."""
    if lab is None or lab.expires_at is None or lab.state == "creating":
        return False
    return lab.expires_at <= time.time()


def _end_others(ctx: Context, lab: LabRecord, wanted: Callable[[], bool]) -> None:
    """End other jobs and commands that use a lab which is to be removed.

    Jobs are cancelled. Whatever still holds the lab's lock then, such as a command, fails when the
    guests are killed. They are killed only if ``wanted`` still returns true: the lease may have
    been extended meanwhile.
    """
    for other in ctx.store.jobs.open():
        if other.lab == lab.name and _is_about(other, lab):
            ctx.store.jobs.update(other.id, cancel=True)
    if not _until_free(ctx, lab.name, _PATIENCE) and wanted():
        owner = str(Owner("lab", lab.name))
        guests = ctx.hypervisor.guests().values()
        ours = [guest.name for guest in guests if guest.tags.get("owner") == owner]
        each(lambda guest: ctx.hypervisor.stop(guest, force=True), ours)
        _until_free(ctx, lab.name, _COPYING)


def _is_about(job: JobRecord, lab: LabRecord) -> bool:
    """Whether a job is about this lab, not another of its name, and does not remove it."""
    if job.kind in ("create", "fill"):
        return job.id == lab.job
    return job.kind not in ENDS and stored.concerns(job, lab)


def _until_free(ctx: Context, name: str, seconds: float) -> bool:
    """Wait until no process holds the lab's lock; False after ``seconds``."""
    free = until(lambda: not held(ctx.home, "lab", name), Deadline.after(seconds))
    return free is not None


def _same(ctx: Context, task: Task[LabRequest]) -> None:
    """Raise NotFound if the lab's name belongs to a newer lab."""
    lab = ctx.store.labs.get(task.job.lab)
    if not stored.concerns(task.job, lab):
        raise NotFound(
            f"the lab {lab.name} was removed and created again after this request",
            hint="repeat the request if the new lab is meant",
        )


def start(ctx: Context, task: Task[Power]) -> str:
    """Start a lab or a node, and wait until it is ready."""
    _same(ctx, task)
    perform(ctx, StartLab(lab=task.job.lab, node=task.request.node))
    return task.job.lab


def stop(ctx: Context, task: Task[Power]) -> str:
    """Stop a lab or a node; ``force``: power off without a shutdown."""
    _same(ctx, task)
    name, node, force = task.job.lab, task.request.node, task.request.force
    with ctx.progress.step("stop", f"stopping {name}{f', {node}' if node else ''}"):
        perform(ctx, StopLab(lab=name, node=node, force=force))
    return name


def restart(ctx: Context, task: Task[Power]) -> str:
    """Stop a lab or a node, then start it."""
    stop(ctx, task)
    return start(ctx, task)


def sleep(ctx: Context, task: Task[Power]) -> str:
    """Pause all nodes of a lab whose clients can be seen; raises HostUnfit for others."""
    _same(ctx, task)
    if not reachable(ctx.store.nodes.of(task.job.lab)):
        raise HostUnfit(
            f"the ports of the lab {task.job.lab} are not of the service's network: nothing would"
            " wake it when a client connects"
        )
    perform(ctx, SleepLab(lab=task.job.lab))
    return task.job.lab


def wake(ctx: Context, task: Task[Power]) -> str:
    """Resume all nodes of a lab that is asleep."""
    _same(ctx, task)
    perform(ctx, WakeLab(lab=task.job.lab))
    return task.job.lab


def build_image(ctx: Context, task: Task[BuildImage]) -> str:
    """Build an image, and return it as the job's subject."""
    request, recipe = task.request, task.request.recipe
    if task.again and request.rebuild:
        # An interrupted attempt may have built it already.
        since = task.job.started_at or task.job.created_at
        done = [r for r in ctx.store.images.all() if r.recipe == recipe and r.created_at >= since]
        request = replace(request, rebuild=not any(record.state == "ready" for record in done))
    return str(Owner("image", perform(ctx, request).key))


def delete_image(ctx: Context, task: Task[DeleteImage]) -> str:
    """Remove an image, and return it as the job's subject."""
    return _removed(ctx, task)


def build_template(ctx: Context, task: Task[BuildTemplate]) -> str:
    """Build a template, and return it as the job's subject."""
    return str(Owner("template", perform(ctx, task.request).key))


def delete_template(ctx: Context, task: Task[DeleteTemplate]) -> str:
    """Remove a template, and return it as the job's subject."""
    return _removed(ctx, task)


def _removed(ctx: Context, task: Task[Request]) -> str:
    try:
        perform(ctx, task.request)
    except NotFound:
        if not task.again:
            raise
    return task.job.about


def take_snapshot(ctx: Context, task: Task[TakeSnapshot]) -> str:
    """Take a snapshot of a lab, or those that its schedule requires; returns their labels."""
    _same(ctx, task)
    name, what = task.job.lab, task.request.name
    _resume(ctx, task)
    if task.request.scheduled:
        return _labels(snapshot.rotate(ctx, name))
    if label := _taken_before(ctx, task, what):
        return f"snapshot:{label}"
    return f"snapshot:{snapshot.take(ctx, task.request, labelled=partial(_note, ctx, task)).label}"


def _note(ctx: Context, task: Task[LabRequest], label: str) -> None:
    """Record which snapshot a job is about to take: quotas count the two as one."""
    ctx.store.jobs.update(task.job.id, about=f"snapshot:{label}")


def _resume(ctx: Context, task: Task[LabRequest]) -> None:
    """Resume the nodes of a lab that an interrupted attempt left paused."""
    if task.again:
        with lock(ctx.home, "lab", task.job.lab, wait=False):
            resume_paused(ctx, inspect.nodes_of(ctx, task.job.lab))


def _taken_before(ctx: Context, task: Task[LabRequest], what: str) -> str:
    """The label of the snapshot ``what`` that an interrupted attempt took; empty if there is none.

    The times in labels are whole seconds.
    """
    since = int(task.job.started_at or task.job.created_at)
    for found in snapshot.snapshots(ctx, task.job.lab) if task.again else ():
        if found.name == what and (found.at or 0.0) >= since:
            snapshot.persist(ctx, task.job.lab, found.label)
            return found.label
    return ""


def delete_snapshot(ctx: Context, task: Task[DeleteSnapshot]) -> str:
    """Remove a snapshot, and return it as the job's subject."""
    _same(ctx, task)
    return _removed(ctx, task)


def prune_snapshots(ctx: Context, task: Task[PruneSnapshots]) -> str:
    """Remove the snapshots that a lab's schedule does not keep; returns their labels."""
    _same(ctx, task)
    return _labels(perform(ctx, task.request))


def _labels(done: Sequence[str]) -> str:
    """The subject of a job: the labels in the lines of ``rotate``."""
    return f"snapshots:{','.join(line.partition('@')[2] for line in done)}"


def roll_back(ctx: Context, task: Task[RollBack]) -> str:
    """Roll back a lab or a node to a snapshot, and wait until it is ready."""
    _same(ctx, task)
    perform(ctx, task.request)
    return task.job.lab


def reset(ctx: Context, task: Task[ResetLab]) -> str:
    """Put a lab back to a snapshot by its standby; the next one is another job."""
    _same(ctx, task)
    perform(ctx, task.request)
    return task.job.lab


def standby(ctx: Context, task: Task[MakeStandby] | Task[DropStandby]) -> str:
    """Make or remove the standby of a lab."""
    _same(ctx, task)
    perform(ctx, task.request)
    return task.job.lab


def promote_node(ctx: Context, task: Task[Promote]) -> str:
    """Have another node of a lab take writes, and wait until it is ready."""
    _same(ctx, task)
    perform(ctx, task.request)
    return task.job.lab


def upgrade(ctx: Context, task: Task[UpgradeLab]) -> str:
    """Upgrade the servers of a lab; the report is kept, also that of a step that failed.

    An interrupted attempt without one is completed backwards, as far as its last node, and not
    continued: its report is lost.
    """
    _same(ctx, task)
    if task.again:
        with suppress(NotFound):
            return _upgraded(task, msgspec.convert(ctx.store.jobs.report(task.job.id), UpgradeView))
        perform(ctx, StartLab(lab=task.job.lab))
        raise NotReady(
            f"the upgrade of {task.job.lab} was interrupted: the service was restarted",
            hint="nodes that were upgraded before stay so; the same request upgrades the others",
        )
    try:
        view: UpgradeView = perform(ctx, task.request)
    except Interrupted:
        with suppress(NotFound):  # its lease has ended
            perform(ctx, StartLab(lab=task.job.lab))
        raise
    ctx.store.jobs.add_report(task.job.id, msgspec.to_builtins(view))
    return _upgraded(task, view)


def _upgraded(task: Task[UpgradeLab], view: UpgradeView) -> str:
    if view.failure is not None:
        raise view.failure
    return task.job.lab


def branch(ctx: Context, task: Task[BranchLab]) -> str:
    """Create branches of a lab, all of them or none; returns their names.

    With none, no snapshot that was taken for them stays. Those that an interrupted attempt
    completed are kept, incomplete ones are removed first.
    """
    _same(ctx, task)
    request, found = task.request, labs_made_by(ctx.store, task.job.id)
    whole = {lab.name for lab in found if lab.state not in ("creating", "removing")}
    with Undo() as last, Undo() as undo:
        for lab in found:
            if lab.name in whole:
                undo.push(f"lab {lab.name}", partial(down, ctx, lab.name, force=True))
            else:
                ctx.progress.note(
                    "undo", f"removing the incomplete lab {lab.name}: the service was interrupted"
                )
                _clear(ctx, lab.name)
        _resume(ctx, task)
        names, at = [name for name in request.names if name not in whole], request.at
        if not request.name:
            names = names[len(whole) :]
        if names and not at:
            at = _captured(ctx, task, found)
            last.push(f"snapshot {at}", partial(snapshot.remove_unused, ctx, task.job.lab, at))
        for name in names:
            with ctx.progress.step("branch", f"branch {len(whole) + 1} of {request.count}"):
                one = replace(request, name=name, at=at, count=1)
                (made,) = perform(ctx, one)
            whole.add(made.name)
            undo.push(f"lab {made.name}", partial(down, ctx, made.name, force=True))
        undo.keep()
        last.keep()
    return f"labs:{','.join(sorted(whole))}"


def _captured(ctx: Context, task: Task[BranchLab], made: Sequence[LabRecord]) -> str:
    """The label of the snapshot that all branches of a job are cloned from; taken if need be."""
    parents = [CaptureRef.parse(lab.parent).label for lab in made if lab.parent]
    label = next(iter(parents), "") or _taken_before(ctx, task, "branch")
    if label:
        return label
    note = partial(_note, ctx, task)
    asked = TakeSnapshot(lab=task.job.lab, name="branch", ttl=snapshot.KEPT)
    return snapshot.take(ctx, asked, labelled=note).label


def create_dataset(ctx: Context, task: Task[CreateDataset]) -> str:
    """Load a dataset, and return its version as the job's subject; its upload goes."""
    request = task.request
    upload = ctx.home.uploads / request.upload if request.upload else None
    done = datasets.made_by(ctx, task.job.id) if task.again else None
    try:
        _check_same_lab(ctx, request)
        made = done or perform(ctx, request)
    finally:
        if upload is not None:
            shutil.rmtree(upload.parent, ignore_errors=True)
    return _version(made)


def _check_same_lab(ctx: Context, request: CreateDataset) -> None:
    """Raise NotFound if the lab of the source was replaced by another of its name."""
    if request.lab_created_at is None:
        return
    source = parse_source(request.source)
    if isinstance(source, LabCapture):
        record = ctx.store.labs.get(source.lab)
        if record.created_at != request.lab_created_at:
            raise NotFound(
                f"the lab {source.lab} was removed and created again after this request",
                hint="repeat the request if the new lab is meant",
            )


def refresh_dataset(ctx: Context, task: Task[RefreshDataset]) -> str:
    """Make the next version of a dataset, and return it as the job's subject."""
    done = datasets.made_by(ctx, task.job.id) if task.again else None
    return _version(done or perform(ctx, task.request))


def _version(made: DatasetView) -> str:
    return f"dataset:{made.at}"


def delete_dataset(ctx: Context, task: Task[DeleteDataset]) -> str:
    """Remove the versions of a dataset that were there when it was requested, or one of them."""
    name, version = parse_dataset(task.job.about.partition(":")[2])
    there = [
        record
        for record in image.versions_of(ctx, name)
        if version in (0, record.version)
        and record.state == "ready"
        and record.created_at <= task.job.created_at
    ]
    if not there and not task.again:
        raise NotFound(f"there is no dataset {task.job.about.partition(':')[2]}")
    kept: list[Conflict] = []
    for record in there:
        try:
            which = f"{name}@{record.version}"
            perform(ctx, DeleteDataset(which=which, defer=task.request.defer))
        except Conflict as error:
            kept.append(error)
    if kept:
        raise kept[0]
    return task.job.about


ENDS: tuple[JobKind, ...] = ("delete", "expire")
"""The kinds that remove the lab."""

WORK: Mapping[JobKind, Work[Any]] = {
    "create": Work(CreateLab, create),
    "delete": Work(DeleteLab, delete),
    "expire": Work(ExpireLab, expire),
    "fill": Work(FillPool, create),
    "start": Work(StartLab, start),
    "stop": Work(StopLab, stop),
    "restart": Work(RestartLab, restart),
    "sleep": Work(SleepLab, sleep),
    "wake": Work(WakeLab, wake),
    "build-image": Work(BuildImage, build_image),
    "delete-image": Work(DeleteImage, delete_image),
    "build-template": Work(BuildTemplate, build_template),
    "delete-template": Work(DeleteTemplate, delete_template),
    "snapshot": Work(TakeSnapshot, take_snapshot),
    "delete-snapshot": Work(DeleteSnapshot, delete_snapshot),
    "prune-snapshots": Work(PruneSnapshots, prune_snapshots),
    "rollback": Work(RollBack, roll_back),
    "reset": Work(ResetLab, reset),
    "standby": Work(MakeStandby, standby),
    "drop-standby": Work(DropStandby, standby),
    "promote": Work(Promote, promote_node),
    "upgrade": Work(UpgradeLab, upgrade),
    "branch": Work(BranchLab, branch),
    "create-dataset": Work(CreateDataset, create_dataset),
    "refresh-dataset": Work(RefreshDataset, refresh_dataset),
    "delete-dataset": Work(DeleteDataset, delete_dataset),
}
"""How each kind of job runs."""

KINDS: Mapping[type[Request], JobKind] = {work.request: kind for kind, work in WORK.items()}
"""The kind of the job that each request makes."""

ABOUT_OTHERS: tuple[JobKind, ...] = (
    "snapshot",
    "delete-snapshot",
    "prune-snapshots",
    "branch",
    "build-image",
    "delete-image",
    "build-template",
    "delete-template",
    "create-dataset",
    "refresh-dataset",
    "delete-dataset",
)
"""The kinds that have a subject other than a lab, or besides it."""


def lab_made_by(store: Store, job: str) -> LabRecord | None:
    """The lab that a job created or is creating."""
    return next(iter(labs_made_by(store, job)), None)


def labs_made_by(store: Store, job: str) -> list[LabRecord]:
    """The labs that a job created or is creating."""
    return [lab for lab in store.labs.all() if lab.job == job]


def _clear(ctx: Context, name: str) -> None:
    report = gc.perform(ctx, [(Owner("lab", name), _REMAINS)])
    if report.left:
        raise Conflict(report.left[0])
