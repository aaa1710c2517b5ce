"""Answers to requests that start jobs, and how long they wait for the job."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from lab.api.core.core import Core
from lab.api.core.threads import in_thread
from lab.api.events.eventlog import topic
from lab.api.events.notifier import Subscription
from lab.api.http import problems
from lab.api.http.answers import Answer, answer, model
from lab.api.http.auth import Caller
from lab.api.http.units import SecondsInQuery
from lab.errors import LimitReached
from lab.request import IN_SECONDS
from lab.state.jobs import OPEN
from lab.state.service import JobRecord
from lab.values import dataclass
from lab.views.jobs import JobView

T = TypeVar("T")

LONGEST_WAIT = 600
WAIT_TEXT = f"Answer once the job has ended, or after this time, {IN_SECONDS}."
_POLL_EVERY = 2.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")


_Wanted = Annotated[SecondsInQuery, Field(ge=0, le=LONGEST_WAIT)]


@dataclass(frozen=True)
class Waiter:
    """The client of ``request``, which waits for its answer for at most ``seconds``.

    The waits of a token are limited; further requests are answered at once.
    """

    request: Request
    seconds: float

    async def until(
        self,
        core: Core,
        topic: str,
        poll: Callable[[], T],
        over: Callable[[T], bool],
        every: float = _POLL_EVERY,
    ) -> T:
        """The result of ``poll``, called in a thread at each notification about ``topic``.

        And each ``every`` seconds; until the result is ``over``, the time is, or the client has
        disconnected.
        """
        caller: Caller = self.request.state.caller
        deadline = time.monotonic() + self.seconds
        with ExitStack() as stack:
            subscription = stack.enter_context(core.notifier.subscribe(topic))
            gone = (
                asyncio.ensure_future(_gone(self.request, subscription)) if self.seconds else None
            )
            try:
                if self.seconds:
                    stack.enter_context(core.limits.waits.slot(caller.token.id))
            except LimitReached:
                deadline = 0.0
            if gone is not None:
                stack.callback(gone.cancel)
            while True:
                found = await in_thread(poll)
                left = deadline - time.monotonic()
                if over(found) or left <= 0 or core.stopping.is_set():
                    return found
                if gone is not None and gone.done():
                    return found
                await subscription.wait(min(left, every))

    async def ended(self, core: Core, job: str) -> JobRecord:
        """The job once it has ended, or as it is when the wait is over."""
        get = partial(core.store.jobs.get, job)
        return await self.until(core, topic(job), get, lambda found: found.state not in OPEN)


async def _gone(request: Request, subscription: Subscription) -> None:
    """Wake ``subscription`` when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    subscription.wake()


async def _waiter(
    request: Request,
    wait: Annotated[_Wanted | None, Query(description=WAIT_TEXT)] = None,
    prefer: Annotated[
        str | None,
        Header(
            description="Preferences such as respond-async, wait=30 (RFC 7240).",
            examples=["wait=30"],
        ),
    ] = None,
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
        description="A request that is repeated with the same key gets the same job.",
    ),
]

JOB_DONE: dict[int | str, dict[str, Any]] = {
    200: {"model": model(JobView), "description": "The job has succeeded."}
}
"""The further answer of routes whose job changes a lab, as ``job_done`` makes it."""


async def job_answer(
    core: Core,
    job: JobRecord,
    waiter: Waiter,
    done: Callable[[JobRecord], Response],
) -> Response:
    """202 with the job, or what ``done`` makes of it if it succeeds while ``waiter`` waits."""
    if job.state in OPEN:
        job = await waiter.ended(core, job.id)
    location = {"Location": f"/v1/jobs/{job.id}"}
    if job.state in OPEN:
        return job_open(job, core.settings.serve.host_name)
    if job.error is not None:
        return problems.respond(job.error, location, job=job.id)
    return await in_thread(done, job)


def job_shown(core: Core, job: JobRecord) -> Answer:
    """A job of this host as the API returns it."""
    return answer(job, JobView, host_name=core.settings.serve.host_name)


def job_open(job: JobRecord, host: str = "") -> Response:
    """A job that has not ended; ``host``: the one of the fleet that has begun it."""
    return _answer(job, host, 202, {"Location": f"/v1/jobs/{job.id}"})


def job_done(core: Core, job: JobRecord) -> Response:
    """The job itself, of a lab that it has changed."""
    host = core.settings.serve.host_name
    return _answer(job, host, 200, {"Location": f"/v1/labs/{job.lab}"})


def _answer(job: JobRecord, host: str, status: int, headers: Mapping[str, str]) -> Response:
    body = answer(job, JobView, host_name=host).model_dump(mode="json")
    return JSONResponse(body, status_code=status, headers=dict(headers))
