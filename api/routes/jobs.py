"""Jobs: /v1/jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path

from lab.api.core.threads import Route, in_thread
from lab.api.http.answers import Answer, Page, answer, model, page, paged
from lab.api.http.auth import Reader, User
from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.job_answer import Wait, job_shown
from lab.api.http.queries import After, Filter, Limit, OfHost, check_own
from lab.fleet import placements
from lab.state.service import JobKind, JobState
from lab.views.jobs import JobView
from lab.views.upgrades import UpgradeView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Route)

Id = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f-]+$")]


@router.get("", operation_id="listJobs", response_model=page(JobView))
def list_jobs(
    core: CoreOf,
    caller: Reader,
    state: JobState | None = None,
    kind: JobKind | None = None,
    lab: Filter = "",
    after: After = "",
    limit: Limit = 100,
    host: OfHost = None,
) -> Page[Answer]:
    """Jobs of a host, the newest first."""
    check_own(core, host)
    states, kinds = [state] if state else [], [kind] if kind else []
    if after:
        caller.job(core, after)
    found = core.store.jobs.latest(
        caller.project, states=states, kinds=kinds, lab=lab, after=after, limit=limit + 1
    )
    more = len(found) > limit
    items = [job_shown(core, record) for record in found[:limit]]
    return paged(JobView, items, found[limit - 1].id if more else None)


@router.get("/{job}", operation_id="getJob", response_model=model(JobView))
async def get(
    core: CoreOf,
    caller: Reader,
    job: Id,
    wait: Wait,
) -> Answer:
    """A job."""
    record = await in_thread(caller.job, core, job)
    if core.fleet is not None and await in_thread(core.store.jobs.find, job) is None:
        return answer(record, JobView, host_name="")  # no host has begun it
    return job_shown(core, await wait.ended(core, job))


@router.get("/{job}/report", operation_id="getReport", response_model=model(UpgradeView))
def get_report(core: CoreOf, caller: Reader, job: Id) -> Answer:
    """What an upgrade did, step by step; also of a job that failed because a step did."""
    found = core.store.jobs.report(caller.job(core, job).id)
    return answer(msgspec.convert(found, UpgradeView))


@router.post(
    "/{job}/cancel", operation_id="cancelJob", status_code=202, response_model=model(JobView)
)
def cancel(jobs: JobsOf, caller: User, job: Id) -> Answer:
    """Cancel a job: it ends at its next step and undoes its changes; no error if it has ended."""
    core, fleet = jobs.core, jobs.core.fleet
    record = caller.job(core, job)
    if fleet is not None and core.store.jobs.find(job) is None:
        placements.cancel(fleet.database, job)  # no host has begun it
        return answer(caller.job(core, job), JobView, host_name="")
    jobs.cancel(record)
    return job_shown(core, caller.job(core, job))
