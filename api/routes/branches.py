"""Branches of labs: /v1/labs/{name}/branches."""

from __future__ import annotations

import dataclasses
from functools import partial

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace

from lab.api.core.admission import need_to_branch
from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import many, model
from lab.api.http.auth import Caller, User
from lab.api.http.bodies import FromBody
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.job_answer import Key, Wait, job_answer
from lab.api.http.lab_answer import lab_answer
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import UNLIMITED, check_branches, max_snapshots, snapshots_of
from lab.api.jobs.submit import new_job, submit
from lab.api.routes.labs import Name, check_ttl, default_ttl, seen
from lab.errors import Conflict
from lab.fleet import ids, known
from lab.lifecycle.nodes.inspect import check_usable
from lab.lifecycle.snapshots import snapshot
from lab.requests.labs import BranchLab
from lab.state.service import JobRecord
from lab.views.jobs import JobView
from lab.views.labs import Lab

router = APIRouter(prefix="/v1/labs/{name}", tags=["labs"], route_class=Route)


@router.post(
    "/branches",
    operation_id="branchLab",
    status_code=202,
    response_model=model(JobView),
    responses={201: {"model": many(Lab), "description": "All branches are ready."}},
)
async def branch(
    core: CoreOf,
    jobs: JobsOf,
    caller: User,
    name: Name,
    asked: FromBody[BranchLab],
    wait: Wait,
    key: Key = None,
) -> Response:
    """Create labs that are clones of a lab as it is now, or of a snapshot of it: all or none."""
    job = await in_thread(submit_branch, jobs, caller, name, asked, key)
    return await job_answer(core, job, wait, partial(_branched, core, caller))


def submit_branch(
    jobs: Jobs, caller: Caller, name: str, asked: BranchLab, key: str | None
) -> JobRecord:
    """Submit the job that creates branches.

    Raises NotFound, InvalidSpec, Forbidden, Conflict, HostUnfit, LimitReached.
    """
    core, token = jobs.core, caller.token
    record = caller.lab(core, name)
    ttl = asked.ttl or default_ttl(core, caller)
    check_ttl(core, caller, ttl)
    check_usable(record)
    at = ""
    if asked.at:
        with core.contexts.use() as ctx:
            at = snapshot.find(ctx, name, asked.at).label
    request = replace(
        asked, lab=name, created_at=record.created_at, at=at, ttl=ttl, owner=token.name
    )
    names = request.names
    job = new_job(token, request, project=record.project, key=key)
    limited = max_snapshots(core, token) is not None or token.max_disk is not None
    taken = snapshots_of(core, record.project) if limited else UNLIMITED

    def check() -> None:
        need = need_to_branch(core.store.lab_with_nodes(name), request.count)
        many = "the branch needs" if request.count == 1 else f"{request.count} branches need"
        core.admission.check(need, many)
        check_branches(core, token, record, request.count, taken, snapshot=not at)
        for one in names:
            if one and core.store.labs.find(one):
                raise Conflict(
                    f"lab {one} exists already",
                    hint=f"choose another name; `lab down {one}`, or DELETE /v1/labs/{one},"
                    " removes it",
                )

    if core.fleet is not None and request.name:
        fleet = core.fleet
        job = dataclasses.replace(job, id=ids.job_id(fleet.name))
        known.reserve(fleet.database, fleet.member, names, record.project, job.id)
    return submit(jobs, job, check)


def branches_of(job: JobRecord) -> list[str]:
    """The names of the labs that a job made, once it has succeeded."""
    names = job.about.partition(":")[2]
    return names.split(",") if names else []


def _branched(core: Core, caller: Caller, job: JobRecord) -> Response:
    labs = [seen(core, caller, name)[0] for name in branches_of(job)]
    headers = {"Location": f"/v1/labs/{labs[0].name}"} if len(labs) == 1 else {}
    body = [lab_answer(lab).model_dump(mode="json") for lab in labs]
    return JSONResponse(body, status_code=201, headers=headers)
