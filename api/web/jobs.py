"""Jobs as pages, and the stream that keeps pages live."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from lab.api.http import sse
from lab.api.http.auth import ServiceOf
from lab.api.http.models import Job
from lab.api.routes import jobs
from lab.api.routes.jobs import Id
from lab.api.web import pages
from lab.api.web.events import shown
from lab.api.web.request import Looking, PageRoute, Using, visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_AT_ONCE = 50


@router.get("/jobs", operation_id="jobsPage")
def list_page(
    request: Request,
    service: ServiceOf,
    caller: Looking,
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Jobs, the newest first."""
    found = jobs.list_jobs(service, caller, after=after, limit=_AT_ONCE)
    return pages.page(request, "jobs.html", jobs=found.items, after=after, next=found.next)


@router.get("/jobs/{job}", operation_id="jobPage")
def show(request: Request, service: ServiceOf, caller: Looking, job: Id) -> Response:
    """A job, with its steps."""
    record = caller.job(service, job)
    there = record.lab and service.store.labs.find(record.lab)
    return pages.page(
        request,
        "job.html",
        job=Job.of(record),
        lines=shown(service, caller, job),
        lab=record.lab if there and caller.sees(there.project) else "",
    )


@router.post("/jobs/{job}/cancel", operation_id="cancelJob")
def cancel(service: ServiceOf, caller: Using, job: Id) -> Response:
    """Have a job end at its next step, and show how it does."""
    jobs.cancel(service, caller, job)
    return pages.go(f"/jobs/{job}")


@router.get("/live", operation_id="live")
def live(request: Request, service: ServiceOf, caller: Looking) -> Response:
    """What happens from now on, as server-sent events, for as long as the session lasts."""
    return sse.stream(
        service,
        caller,
        last=service.store.events.last_id(),
        named=False,
        allowed=lambda: visitor(request) is not None,
    )
