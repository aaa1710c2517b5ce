"""Server-sent events: what happens, as it happens, and from where one left off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.bell import HOST
from api.eventlog import topic
from api.models import Event
from api.service import Service
from lab.state.jobs import OPEN
from lab.state.records import EventRecord

MEDIA_TYPE = "text/event-stream"
_ALIVE_EVERY = 15.0
_AT_ONCE = 200


def stream(
    service: Service,
    *,
    last: int,
    project: str | None = None,
    job: str | None = None,
    named: bool = True,
    allowed: Callable[[], bool] = lambda: True,
) -> StreamingResponse:
    """The events with a larger id than ``last``, of a project or a job; a job's stream ends.

    So does one that is not ``allowed`` any more. ``named``: each by its step, so that who listens
    can choose; others are all heard as messages.
    """
    lines = _lines(service, last, project, job, allowed, named=named)
    return StreamingResponse(lines, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})


async def _lines(
    service: Service,
    last: int,
    project: str | None,
    job: str | None,
    allowed: Callable[[], bool],
    *,
    named: bool,
) -> AsyncIterator[str]:
    owner = topic(job) if job else None

    def look() -> tuple[list[EventRecord], bool]:
        if not allowed():
            return [], True
        record = service.store.jobs.find(job) if job else None
        # In this order: its last event is stored together with its end.
        over = job is not None and (record is None or record.state not in OPEN)
        found = service.store.events.after(last, owner=owner, project=project, limit=_AT_ONCE)
        return found, over and len(found) < _AT_ONCE

    with service.bell.listen(owner or HOST) as ear:
        yield "retry: 1000\n\n"
        while True:
            found, over = await run_in_threadpool(look)
            for record in found:
                last = record.id
                yield _event(record, named=named)
            if over or service.stopping.is_set():
                return
            if not found and not await ear.wait(_ALIVE_EVERY):
                yield ": alive\n\n"


def _event(record: EventRecord, *, named: bool) -> str:
    data = json.dumps(Event.of(record).model_dump())
    name = f"event: {record.step}\n" if named else ""
    return f"id: {record.id}\n{name}data: {data}\n\n"
