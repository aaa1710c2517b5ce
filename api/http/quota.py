"""What a token's project may have."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Those of the labs of a project, as the storage has them; costs time."""
    with service.contexts.use() as ctx:
        return {
            lab.name: sum(
                one.at is not None and one.name not in PERIODS
                for one in snapshot.taken(ctx, lab.name)
            )
            for lab in ctx.store.labs.all()
            if lab.project == project
        }


def check_quota(service: Service, caller: Caller, spec: LabSpec, taken: Snapshots) -> None:
    """Raise LimitReached if the caller's project had more than it may with ``spec``.

    Labs that are being made count. ``taken``: see ``snapshots_of``. To be sure, record the job in
    the same transaction.
    """
    token = caller.token
    limits = (token.max_labs, token.max_nodes, token.max_memory, token.max_cpus, token.max_disk)
    if limits == (None,) * len(limits) and not spec.snapshots.keep:
        return
    recorded, coming = _labs(service, token.project)
    specs = [*coming, spec]
    sizes = [(lab.node_count, lab.memory, lab.cpus, lab.disk) for lab in recorded]
    sizes += [(one.nodes, one.size.memory, one.size.cpus, one.size.disk) for one in specs]
    counts = [_kept(schedule.parse(lab.snapshots)) + taken.get(lab.name, 0) for lab in recorded]
    counts += [_kept(one.snapshots) for one in specs]
    disk = sum(
        nodes * (disk or _image_disk()) * (1 + count)
        for (nodes, _, _, disk), count in zip(sizes, counts, strict=True)
    )
    _check(token.project, "labs", token.max_labs, len(sizes))
    _check(token.project, "nodes", token.max_nodes, sum(n for n, *_ in sizes))
    _check(token.project, "memory", token.max_memory, sum(n * m for n, m, *_ in sizes))
    _check(token.project, "processors", token.max_cpus, sum(n * c for n, _, c, _ in sizes))
    _check(token.project, "disk", token.max_disk, disk)
    if spec.snapshots.keep:
        _check(token.project, "snapshots", max_snapshots(service, caller), sum(counts))


def check_snapshot(service: Service, caller: Caller, lab: LabRecord, taken: Snapshots) -> None:
    """Raise LimitReached if the project of ``lab`` had more than the caller may have it have."""
    open_ = service.store.jobs.open(lab.project)
    more = 1 + sum(job.kind == "snapshot" for job in open_)
    recorded, coming = _labs(service, lab.project)
    counts = {one.name: _kept(schedule.parse(one.snapshots)) for one in recorded}
    wanted = sum(counts.values()) + sum(_kept(one.snapshots) for one in coming)
    wanted += sum(taken.values()) + more
    this = "this snapshot"
    _check(lab.project, "snapshots", max_snapshots(service, caller), wanted, with_=this)
    if caller.token.max_disk is not None:
        disk = sum(
            one.node_count
            * (one.disk or _image_disk())
            * (1 + counts[one.name] + taken.get(one.name, 0) + more * (one.name == lab.name))
            for one in recorded
        )
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


def _labs(service: Service, project: str) -> tuple[list[LabRecord], list[LabSpec]]:
    """The labs of a project, and those that jobs are about to make."""
    recorded = [lab for lab in service.store.labs.all() if lab.project == project]
    made = {lab.job for lab in recorded}
    coming = [
        spec_of(job.request)
        for job in service.store.jobs.open(project)
        if job.kind == "create" and job.id not in made
    ]
    return recorded, coming


def _kept(snapshots: Schedule) -> int:
    return sum(count for _, count in snapshots.keep)


@cache
def _image_disk() -> int:
    """Bytes of the disk that a node has which asked for none: that of our images."""
    return max(load(name).disk for name in recipes())
