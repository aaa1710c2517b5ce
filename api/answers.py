"""Answers that depend on how a job goes: at once, or once it has ended."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Query
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api import problems
from api.eventlog import topic
from api.models import Job
from api.problems import Changed
from api.service import Service
from lab.state.jobs import OPEN
from lab.state.records import JobRecord, LabRecord

LONGEST_WAIT = 600
ID_LIMIT = (1 << 63) - 1
"""The largest id that a database counts to."""
WAIT_TEXT = "Answer once the job has ended, or after so many seconds."
_LOOK_EVERY = 2.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")


def _wait(
    wait: Annotated[
        int | None,
        Query(
            ge=0,
            le=LONGEST_WAIT,
            description=WAIT_TEXT,
        ),
    ] = None,
    prefer: Annotated[str | None, Header(description="RFC 7240.", examples=["wait=30"])] = None,
) -> float:
    if wait is not None:
        return wait
    match = _WAIT.search(prefer or "")
    return min(float(match[1]), LONGEST_WAIT) if match else 0.0


Wait = Annotated[float, Depends(_wait)]
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
    seconds: float,
    done: Callable[[JobRecord], Response],
) -> Response:
    """202 with the job, or what ``done`` makes of it if it succeeds within ``seconds``."""
    job = await ended(service, job.id, seconds)
    location = {"Location": f"/v1/jobs/{job.id}"}
    if job.state in OPEN:
        return JSONResponse(Job.of(job).model_dump(), status_code=202, headers=location)
    if job.error is not None:
        return problems.respond(job.error, location, job=job.id)
    return await run_in_threadpool(done, job)


async def ended(service: Service, identity: str, seconds: float) -> JobRecord:
    """The job once it has ended, or as it is after ``seconds``."""
    deadline = time.monotonic() + seconds
    with service.bell.listen(topic(identity)) as ear:
        while True:
            job = await run_in_threadpool(service.store.jobs.get, identity)
            left = deadline - time.monotonic()
            if job.state not in OPEN or left <= 0 or service.stopping.is_set():
                return job
            await ear.wait(min(left, _LOOK_EVERY))
