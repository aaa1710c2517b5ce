"""Quotas: what a token's project may have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lab import schedule
from lab.api.core.core import Core
from lab.api.jobs.requests import CreateLab, read
from lab.errors import LimitReached
from lab.imagebuild.recipe import load, recipes
from lab.lifecycle import snapshot
from lab.schedule import PERIODS, Schedule
from lab.spec import LabSpec, format_size
from lab.state.records import JobRecord, LabRecord, TokenRecord

Snapshots = Mapping[str, int]
"""How many snapshots labs have, by name, those that their schedules keep apart."""


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


def snapshots_of(core: Core, project: str) -> Snapshots:
    """Those of the labs of a project, as the storage has them; costs time."""
    with core.contexts.use() as ctx:
        return {
            lab.name: sum(
                one.at is not None and one.name not in PERIODS
                for one in snapshot.there(ctx, lab.name)
            )
            for lab in ctx.store.labs.all()
            if lab.project == project
        }


def check_quota(core: Core, token: TokenRecord, spec: LabSpec, taken: Snapshots) -> None:
    """Raise LimitReached if the token's project had more than it may with ``spec``.

    Labs that are being created count. ``taken``: see ``snapshots_of``. To be certain, record the
    job in the same transaction.
    """
    limits = (token.max_labs, token.max_nodes, token.max_memory, token.max_cpus, token.max_disk)
    if limits == (None,) * len(limits) and not spec.snapshots.keep:
        return
    recorded, coming = _labs(core, token.project)
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
        _check(token.project, "snapshots", max_snapshots(core, token), sum(counts))


def check_snapshot(core: Core, token: TokenRecord, lab: LabRecord, taken: Snapshots) -> None:
    """Raise LimitReached if the project of ``lab`` had more than the token allows."""
    open_ = core.store.jobs.open(lab.project)
    more = 1 + sum(job.kind == "snapshot" for job in open_)
    recorded, coming = _labs(core, lab.project)
    counts = {one.name: _kept(schedule.parse(one.snapshots)) for one in recorded}
    wanted = sum(counts.values()) + sum(_kept(one.snapshots) for one in coming)
    wanted += sum(taken.values()) + more
    this = "this snapshot"
    _check(lab.project, "snapshots", max_snapshots(core, token), wanted, with_=this)
    if token.max_disk is not None:
        disk = sum(
            one.node_count
            * (one.disk or _image_disk())
            * (1 + counts[one.name] + taken.get(one.name, 0) + more * (one.name == lab.name))
            for one in recorded
        )
        _check(lab.project, "disk", token.max_disk, disk, with_=this)


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


def _labs(core: Core, project: str) -> tuple[list[LabRecord], list[LabSpec]]:
    """The labs of a project, and those that jobs are about to create."""
    recorded = [lab for lab in core.store.labs.all() if lab.project == project]
    made = {lab.job for lab in recorded}
    coming = [
        read(job, CreateLab).spec
        for job in core.store.jobs.open(project)
        if job.kind == "create" and job.id not in made
    ]
    return recorded, coming


def _kept(snapshots: Schedule) -> int:
    return sum(count for _, count in snapshots.keep)


@cache
def _image_disk() -> int:
    """Bytes of the disk of a node for which no size was requested: that of our images."""
    return max(load(name).disk for name in recipes())
