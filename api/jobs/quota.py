"""Quotas: the limits of a token's project."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from lab import schedule
from lab.api.core.core import Core
from lab.api.jobs.requests import BranchLab, CreateDataset, CreateLab, read_facts
from lab.blueprints import NodePlan, foreseen
from lab.errors import LabError, LimitReached
from lab.imagebuild.recipe import load, recipes
from lab.lifecycle import dataset, snapshot
from lab.names import CaptureRef
from lab.schedule import PERIODS, Schedule
from lab.spec import LabSpec
from lab.state.records import JobRecord, LabRecord, TokenRecord
from lab.storage import sparse
from lab.units import format_size


@dataclass(frozen=True)
class Kept:
    """The snapshots of a lab: ``labels`` without its schedule's; ``ram``: of all, in bytes."""

    labels: frozenset[str] = frozenset()
    ram: int = 0


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of ``labs``, by name, as they were ``at`` (epoch seconds) or later."""

    labs: Mapping[str, Kept]
    at: float


UNLIMITED = Snapshots({}, math.inf)
"""Where no quota counts snapshots."""


def max_snapshots(core: Core, token: TokenRecord) -> int | None:
    """How many snapshots the token's project may have; None: no limit."""
    most = token.max_snapshots
    if most is None and token.scope != "admin":
        return core.settings.serve.project_snapshots or None
    return most


def max_templates(core: Core, job: JobRecord) -> int | None:
    """How many templates may be created for the project of a job; None: no limit."""
    token = core.store.tokens.find(job.token)
    if token is None or token.scope == "admin":
        return token.max_templates if token else None
    most = token.max_templates
    return core.settings.serve.project_templates or None if most is None else most


def max_data(core: Core, job: JobRecord) -> int | None:
    """The bytes of SQL that a job may load into a dataset; None: no limit."""
    token = core.store.tokens.find(job.token)
    if token is None or token.scope == "admin":
        return None
    most = core.settings.serve.dataset_size or math.inf
    if token.max_disk is not None:
        most = min(most, _disk_left(core, token, but=job.id))
    return None if most == math.inf else int(most)


def data_of(core: Core, project: str, *, but: str = "") -> int:
    """Bytes on disk of a project's datasets, and of those being made, as far as foreseen.

    ``but``: the id of a job whose dataset does not count.
    """
    records = [r for r in core.store.images.all() if r.dataset and r.project == project]
    sizes = {r.dataset: r.size for r in records}  # of the latest
    total = sum(record.size for record in records)
    for job in core.store.jobs.open(project):
        if job.kind == "create-dataset" and job.id != but:
            with suppress(LabError):  # its lab is gone: it will fail
                total += _foreseen(core, read_facts(job, CreateDataset))
        elif job.kind == "refresh-dataset" and job.id != but:
            total += sizes.get(job.about.partition(":")[2], 0)
    return total


def _foreseen(core: Core, request: CreateDataset) -> int:
    upload = core.settings.home.uploads / request.upload if request.upload else None
    if upload is not None and not upload.is_file():
        return 0
    return dataset.foreseen(core.store, request.source, upload)


def check_dataset(core: Core, token: TokenRecord, project: str, size: int) -> None:
    """Raise LimitReached if ``size`` bytes of a new version would exceed a quota of a project.

    Record the job in the same transaction.
    """
    if token.max_disk is None:
        return
    labs = _all(core, project, snapshots_of(core, project)).values()
    disk = sum(one.all_disks for one in labs) + data_of(core, project) + size
    _check(project, "disk", token.max_disk, disk, added="this dataset")


def _disk_left(core: Core, token: TokenRecord, *, but: str) -> int:
    labs = _all(core, token.project, snapshots_of(core, token.project)).values()
    used = sum(one.all_disks for one in labs) + data_of(core, token.project, but=but)
    return max(0, (token.max_disk or 0) - used)


def snapshots_of(core: Core, project: str) -> Snapshots:
    """The snapshots of the labs of a project; lists the storage's snapshots once."""
    at = time.time()
    with core.contexts.use() as ctx:
        taken = snapshot.everywhere(ctx)
        labs = {
            lab.name: Kept(
                frozenset(
                    one.label
                    for one in taken.get(lab.name, ())
                    if one.at is not None and one.name not in PERIODS
                ),
                sparse.taken(ctx.home.captured(lab.name)),
            )
            for lab in ctx.store.labs.all()
            if lab.project == project
        }
    return Snapshots(labs, at)


def check_quota(core: Core, token: TokenRecord, spec: LabSpec, taken: Snapshots) -> None:
    """Raise LimitReached if the token's project would exceed a quota with ``spec``.

    Labs that are being created count, and snapshots that are being taken. ``taken``: see
    ``snapshots_of``. Record the job in the same transaction, so that no other passes meanwhile.
    """
    limits = (token.max_labs, token.max_nodes, token.max_memory, token.max_cpus, token.max_disk)
    if limits == (None,) * len(limits) and not spec.snapshots.keep:
        return
    labs = [*_all(core, token.project, taken).values(), _wanted(spec)]
    _check_labs(core, token.project, token, labs, added="this lab")
    if spec.snapshots.keep:
        most = max_snapshots(core, token)
        _check(token.project, "snapshots", most, sum(one.snapshots for one in labs))


