"""Quotas: the limits of a token's project."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from lab.api.core.core import Core
from lab.api.jobs.stored import guests_of, read_facts
from lab.blueprints import foreseen, has_server
from lab.datasets.source import parse
from lab.errors import LabError, LimitReached
from lab.lifecycle.datasets import dataset
from lab.lifecycle.nodes.standby import COST
from lab.lifecycle.service import usage
from lab.lifecycle.service.usage import KeptSnapshots, Snapshots, Taken, datasets_of, kept_by
from lab.names import CaptureRef
from lab.requests.datasets import CreateDataset
from lab.requests.labs import BranchLab, CreateLab, UpgradeLab
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.state.records import LabRecord, LabWithNodes
from lab.state.service import JobRecord, TokenRecord
from lab.units import MIB, format_size
from lab.views.labs import Lab
from lab.views.tokens import Used

_LOOK_EVERY = 64 * MIB
"""Bytes after which what a project's labs and datasets take is asked again."""


_NONE: Mapping[str, tuple[str, LabSpec]] = {}
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


def limited(core: Core, job: JobRecord) -> bool:
    """Whether the limits of loads hold for a job: it is neither an administrator's nor for all.

    A project's data that the service itself refreshes are the project's: it chose their source.
    """
    token = core.store.tokens.find(job.token) if job.token else None
    return bool(job.project) if token is None else token.scope != "admin"


class Loading:
    """Counts what a job reads, which is limited by itself and together with its project's others.

    The SQL of a dataset has at most ``dataset_size``. All that open jobs of a project have read
    fits into what its labs and datasets leave of the token's quota of disk space.
    """

    def __init__(self, core: Core, job: JobRecord) -> None:
        self._core = core
        self._job = job
        self._token = core.store.tokens.find(job.token) if job.token else None
        self._most = core.settings.serve.dataset_size or math.inf
        self._looked = -math.inf
        self._left = math.inf

    def __call__(self, done: int) -> None:
        """So many bytes were read; raises LimitReached."""
        core = self._core
        core.loads[self._job.id] = done
        if done > self._most:
            raise _too_much(int(self._most))
        if self._token is None or self._token.max_disk is None:
            return
        if done - self._looked >= _LOOK_EVERY:
            self._looked = done
            self._left = max(0, self._token.max_disk - _disk_used(core, self._token.project))
        ours = [job.id for job in core.store.jobs.open(self._job.project)]
        if sum(core.loads.get(job, 0) for job in ours) > self._left:
            raise _too_much(int(self._left))

    def ended(self) -> None:
        """The job has ended: its data are an image, or gone."""
        self._core.loads.pop(self._job.id, None)


def _too_much(most: int) -> LimitReached:
    return LimitReached(
        f"the dataset has more than {format_size(most)} of SQL, which is the limit here",
        hint="load less, or remove datasets and labs of the project",
    )


def _disk_used(core: Core, project: str) -> int:
    """Bytes of a project's labs and datasets, without uploads and what is being loaded."""
    labs = _all(core, project, snapshots_of(core, project)).values()
    data = sum(record.size for record in datasets_of(core.store, project))
    return sum(one.all_disks for one in labs) + data


def data_of(core: Core, project: str) -> int:
    """Bytes on disk of a project's datasets and uploads, and of datasets that are being made."""
    return _loaded(core, project) + uploaded(core, project)


def _loaded(core: Core, project: str) -> int:
    """Bytes of a project's datasets, and of those that are being made.

    Of these: what is foreseen, or what has been read by now if that is more.
    """
    records = datasets_of(core.store, project)
    sizes = {r.dataset: r.size for r in records}  # of the latest
    total = sum(record.size for record in records)
    for job in core.store.jobs.open(project):
        size = 0
        if job.kind == "create-dataset" and not job.facts.get("upload"):
            with suppress(LabError):  # its lab is gone: it will fail
                size = dataset.foreseen(core.store, parse(read_facts(job, CreateDataset).source))
        elif job.kind == "refresh-dataset":
            size = sizes.get(job.about.partition(":")[2], 0)
        total += max(size, core.loads.get(job.id, 0))
    return total


def uploaded(core: Core, project: str) -> int:
    """Bytes of the dumps that tokens of a project have sent, whole or in part."""
    return usage.uploaded(core.settings.home, core.store, project)


def room_for_uploads(core: Core, token: TokenRecord) -> float:
    """Bytes that all uploads of a token's project may have by its quota; infinite without one."""
    if token.max_disk is None:
        return math.inf
    labs = _all(core, token.project, snapshots_of(core, token.project)).values()
    others = _loaded(core, token.project) + sum(one.all_disks for one in labs)
    return max(0, token.max_disk - others)


