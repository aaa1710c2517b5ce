"""Events: of the host, of a project, of a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from lab.api.core.core import Core
from lab.api.core.threads import Route, in_thread
from lab.api.events.eventlog import topic
from lab.api.http.answers import Answer, Page, page, paged
from lab.api.http.auth import Caller, Reader
from lab.api.http.dependencies import CoreOf
from lab.api.http.queries import Limit, OfHost, check_own
from lab.api.http.units import ID_LIMIT
from lab.api.routes.jobs import Id
from lab.api.wire import sse
from lab.views.jobs import EventView

router = APIRouter(prefix="/v1", tags=["events"], route_class=Route)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of events; with Accept: text/event-stream, a stream of new ones.",
        "content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}
After = Annotated[
    int | None, Query(ge=0, le=ID_LIMIT, description="Only events after the one with this id.")
]
Last = Annotated[
    str | None, Header(alias="Last-Event-ID", max_length=20, description="As `after`, for streams.")
]
Accept = Annotated[str, Header(include_in_schema=False)]


@router.get("/events", operation_id="listEvents", response_model=page(EventView), responses=_STREAM)
async def events(
    core: CoreOf,
    caller: Reader,
    after: After = None,
    limit: Limit = 100,
    last: Last = None,
    accept: Accept = "",
    host: OfHost = None,
) -> Page[Answer] | Response:
    """The steps of all jobs of a host that the caller may see.

    A stream begins with the next event, or with the first one after Last-Event-ID.
    """
    check_own(core, host)
    if sse.MEDIA_TYPE in accept:
        begin = _number(last, after)
        if begin is None:
            begin = await in_thread(core.store.events.last_id)
        return sse.stream(core, caller, last=begin)
    return await in_thread(listed, core, caller, after or 0, limit)


@router.get(
    "/jobs/{job}/events",
    operation_id="listJobEvents",
    response_model=page(EventView),
    responses=_STREAM,
)
async def of_job(
    core: CoreOf,
    caller: Reader,
    job: Id,
    after: After = None,
    limit: Limit = 100,
    last: Last = None,
    accept: Accept = "",
) -> Page[Answer] | Response:
    """The steps of a job, from its first; as a stream it ends with the job."""
    await in_thread(caller.job, core, job)
    if sse.MEDIA_TYPE in accept:
        begin = _number(last, after) or 0
        return sse.stream(core, caller, last=begin, job=job)
    return await in_thread(listed, core, caller, after or 0, limit, job)


def listed(
    core: Core, caller: Caller, after: int, limit: int, job: str | None = None
) -> Page[Answer]:
    """A page of the events that the caller may see; with ``job``, only of that job."""
    found = core.store.events.after(
        after, owner=topic(job) if job else None, project=caller.project, limit=limit + 1
    )
    own = core.settings.serve.host_name
    items = [sse.event_answer(record, own) for record in found[:limit]]
    return paged(EventView, items, found[limit - 1].id if len(found) > limit else None)


def _number(last: str | None, after: int | None) -> int | None:
    """The id after which a stream begins; an invalid Last-Event-ID is ignored."""
    if last is not None and last.isascii() and last.isdecimal() and int(last) <= ID_LIMIT:
        return int(last)
    return after
