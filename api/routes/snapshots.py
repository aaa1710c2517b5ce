"""Snapshots of labs, and going back to them: /v1/labs/{name}/snapshots."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from lab import schedule
from lab.api.http.answers import Key, Wait, outcome
from lab.api.http.auth import Caller, Reader, ServiceOf, User
from lab.api.http.models import NODE, Asked, Job
from lab.api.http.quota import check_snapshot, max_snapshots, snapshots_of
from lab.api.http.units import Time
from lab.api.jobs.submit import new_job, submit
from lab.api.routes.labs import Name
from lab.api.service import Service
from lab.lifecycle import snapshot
from lab.lifecycle.core.views import SnapshotView
from lab.lifecycle.nodes import inspect
from lab.schedule import ORIGIN
from lab.state.records import JobRecord

router = APIRouter(prefix="/v1/labs/{name}", tags=["snapshots"])

_LABEL = r"^[a-z0-9][a-z0-9_.-]{0,79}$"
Label = Annotated[str, Path(pattern=_LABEL, examples=["manual.20261121t110000"])]
_DONE: dict[int | str, dict[str, Any]] = {200: {"model": Job, "description": "It is done."}}


class Snapshot(BaseModel):
    """All disks of a lab at one moment. ``name``: what it was taken as."""

    label: Annotated[str, Field(examples=["before-upgrade.20261121t110000"])]
    name: Annotated[str, Field(examples=["before-upgrade"])]
    at: Time | None

    @staticmethod
    def of(view: SnapshotView) -> Snapshot:
        """``view`` as the service tells of it."""
        return Snapshot(**vars(view))


class SnapshotRequest(Asked):
    """A snapshot to be taken."""

    name: Annotated[str, Field(max_length=40, examples=["before-upgrade"])] = "manual"


class Pruned(BaseModel):
    """What a schedule did not keep."""

    removed: Annotated[list[str], Field(examples=[["hourly.20261121t110000"]])]


class RollbackRequest(Asked):
    """Where to go back to."""

    to: Annotated[
        str, Field(pattern=_LABEL, description="A label, a name (its newest), or origin.")
    ] = ORIGIN
    node: Annotated[str | None, Field(pattern=NODE, description="Only this one.")] = None


@router.get("/snapshots", operation_id="listSnapshots")
def snapshots(service: ServiceOf, caller: Reader, name: Name) -> list[Snapshot]:
    """The snapshots of a lab, oldest first."""
    caller.lab(service, name)
    with service.contexts.use() as ctx:
        return [Snapshot.of(view) for view in snapshot.snapshots(ctx, name)]


@router.post(
    "/snapshots",
    operation_id="takeSnapshot",
    status_code=202,
    response_model=Job,
    responses={201: {"model": Snapshot, "description": "It is taken."}},
)
async def take(
    service: ServiceOf,
    caller: User,
    name: Name,
    asked: SnapshotRequest,
    wait: Wait,
    key: Key = None,
) -> Response:
    """Take a snapshot of a lab, running or stopped: all disks of all nodes, at one moment."""
    job = await run_in_threadpool(submit_take, service, caller, name, asked, key)
    return await outcome(service, job, wait, _taken)


@router.post(
    "/snapshots/prune",
    operation_id="pruneSnapshots",
    status_code=202,
    response_model=Job,
    responses={200: {"model": Pruned, "description": "They are gone."}},
)
async def prune(service: ServiceOf, caller: User, name: Name, wait: Wait) -> Response:
    """Remove the snapshots that are more than the lab's schedule keeps; others stay."""
    job = await run_in_threadpool(_prune, service, caller, name)
    return await outcome(service, job, wait, _pruned)


@router.delete(
    "/snapshots/{label}",
    operation_id="deleteSnapshot",
    status_code=202,
    response_model=Job,
    responses={204: {"description": "The snapshot is gone."}},
)
async def delete(
    service: ServiceOf, caller: User, name: Name, label: Label, wait: Wait
) -> Response:
    """Remove a snapshot, by its label or its name (the newest); the lab stays as it is."""
    job = await run_in_threadpool(submit_delete, service, caller, name, label)
    return await outcome(service, job, wait, lambda _: Response(status_code=204))


@router.post(
    "/rollback",
    operation_id="rollBack",
    status_code=202,
    response_model=Job,
    responses=_DONE,
)
async def roll_back(
    service: ServiceOf, caller: User, name: Name, asked: RollbackRequest, wait: Wait
) -> Response:
    """Put a lab, or one node, back to a snapshot; what was written since is lost."""
    job = await run_in_threadpool(submit_rollback, service, caller, name, asked)
    return await outcome(service, job, wait, _rolled_back)


def submit_take(
    service: Service, caller: Caller, name: str, asked: SnapshotRequest, key: str | None
) -> JobRecord:
    """Have a snapshot taken; raises NotFound, InvalidSpec, LimitReached."""
    record = caller.lab(service, name)
    schedule.check_name(asked.name)
    request = {**asked.model_dump(), "created_at": record.created_at}
    job = new_job(caller, "snapshot", request, lab=name, project=record.project, key=key)
    limited = max_snapshots(service, caller) is not None or caller.token.max_disk is not None
    taken = snapshots_of(service, record.project) if limited else {}
    return submit(service, job, lambda: check_snapshot(service, caller, record, taken))


def _taken(job: JobRecord) -> Response:
    taken = schedule.read(job.about.partition(":")[2])
    body = Snapshot(label=taken.label, name=taken.name, at=taken.at)
    headers = {"Location": f"/v1/labs/{job.lab}/snapshots"}
    return JSONResponse(body.model_dump(mode="json"), status_code=201, headers=headers)


def submit_delete(service: Service, caller: Caller, name: str, label: str) -> JobRecord:
    """Have a snapshot removed; raises NotFound."""
    record = caller.lab(service, name)
    with service.contexts.use() as ctx:
        found = snapshot.find(ctx, name, label).label
    about = f"snapshot:{found}"
    request = {"created_at": record.created_at}
    job = new_job(caller, "delete-snapshot", request, lab=name, about=about, project=record.project)
    return submit(service, job)


def _prune(service: Service, caller: Caller, name: str) -> JobRecord:
    record = caller.lab(service, name)
    request = {"created_at": record.created_at}
    job = new_job(caller, "prune-snapshots", request, lab=name, project=record.project)
    return submit(service, job)


def _pruned(job: JobRecord) -> Response:
    labels = job.about.partition(":")[2]
    return JSONResponse(Pruned(removed=labels.split(",") if labels else []).model_dump())


def submit_rollback(
    service: Service, caller: Caller, name: str, asked: RollbackRequest
) -> JobRecord:
    """Have a lab, or one node, put back to a snapshot; raises NotFound."""
    record = caller.lab(service, name)
    with service.contexts.use() as ctx:
        if asked.node:
            inspect.node_of(ctx, name, asked.node)
        label = snapshot.find(ctx, name, asked.to).label
    request = {"to": label, "node": asked.node or "", "created_at": record.created_at}
    return submit(service, new_job(caller, "rollback", request, lab=name, project=record.project))


def _rolled_back(job: JobRecord) -> Response:
    headers = {"Location": f"/v1/labs/{job.lab}"}
    return JSONResponse(Job.of(job).model_dump(mode="json"), status_code=200, headers=headers)
