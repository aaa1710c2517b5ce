"""Snapshots of labs, and rollbacks to them: /v1/labs/{name}/snapshots."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace

from lab import schedule
from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import Answer, answer, many, model
from lab.api.http.auth import Caller, Reader, User
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.job_answer import JOB_DONE, Key, Wait, job_answer, job_done
from lab.api.http.queries import FromQuery
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import (
    UNLIMITED,
    check_snapshots,
    check_standby,
    max_snapshots,
    snapshots_of,
)
from lab.api.jobs.submit import new_job, submit
from lab.api.routes.labs import Name
from lab.lifecycle.nodes import inspect
from lab.lifecycle.snapshots import snapshot
from lab.names import SNAPSHOT_LABEL
from lab.requests.labs import DropStandby, MakeStandby, ResetLab, RollBack
from lab.requests.snapshots import ChangeSnapshot, DeleteSnapshot, PruneSnapshots, TakeSnapshot
from lab.state.service import JobRecord
from lab.views.jobs import JobView
from lab.views.snapshots import Pruned, SnapshotView
from lab.views.tree import descent

router = APIRouter(prefix="/v1/labs/{name}", tags=["snapshots"], route_class=Route)

Label = Annotated[str, Path(pattern=SNAPSHOT_LABEL, examples=["manual.20261121t110000"])]


@router.get("/snapshots", operation_id="listSnapshots", response_model=many(SnapshotView))
def snapshots(core: CoreOf, caller: Reader, name: Name) -> list[Answer]:
    """The snapshots of a lab, oldest first."""
    caller.lab(core, name)
    with core.contexts.use() as ctx:
        return [answer(view) for view in snapshot.snapshots(ctx, name)]


def tree(core: Core, caller: Caller, name: str) -> list[tuple[int, SnapshotView]]:
    """The snapshots of a lab, each with its depth below what it descends from."""
    caller.lab(core, name)
    with core.contexts.use() as ctx:
        return descent(snapshot.snapshots(ctx, name))


@router.post(
    "/snapshots",
    operation_id="takeSnapshot",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": model(SnapshotView), "description": "The snapshot is taken."}},
)
async def take(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Name,
    asked: FromBody[TakeSnapshot],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Take a snapshot of a lab, running or stopped: disks and RAM of all nodes, at one moment."""
    job = await in_thread(submit_take, jobs, caller, name, asked, key)
    return await job_answer(core, job, wait, partial(_taken, core))


@router.post(
    "/snapshots/prune",
    operation_id="pruneSnapshots",
    status_code=202,
    response_model=model(JobView),
    responses={200: {"model": model(Pruned), "description": "The snapshots are removed."}},
)
async def prune(core: CoreOf, jobs: JobsOf, caller: User, name: Name, wait: Wait) -> Response:
    """Remove the scheduled snapshots that exceed what the lab's schedule keeps; others stay."""
    job = await in_thread(_prune, jobs, caller, name)
    return await job_answer(core, job, wait, _pruned)


@router.patch(
    "/snapshots/{label}", operation_id="changeSnapshot", response_model=model(SnapshotView)
)
def change(
    core: CoreOf, caller: User, name: Name, label: Label, asked: FromBody[ChangeSnapshot]
) -> Answer:
    """Change the protection of a snapshot, by its label or its name (the newest of it)."""
    caller.lab(core, name)
    with core.contexts.use() as ctx:
        return answer(snapshot.protect(ctx, name, label, protected=asked.protected))


@router.delete(
    "/snapshots/{label}",
    operation_id="deleteSnapshot",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "The snapshot is removed."}},
)
async def delete(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Name,
    label: Label,
    asked: FromQuery[DeleteSnapshot],
    wait: Wait,
) -> Response:
    """Remove a snapshot, by its label or its name (the newest); the lab stays as it is."""
    job = await in_thread(submit_delete, jobs, caller, replace(asked, lab=name, label=label))
    return await job_answer(core, job, wait, lambda _: Response(status_code=204))