def check_dataset(core: Core, token: TokenRecord, project: str, size: int) -> None:
    """Raise LimitReached if ``size`` bytes of a new version would exceed a quota of a project.

    Record the job in the same transaction.
    """
    if token.max_disk is None:
        return
    labs = _all(core, project, snapshots_of(core, project)).values()
    disk = sum(one.all_disks for one in labs) + data_of(core, project) + size
    _check(project, "disk", token.max_disk, disk, added="this dataset")


def snapshots_of(core: Core, project: str | None) -> Snapshots:
    """The snapshots of the labs of a project, or of all; lists the storage's snapshots once."""
    with core.contexts.use() as ctx:
        return usage.snapshots_of(ctx, project)


def used(core: Core, project: str, taken: Snapshots) -> Used:
    """What a project has of all that its quotas limit; ``taken``: see ``snapshots_of``."""
    labs = _all(core, project, taken).values()
    guests = [size for job in core.store.jobs.open(project) for size in guests_of(job)]
    return usage.total(core.store, project, labs, guests, data=data_of(core, project))


def check_quota(
    core: Core,
    token: TokenRecord,
    spec: LabSpec,
    taken: Snapshots,
    coming: Mapping[str, tuple[str, LabSpec]] = _NONE,
) -> None:
    """Raise LimitReached if the token's project would exceed a quota with ``spec``.

    Labs that are being created count, and snapshots that are being taken. ``taken``: see
    ``snapshots_of``; ``coming``: the project's labs that a fleet is to create, by the ids of the
    jobs, each with its name.
    Record the job in the same transaction, so that no other passes meanwhile.
    """
    limits = (token.max_labs, token.max_nodes, token.max_memory, token.max_cpus, token.max_disk)
    if limits == (None,) * len(limits) and not spec.schedule.keep:
        return
    found = _all(core, token.project, taken)
    for job, (name, wanted) in coming.items():  # in place of what is known of it so far
        found.pop(name, None)
        found[job] = _wanted(wanted)
    labs = [*found.values(), _wanted(spec)]
    _check_labs(core, token.project, token, labs, added="this lab")
    if spec.schedule.keep:
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
    branch = Taken(core.store.lab_with_nodes(lab.name).plans)
    labs, these = (
        [*found.values(), *[branch] * count],
        "this branch" if count == 1 else f"{count} branches",
    )
    _check_labs(core, lab.project, token, labs, added=these)
    if snapshot:
        most = max_snapshots(core, token)
        _check(lab.project, "snapshots", most, sum(one.snapshots for one in labs), added=these)


def _check_labs(
    core: Core, project: str, token: TokenRecord, labs: Sequence[Taken], *, added: str
) -> None:
    """Raise LimitReached if ``labs`` exceed a quota; ``added`` names the new ones."""
    _check(project, "labs", token.max_labs, len(labs), added=added)
    _check_sizes(core, project, token, labs, (), added=added)
    if token.max_disk is not None:
        disk = sum(one.all_disks for one in labs) + data_of(core, project)
        _check(project, "disk", token.max_disk, disk, added=added)


def _check_sizes(
    core: Core,
    project: str,
    token: TokenRecord,
    labs: Iterable[Taken],
    guests: Sequence[NodeSize],
    *,
    added: str,
) -> None:
    """Raise LimitReached if all that runs for a project exceeds a quota.

    That is its ``labs``, what its open jobs run besides, and further ``guests``.
    """
    labs = list(labs)
    sizes = [node.size for one in labs for node in one.plans]
    sizes += [size for job in core.store.jobs.open(project) for size in guests_of(job)]
    sizes += guests
    _check(project, "nodes", token.max_nodes, len(sizes), added=added)
    memory = sum(size.memory for size in sizes) + sum(one.standby for one in labs)
    _check(project, "memory", token.max_memory, memory, added=added)
    cpus = sum(size.cpus for size in sizes) - sum(one.idle_cpus for one in labs)
    _check(project, "processors", token.max_cpus, cpus, added=added)


def check_guests(
    core: Core, token: TokenRecord, project: str, guests: Sequence[NodeSize], *, added: str
) -> None:
    """Raise LimitReached if the ``guests`` of a new job would exceed a quota of a project.

    Record the job in the same transaction. ``added``: what they are for.
    """
    if (token.max_nodes, token.max_memory, token.max_cpus) != (None, None, None):
        labs = _all(core, project, UNLIMITED).values()
        _check_sizes(core, project, token, labs, guests, added=added)


