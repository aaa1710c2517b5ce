"""Answers that depend on how a job goes: at once, or once it has ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from lab.api.events.eventlog import topic
from lab.api.events.notifier import Ear
from lab.api.http import problems
from lab.api.http.auth import Caller
from lab.api.http.models import Job
from lab.api.http.problems import Changed
from lab.api.http.units import IN_SECONDS, Seconds
from lab.api.service import Service
from lab.errors import LimitReached
from lab.state.jobs import OPEN
from lab.state.records import JobRecord, LabRecord

T = TypeVar("T")

LONGEST_WAIT = 600
ID_LIMIT = (1 << 63) - 1
"""The largest id that a database counts to."""
WAIT_TEXT = f"Answer once it is done, or after so long, {IN_SECONDS}."
_LOOK_EVERY = 2.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")


_Wanted = Annotated[Seconds, Field(ge=0, le=LONGEST_WAIT)]


@dataclass(frozen=True)
class Waiter:
    """Who sent ``request``, and waits for its answer for at most ``seconds``.

    A token has so many waits at a time; more requests are answered at once.
    """

    request: Request
    seconds: float

    async def until(
        self,
        service: Service,
        topic: str,
        look: Callable[[], T],
        over: Callable[[T], bool],
        every: float = _LOOK_EVERY,
    ) -> T:
        """What ``look`` gives, in a thread, when ``topic`` rings or ``every`` so many seconds.

        Until that is ``over``, or the time is, or the client has gone.
        """
        caller: Caller = self.request.state.caller
        deadline = time.monotonic() + self.seconds
        with ExitStack() as stack:
            ear = stack.enter_context(service.bell.listen(topic))
            gone = asyncio.ensure_future(_gone(self.request, ear)) if self.seconds else None
            try:
                if self.seconds:
                    stack.enter_context(service.waits.seat(caller.token.id))
            except LimitReached:
                deadline = 0.0
            if gone is not None:
                stack.callback(gone.cancel)
            while True:
                found = await run_in_threadpool(look)
                left = deadline - time.monotonic()
                if over(found) or left <= 0 or service.stopping.is_set():
                    return found
                if gone is not None and gone.done():
                    return found
                await ear.wait(min(left, every))

    async def ended(self, service: Service, job: str) -> JobRecord:
        """The job once it has ended, or as it is when the wait is over."""
        get = partial(service.store.jobs.get, job)
        return await self.until(service, topic(job), get, lambda found: found.state not in OPEN)


async def _gone(request: Request, ear: Ear) -> None:
    """Wake ``ear`` when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    ear.wake()


async def _waiter(
    request: Request,
    wait: Annotated[_Wanted | None, Query(description=WAIT_TEXT)] = None,
    prefer: Annotated[str | None, Header(description="RFC 7240.", examples=["wait=30"])] = None,
) -> Waiter:
    if wait is not None:
        return Waiter(request, wait)
    match = _WAIT.search(prefer or "")
    return Waiter(request, min(float(match[1]), LONGEST_WAIT) if match else 0.0)


Wait = Annotated[Waiter, Depends(_waiter)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="A request that is sent again with the same key is the same job.",
    ),
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="The ETag that it must have still.")
]


def etag(lab: LabRecord) -> str:
    """What changes whenever something of a lab does that can be changed."""
    lease = (lab.expires_at, lab.protected, lab.idle)
    return tag_of(lab.name, lab.created_at, lab.state, *lease, lab.job)


def tag_of(*facts: object) -> str:
    """An ETag that changes with any of ``facts``."""
    return f'"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}"'


def check_match(lab: LabRecord, given: str | None) -> None:
    """Raise Changed unless ``given``, an If-Match, tells of the lab as it is."""
    check_tag(f"the lab {lab.name}", etag(lab), given)


def check_tag(what: str, tag: str, given: str | None) -> None:
    """Raise Changed unless ``given``, an If-Match, holds ``tag``."""
    if given is None or given.strip() == "*":
        return
    if tag not in [one.strip() for one in given.split(",")]:
        raise Changed(f"{what} was changed meanwhile", hint="get it anew")


async def outcome(
    service: Service,
    job: JobRecord,
    waiter: Waiter,
    done: Callable[[JobRecord], Response],
) -> Response:
    """202 with the job, or what ``done`` makes of it if it succeeds while ``waiter`` waits."""
    job = await waiter.ended(service, job.id)
    location = {"Location": f"/v1/jobs/{job.id}"}
    if job.state in OPEN:
        return JSONResponse(Job.of(job).model_dump(mode="json"), status_code=202, headers=location)
    if job.error is not None:
        return problems.respond(job.error, location, job=job.id)
    return await run_in_threadpool(done, job)