def check_branches(
    core: Core, token: TokenRecord, lab: LabRecord, count: int, taken: Snapshots, *, snapshot: bool
) -> None:
    """Raise LimitReached if ``count`` branches of ``lab`` would exceed a quota of its project.

    ``snapshot``: a snapshot is taken for them. See ``check_quota``.
    """
    found = _all(core, lab.project, taken)
    if snapshot and lab.name in found:
        parent = found[lab.name]
        found[lab.name] = replace(parent, snapshots=parent.snapshots + 1)
    branch = _Taken(core.store.lab_with_nodes(lab.name).plans)
    labs, these = (
        [*found.values(), *[branch] * count],
        "this branch" if count == 1 else f"{count} branches",
    )
    _check_labs(core, lab.project, token, labs, added=these)
    if snapshot:
        most = max_snapshots(core, token)
        _check(lab.project, "snapshots", most, sum(one.snapshots for one in labs), added=these)


def _check_labs(
    core: Core, project: str, token: TokenRecord, labs: Sequence[_Taken], *, added: str
) -> None:
    """Raise LimitReached if ``labs`` exceed a quota; ``added`` names the new ones."""
    _check(project, "labs", token.max_labs, len(labs), added=added)
    nodes = [node.size for one in labs for node in one.plans]
    _check(project, "nodes", token.max_nodes, len(nodes), added=added)
    _check(project, "memory", token.max_memory, sum(n.memory for n in nodes), added=added)
    _check(project, "processors", token.max_cpus, sum(n.cpus for n in nodes), added=added)
    if token.max_disk is not None:
        disk = sum(one.all_disks for one in labs) + data_of(core, project)
        _check(project, "disk", token.max_disk, disk, added=added)


def check_snapshot(core: Core, token: TokenRecord, lab: LabRecord, taken: Snapshots) -> None:
    """Raise LimitReached if one more snapshot of ``lab`` would exceed a quota.

    See ``check_quota``.
    """
    found = _all(core, lab.project, taken)
    if lab.name in found:
        found[lab.name] = replace(found[lab.name], snapshots=found[lab.name].snapshots + 1)
    labs, this = found.values(), "this snapshot"
    most = max_snapshots(core, token)
    _check(lab.project, "snapshots", most, sum(one.snapshots for one in labs), added=this)
    if token.max_disk is None:
        return
    disk = sum(one.all_disks for one in labs) + data_of(core, lab.project)
    _check(lab.project, "disk", token.max_disk, disk, added=this)


def _check(
    project: str, word: str, limit: int | None, wanted: int, *, added: str = "this lab"
) -> None:
    if limit is not None and wanted > limit:
        sizes = word in ("memory", "disk")
        most = f"{format_size(limit)} of {word}" if sizes else f"{limit} {word}"
        total = format_size(wanted) if sizes else str(wanted)
        raise LimitReached(
            f"the project {project} is limited to {most}, and would have {total} with {added}",
            hint="remove labs, snapshots or datasets, or request less",
        )


@dataclass(frozen=True)
class _Taken:
    """The usage of a lab: its nodes, the number of its snapshots, and their RAM in bytes."""

    plans: Sequence[NodePlan]
    snapshots: int = 0
    ram: int = 0

    @property
    def all_disks(self) -> int:
        """Bytes of all nodes' disks, counted again for each snapshot, plus the snapshots' RAM."""
        disks = sum(node.size.disk or _image_disk() for node in self.plans)
        return disks * (1 + self.snapshots) + self.ram


def _wanted(spec: LabSpec) -> _Taken:
    return _Taken(foreseen(spec), _kept(spec.snapshots))


def _all(core: Core, project: str, taken: Snapshots) -> dict[str, _Taken]:
    """The usage of a project: of its labs by name, of labs not yet created by the job's id."""
    store, found = core.store, dict[str, _Taken]()
    made = Counter[str]()
    jobs = store.jobs.open(project)
    branching = [(job, read_facts(job, BranchLab)) for job in jobs if job.kind == "branch"]
    there = store.labs_with_nodes()
    parents = {
        one.lab.job: CaptureRef.parse(one.lab.parent).label for one in there if one.lab.parent
    }
    coming = Counter[str]()
    takers = {job.id: job for job in (*jobs, *store.jobs.succeeded_since(taken.at, project))}
    for job in takers.values():
        # Its snapshot may be listed before it ends, or not be listed although it has ended.
        labels = {job.about.partition(":")[2], parents.get(job.id, "")}
        if _takes_snapshot(job) and not labels & taken.labs.get(job.lab, Kept()).labels:
            coming[job.lab] += 1
    for recorded in there:
        lab = recorded.lab
        if lab.project == project:
            kept = taken.labs.get(lab.name, Kept())
            count = _kept(schedule.parse(lab.snapshots)) + len(kept.labels) + coming[lab.name]
            found[lab.name] = _Taken(recorded.plans, count, kept.ram)
            made[lab.job] += 1
    for job in jobs:
        if job.kind == "create" and not made[job.id]:
            found[job.id] = _wanted(read_facts(job, CreateLab).spec)
    for job, asked in branching:
        if job.lab in found:
            branch = _Taken(found[job.lab].plans)
            for number in range(made[job.id], asked.count):
                found[f"{job.id} {number}"] = branch
    return found


def _takes_snapshot(job: JobRecord) -> bool:
    """Whether a job takes a snapshot that counts: a schedule's (no token) is in its number."""
    if job.kind == "branch":
        return not read_facts(job, BranchLab).at
    return job.kind == "snapshot" and bool(job.token)


def _kept(snapshots: Schedule) -> int:
    return sum(count for _, count in snapshots.keep)


@cache
def _image_disk() -> int:
    """Bytes of a node's disk if no size was requested: the largest of all recipes."""
    return max(load(name).disk for name in recipes())
