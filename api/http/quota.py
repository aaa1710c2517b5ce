"""What a token's project may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from lab import schedule
from lab.api.jobs.work import spec_of
from lab.errors import LimitReached
from lab.imagebuild.recipe import load, recipes
from lab.lifecycle import snapshot
from lab.schedule import PERIODS, Schedule
from lab.spec import LabSpec, format_size
from lab.state.records import JobRecord, LabRecord

if TYPE_CHECKING:
    from lab.api.http.auth import Caller
    from lab.api.service import Service

Snapshots = Mapping[str, int]
"""How many snapshots labs have, by name, beside those that their schedules keep."""


def max_snapshots(service: Service, caller: Caller) -> int | None:
    """How many snapshots the caller's project may have; None: no limit."""
    most = caller.token.max_snapshots
    if most is None and caller.token.scope != "admin":
        return service.settings.serve.project_snapshots or None
    return most


def max_templates(service: Service, job: JobRecord) -> int | None:
    """How many templates may be made for the project that a job is done for; None: no limit."""
    token = service.store.tokens.find(job.token)
    if token is None or token.scope == "admin":
        return token.max_templates if token else None
    most = token.max_templates
    return service.settings.serve.project_templates or None if most is None else most


def snapshots_of(service: Service, project: str) -> Snapshots:
    """Those of the labs of a project, as the storage has them; it is asked once."""
    with service.contexts.use() as ctx:
        there = snapshot.everywhere(ctx)
        return {
            lab.name: sum(
                one.at is not None and one.name not in PERIODS for one in there.get(lab.name, ())
            )
            for lab in ctx.store.labs.all()
            if lab.project == project
        }


def check_quota(service: Service, caller: Caller, spec: LabSpec, taken: Snapshots) -> None:
    """Raise LimitReached if the caller's project had more than it may with ``spec``.

    Labs that are being made count, and snapshots that are being taken. ``taken``: see
    ``snapshots_of``. To be sure, record the job in the same transaction.
    """
    token = caller.token
    limits = (token.max_labs, token.max_nodes, token.max_memory, token.max_cpus, token.max_disk)
    if limits == (None,) * len(limits) and not spec.snapshots.keep:
        return
    all_ = [*_all(service, token.project, taken).values(), _wanted(spec)]
    _check(token.project, "labs", token.max_labs, len(all_))
    _check(token.project, "nodes", token.max_nodes, sum(one.nodes for one in all_))
    _check(token.project, "memory", token.max_memory, sum(one.nodes * one.memory for one in all_))
    _check(token.project, "processors", token.max_cpus, sum(one.nodes * one.cpus for one in all_))
    _check(token.project, "disk", token.max_disk, sum(one.all_disks for one in all_))
    if spec.snapshots.keep:
        most = max_snapshots(service, caller)
        _check(token.project, "snapshots", most, sum(one.snapshots for one in all_))


def check_snapshot(service: Service, caller: Caller, lab: LabRecord, taken: Snapshots) -> None:
    """Raise LimitReached if the project of ``lab`` had more than the caller may have it have.

    With one more snapshot of ``lab``; see ``check_quota``.
    """
    found = _all(service, lab.project, taken)
    if lab.name in found:
        found[lab.name] = replace(found[lab.name], snapshots=found[lab.name].snapshots + 1)
    all_, this = found.values(), "this snapshot"
    most = max_snapshots(service, caller)
    _check(lab.project, "snapshots", most, sum(one.snapshots for one in all_), with_=this)
    disk = sum(one.all_disks for one in all_)
    _check(lab.project, "disk", caller.token.max_disk, disk, with_=this)


def _check(
    project: str, word: str, limit: int | None, wanted: int, *, with_: str = "this lab"
) -> None:
    if limit is not None and wanted > limit:
        may, had = (
            format_size(n) if word in ("memory", "disk") else str(n) for n in (limit, wanted)
        )
        raise LimitReached(
            f"the project {project} may have {may} of {word}, with {with_} it had {had}",
            hint="remove labs or snapshots, or ask for less",
        )


@dataclass(frozen=True)
class _Taken:
    """What a lab takes. ``memory``, ``cpus``, ``disk``: of a node, sizes in bytes."""

    nodes: int
    memory: int
    cpus: int
    disk: int
    snapshots: int

    @property
    def all_disks(self) -> int:
        """Bytes of the disks of all nodes, once more for each snapshot."""
        return self.nodes * (self.disk or _image_disk()) * (1 + self.snapshots)


def _wanted(spec: LabSpec) -> _Taken:
    size = spec.size
    return _Taken(spec.nodes, size.memory, size.cpus, size.disk, _kept(spec.snapshots))


def _all(service: Service, project: str, taken: Snapshots) -> dict[str, _Taken]:
    """What the labs of a project take by name, and those that jobs are about to make by job."""
    store, found, made = service.store, {}, set()
    jobs = store.jobs.open(project)
    # Those that a schedule asks for are among those that it keeps.
    coming = Counter(one.lab for one in jobs if one.kind == "snapshot" and one.token)
    for lab in store.labs.all():
        if lab.project == project:
            count = _kept(schedule.parse(lab.snapshots)) + taken.get(lab.name, 0) + coming[lab.name]
            found[lab.name] = _Taken(lab.node_count, lab.memory, lab.cpus, lab.disk, count)
            made.add(lab.job)
    for job in jobs:
        if job.kind == "create" and job.id not in made:
            found[job.id] = _wanted(spec_of(job.request))
    return found


def _kept(snapshots: Schedule) -> int:
    return sum(count for _, count in snapshots.keep)


@cache
def _image_disk() -> int:
    """Bytes of the disk that a node has which asked for none: that of our images."""
    return max(load(name).disk for name in recipes())
