"""Server-sent events, which a client can resume after the last event that it received."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lab.api.core.core import Core
from lab.api.core.threads import in_thread
from lab.api.events.eventlog import topic
from lab.api.events.notifier import HOST
from lab.api.http.answers import Answer, answer
from lab.api.http.auth import Caller
from lab.state.jobs import OPEN
from lab.state.records import EventRecord
from lab.views.jobs import EventView
from lab.wait import Deadline

MEDIA_TYPE = "text/event-stream"
_ALIVE_EVERY = 15.0
_AT_ONCE = 200


class Streamed(StreamingResponse):
    """Send ``lines`` as they come; ``over`` is called at the end, however that came."""

    def __init__(self, lines: AsyncIterator[str], over: Callable[[], object]) -> None:
        super().__init__(lines, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def stream(
    core: Core,
    caller: Caller,
    *,
    last: int,
    job: str | None = None,
    named: bool = True,
    allowed: Callable[[], bool] | None = None,
) -> StreamingResponse:
    """The events with a larger id than ``last`` that the caller may see, or those of a job.

    A job's stream ends with the job, and each once it is not ``allowed`` any more; by default,
    while the token is valid. ``named``: each event has the name of its step, so that a client can
    choose; others are all of the type ``message``. Raises LimitReached if the token has too many.
    """
    allowed = allowed or partial(caller.valid, core)
    project, token = None if job else caller.project, caller.token.id
    core.limits.streams.acquire(token)
    lines = _lines(core, last, project, job, allowed, named=named)
    return Streamed(lines, partial(core.limits.streams.release, token))


async def _lines(
    core: Core,
    last: int,
    project: str | None,
    job: str | None,
    allowed: Callable[[], bool],
    *,
    named: bool,
) -> AsyncIterator[str]:
    owner = topic(job) if job else None

    def new_events() -> tuple[list[EventRecord], bool]:
        if not allowed():
            return [], True
        record = core.store.jobs.find(job) if job else None
        # In this order: its last event is stored together with its end.
        over = job is not None and (record is None or record.state not in OPEN)
        found = core.store.events.after(last, owner=owner, project=project, limit=_AT_ONCE)
        return found, over and len(found) < _AT_ONCE

    with core.notifier.subscribe(owner or HOST) as subscription:
        yield "retry: 1000\n\n"
        quiet = Deadline.after(_ALIVE_EVERY)
        while True:
            found, over = await in_thread(new_events)
            for record in found:
                last = record.id
                yield _event(record, core.settings.serve.host_name, named=named)
            if over or core.stopping.is_set():
                return
            if found:
                quiet = Deadline.after(_ALIVE_EVERY)
                continue
            # Also events of others, of which nothing is sent, end a wait.
            await subscription.wait(quiet.left)
            if quiet.passed:
                quiet = Deadline.after(_ALIVE_EVERY)
                yield ": alive\n\n"


def event_answer(record: EventRecord, host: str) -> Answer:
    """A step of a job as the API returns it; ``host``: the name of this one in its fleet."""
    job = record.owner.removeprefix("job:")
    return answer(record, EventView, job=job, host_name=host)


def _event(record: EventRecord, host: str, *, named: bool) -> str:
    data = json.dumps(event_answer(record, host).model_dump(mode="json"))
    name = f"event: {record.step}\n" if named else ""
    return f"id: {record.id}\n{name}data: {data}\n\n"