@router.post(
    "/rollback",
    operation_id="rollBack",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def roll_back(
    core: CoreOf, jobs: JobsOf, caller: User, name: Name, asked: FromBody[RollBack], wait: Wait
) -> Response:
    """Roll back a lab, or one node, to a snapshot; later writes are lost.

    The nodes of a lab resume from the snapshot's RAM if it has it; a single node boots.
    """
    job = await in_thread(submit_rollback, jobs, caller, name, asked)
    return await job_answer(core, job, wait, partial(job_done, core))


@router.post(
    "/reset", operation_id="resetLab", status_code=202, response_model=model(JobView),
    responses=JOB_DONE,
)  # fmt: skip
async def reset(
    core: CoreOf, jobs: JobsOf, caller: User, name: Name, asked: FromBody[ResetLab], wait: Wait
) -> Response:
    """Put a lab back to a snapshot by its standby, in a fraction of a second; make the next one.

    Without a standby it takes as long as a rollback.
    """
    job = await in_thread(submit_reset, jobs, caller, name, asked)
    return await job_answer(core, job, wait, partial(job_done, core))


@router.put(
    "/standby",
    operation_id="makeStandby",
    status_code=202,
    response_model=model(JobView),
    responses=JOB_DONE,
)
async def make_standby(
    core: CoreOf, jobs: JobsOf, caller: User, name: Name, asked: FromBody[MakeStandby], wait: Wait
) -> Response:
    """Make a standby: the next reset, or rollback to the snapshot, takes a fraction of a second.

    A lab has one at most. It is used once, within an hour; a reset makes the next one.
    """
    job = await in_thread(submit_standby, jobs, caller, name, asked)
    return await job_answer(core, job, wait, partial(job_done, core))


@router.delete(
    "/standby",
    operation_id="dropStandby",
    status_code=202,
    response_model=model(JobView),
    responses={204: {"description": "The lab has no standby."}},
)
async def drop_standby(
    core: CoreOf, jobs: JobsOf, caller: User, name: Name, wait: Wait
) -> Response:
    """Remove the standby of a lab, if it has one."""
    job = await in_thread(submit_standby, jobs, caller, name, DropStandby())
    return await job_answer(core, job, wait, lambda _: Response(status_code=204))


def submit_reset(jobs: Jobs, caller: Caller, name: str, asked: ResetLab) -> JobRecord:
    """Submit a reset; raises NotFound."""
    record = caller.lab(jobs.core, name)
    to = _label(jobs.core, name, asked.to)
    request = replace(asked, lab=name, created_at=record.created_at, to=to)
    return submit(jobs, new_job(caller.token, request, project=record.project))


def _label(core: Core, name: str, wanted: str) -> str:
    """The label of a snapshot, if one is named; raises NotFound."""
    if not wanted:
        return ""
    with core.contexts.use() as ctx:
        return snapshot.find(ctx, name, wanted).label


def submit_standby(
    jobs: Jobs, caller: Caller, name: str, asked: MakeStandby | DropStandby
) -> JobRecord:
    """Submit the making, or the removal, of the standby of a lab; raises NotFound."""
    core = jobs.core
    record = caller.lab(core, name)
    if isinstance(asked, MakeStandby):
        asked = replace(asked, to=_label(core, name, asked.to))
    request = replace(asked, lab=name, created_at=record.created_at)
    job = new_job(caller.token, request, project=record.project)
    if isinstance(asked, MakeStandby):
        return submit(jobs, job, lambda: check_standby(core, caller.token, record))
    return submit(jobs, job)


def submit_take(
    jobs: Jobs, caller: Caller, name: str, asked: TakeSnapshot, key: str | None
) -> JobRecord:
    """Submit a snapshot; raises NotFound, InvalidSpec, LimitReached."""
    core, token = jobs.core, caller.token
    record = caller.lab(core, name)
    schedule.check_name(asked.name)
    request = replace(asked, lab=name, created_at=record.created_at)
    job = new_job(token, request, project=record.project, key=key)
    limited = max_snapshots(core, token) is not None or token.max_disk is not None
    taken = snapshots_of(core, record.project) if limited else UNLIMITED
    return submit(jobs, job, lambda: check_snapshots(core, token, record, taken))


def _taken(core: Core, job: JobRecord) -> Response:
    with core.contexts.use() as ctx:
        found = snapshot.find(ctx, job.lab, job.about.partition(":")[2])
        body = answer(snapshot.view_of(ctx, found))
    headers = {"Location": f"/v1/labs/{job.lab}/snapshots"}
    return JSONResponse(body.model_dump(mode="json"), status_code=201, headers=headers)


def submit_delete(jobs: Jobs, caller: Caller, asked: DeleteSnapshot) -> JobRecord:
    """Submit the removal of a snapshot; raises NotFound."""
    core = jobs.core
    record = caller.lab(core, asked.lab)
    with core.contexts.use() as ctx:
        label = snapshot.find(ctx, asked.lab, asked.label).label
    request = replace(asked, created_at=record.created_at, label=label)
    return submit(jobs, new_job(caller.token, request, project=record.project))


def _prune(jobs: Jobs, caller: Caller, name: str) -> JobRecord:
    record = caller.lab(jobs.core, name)
    request = PruneSnapshots(lab=name, created_at=record.created_at)
    return submit(jobs, new_job(caller.token, request, project=record.project))


def _pruned(job: JobRecord) -> Response:
    labels = job.about.partition(":")[2]
    found = Pruned(tuple(labels.split(",")) if labels else ())
    return JSONResponse(answer(found).model_dump())


def submit_rollback(jobs: Jobs, caller: Caller, name: str, asked: RollBack) -> JobRecord:
    """Submit the rollback of a lab, or of one node; raises NotFound."""
    core = jobs.core
    record = caller.lab(core, name)
    with core.contexts.use() as ctx:
        if asked.node:
            inspect.node_of(ctx, name, asked.node)
        label = snapshot.find(ctx, name, asked.to).label
    request = replace(asked, lab=name, created_at=record.created_at, to=label)
    return submit(jobs, new_job(caller.token, request, project=record.project))