def check_standby(core: Core, token: TokenRecord, lab: LabRecord) -> None:
    """Raise LimitReached if a standby of ``lab`` would exceed its project's quota of memory."""
    if token.max_memory is not None:
        found = _all(core, lab.project, UNLIMITED)
        if lab.name in found:
            found[lab.name] = _with_standby(found[lab.name])
        _check_sizes(core, lab.project, token, found.values(), (), added="this standby")


def _with_standby(lab: Taken) -> Taken:
    return replace(lab, standby=COST * len(lab.plans))


def check_snapshots(
    core: Core, token: TokenRecord, lab: LabRecord, taken: Snapshots, count: int = 1
) -> None:
    """Raise LimitReached if ``count`` more snapshots of ``lab`` would exceed a quota.

    See ``check_quota``.
    """
    found = _all(core, lab.project, taken)
    if lab.name in found:
        found[lab.name] = replace(found[lab.name], snapshots=found[lab.name].snapshots + count)
    labs, this = found.values(), "this snapshot" if count == 1 else f"these {count} snapshots"
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


def _wanted(spec: LabSpec) -> Taken:
    return Taken(foreseen(spec), kept_by(spec.schedule))


def _all(core: Core, project: str, taken: Snapshots) -> dict[str, Taken]:
    """The usage of a project: of its labs by name, of labs not yet created by the job's id.

    A standby that is being made counts.
    """
    found = _labs_of(core, project, taken)
    for job in core.store.jobs.open(project):
        if job.kind == "standby" and job.lab in found:
            found[job.lab] = _with_standby(found[job.lab])
    return found


def _labs_of(core: Core, project: str, taken: Snapshots) -> dict[str, Taken]:
    store, found = core.store, dict[str, Taken]()
    made = Counter[str]()
    jobs = store.jobs.open(project)
    branching = [(job, read_facts(job, BranchLab)) for job in jobs if job.kind == "branch"]
    there = store.labs_with_nodes()
    parents = {
        one.lab.job: CaptureRef.parse(one.lab.parent).label for one in there if one.lab.parent
    }
    coming = _upgrading(jobs, there)
    takers = {job.id: job for job in (*jobs, *store.jobs.succeeded_since(taken.at, project))}
    for job in takers.values():
        # Its snapshot may be listed before it ends, or not be listed although it has ended.
        labels = {job.about.partition(":")[2], parents.get(job.id, "")}
        if _takes_snapshot(job) and not labels & taken.labs.get(job.lab, KeptSnapshots()).labels:
            coming[job.lab] += 1
    for recorded in there:
        lab = recorded.lab
        if lab.project == project:
            found[lab.name] = usage.of_lab(recorded, taken, coming[lab.name])
            made[lab.job] += 1
    for job in jobs:
        if job.kind == "create" and not made[job.id]:
            found[job.id] = _wanted(read_facts(job, CreateLab))
    for job, asked in branching:
        if job.lab in found:
            branch = Taken(found[job.lab].plans)
            for number in range(made[job.id], asked.count):
                found[f"{job.id} {number}"] = branch
    return _elsewhere(core, project) | found


def _elsewhere(core: Core, project: str) -> dict[str, Taken]:
    """The usage of a project's labs on other hosts of the fleet, without their snapshots."""
    if core.fleet is None:
        return {}
    found = {}
    for name, one in core.fleet.elsewhere().items():
        if one.project == project and not one.foreign:
            try:
                lab = msgspec.convert(one.view, Lab)
            except msgspec.ValidationError:  # of another version of this program
                lab = Lab(name, "", "", "unknown", (), blueprint="single")
            (plan, *_) = foreseen(LabSpec(lab.blueprint))
            size = NodeSize(lab.memory, lab.cpus, lab.disk or 0)
            plans = [replace(plan, size=size)] * max(1, len(lab.nodes))
            found[name] = Taken(plans, asleep=lab.state == "asleep")
    return found


def _upgrading(jobs: Sequence[JobRecord], there: Sequence[LabWithNodes]) -> Counter[str]:
    """The snapshots that open jobs take for upgrades, by lab; those that are there count twice."""
    labs = {one.lab.name: one for one in there}
    found = Counter[str]()
    for job in jobs:
        if job.kind == "upgrade" and job.lab in labs:
            found[job.lab] += upgraded_by(labs[job.lab], read_facts(job, UpgradeLab))
    return found


def upgraded_by(found: LabWithNodes, asked: UpgradeLab) -> int:
    """How many snapshots an upgrade of a lab takes, at most: one for each server."""
    return 1 if asked.node else sum(has_server(node.services) for node in found.nodes)


def _takes_snapshot(job: JobRecord) -> bool:
    """Whether a job takes a snapshot that counts: a schedule's (no token) is in its number."""
    if job.kind == "branch":
        return not read_facts(job, BranchLab).at
    return job.kind == "snapshot" and bool(job.token)
