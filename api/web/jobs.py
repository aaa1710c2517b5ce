"""Jobs as pages, and the stream that keeps pages live."""

from __future__ import annotations

from typing import Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lab.api.http.dependencies import CoreOf, JobsOf
from lab.api.http.queries import After, Filter, OfHost
from lab.api.http.sessions import session_caller
from lab.api.routes import jobs as routes
from lab.api.routes.jobs import Id
from lab.api.web import pages
from lab.api.web.events import shown
from lab.api.web.request import PageRoute, ReadAccess, UseAccess
from lab.api.wire import sse
from lab.state.service import JobKind, JobState

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_AT_ONCE = 50


@router.get("/jobs", operation_id="jobsPage")
def list_page(
    request: Request,
    core: CoreOf,
    caller: ReadAccess,
    state: JobState | Literal[""] = "",
    kind: JobKind | Literal[""] = "",
    lab: Filter = "",
    after: After = "",
    host: OfHost = None,
) -> Response:
    """Jobs of a host, the newest first; those of a state, kind or lab only."""
    found = routes.list_jobs(
        core, caller, state=state or None, kind=kind or None, lab=lab, after=after,
        limit=_AT_ONCE, host=host,
    )  # fmt: skip
    asked = {"state": state, "kind": kind, "lab": lab, "host": host}
    typed = {name: text for name, text in asked.items() if text}
    return pages.page(
        request,
        "jobs.html",
        jobs=found.items,
        owners={one.name: one.owner for one in core.store.labs.all() if caller.sees(one.project)},
        typed=typed,
        hosts=sorted(core.fleet.names) if core.fleet else [],
        states=get_args(JobState),
        kinds=sorted(get_args(JobKind)),
        after=after,
        next=found.next,
    )


@router.get("/jobs/{job}", operation_id="jobPage")
def show(request: Request, core: CoreOf, caller: ReadAccess, job: Id) -> Response:
    """A job, with its steps."""
    record = caller.job(core, job)
    labs = {one.name for one in core.store.labs.all() if not one.pool and caller.sees(one.project)}
    return pages.page(
        request,
        "job.html",
        job=record,
        lines=shown(core, caller, record),
        lab=record.lab if record.lab in labs else "",
        branches=labs,
    )


@router.post("/jobs/{job}/cancel", operation_id="cancelJob")
def cancel(jobs: JobsOf, caller: UseAccess, job: Id) -> Response:
    """Cancel a job, and show it."""
    routes.cancel(jobs, caller, job)
    return pages.go(f"/jobs/{job}")


@router.get("/live", operation_id="live")
def live(request: Request, core: CoreOf, caller: ReadAccess) -> Response:
    """New events as server-sent events, while the session lasts."""
    return sse.stream(
        core,
        caller,
        last=core.store.events.last_id(),
        named=False,
        allowed=lambda: session_caller(request) is not None,
    )
