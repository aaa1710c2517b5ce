"""New jobs: asked for by a token, or by the service itself."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lab.api.telemetry.trace import TRACEPARENT
from lab.errors import Busy, InvalidSpec, LimitReached
from lab.state.records import JobKind, JobRecord

if TYPE_CHECKING:
    from lab.api.http.auth import Caller
    from lab.api.service import Service


_RETRY = 10.0
_ONCE: tuple[JobKind, ...] = (
    "delete",
    "delete-image",
    "delete-template",
    "delete-snapshot",
    "prune-snapshots",
)
"""What need not be done twice."""


_ALONE: tuple[JobKind, ...] = ("start", "stop", "restart", "snapshot", "rollback")
"""Of these a lab has one at a time, also of those that its schedule asks for."""


class KeyReused(InvalidSpec):
    """An Idempotency-Key came before, with another request."""


def new_job(
    caller: Caller,
    kind: JobKind,
    request: Mapping[str, Any],
    *,
    lab: str = "",
    about: str = "",
    project: str | None = None,
    key: str | None = None,
) -> JobRecord:
    """A job that ``caller`` asks for; it is not recorded yet."""
    asked = json.dumps([kind, lab, *([about] if about else []), request], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    return JobRecord(
        id=str(uuid.uuid4()),
        kind=kind,
        lab=lab,
        project=caller.token.project if project is None else project,
        token=caller.token.id,
        state="queued",
        request=request,
        digest=digest,
        created_at=time.time(),
        key=key,
        about=about,
    )


def new_job_of_ours(
    kind: JobKind, request: Mapping[str, Any], *, lab: str, project: str = ""
) -> JobRecord:
    """A job that nobody asked for; it is not recorded yet."""
    return JobRecord(
        id=str(uuid.uuid4()),
        kind=kind,
        lab=lab,
        project=project,
        token="",
        state="queued",
        request=request,
        digest="",
        created_at=time.time(),
    )


def submit(service: Service, job: JobRecord, check: Callable[[], None] = lambda: None) -> JobRecord:
    """Record a job and begin it; or the one that came with the same key before.

    ``check`` may refuse a new job; no other is recorded meanwhile. Raises KeyReused, Busy while
    another job works on the same lab, LimitReached if the token has too many jobs.
    """
    with service.store.transaction():
        before = service.store.jobs.by_key(job.token, job.key) if job.key else None
        if before is not None:
            if before.digest != job.digest:
                raise KeyReused(
                    "this Idempotency-Key came with another request before",
                    hint="a new request takes a new key",
                )
            return before
        open_ = service.store.jobs.open()
        for other in open_:
            if job.kind in _ONCE and other.project == job.project and _same(other, job):
                return other  # what was asked for is being done
        _check_alone(job, open_)
        if job.token:
            _check_number(job, open_, service.settings.serve.token_jobs)
        check()
        if parent := TRACEPARENT.get():  # not in the digest: a retry has another
            job = replace(job, request={**job.request, "traceparent": parent})
        service.store.jobs.add(job)
    service.jobs.start(job.id)
    return job


def _same(one: JobRecord, other: JobRecord) -> bool:
    return (one.kind, one.digest) == (other.kind, other.digest)


def _check_alone(job: JobRecord, open_: Sequence[JobRecord]) -> None:
    """Raise Busy if one of those that are ``open_`` works on the lab, and so would ``job``."""
    for other in open_:
        if job.kind in _ALONE and other.kind in _ALONE and other.lab == job.lab:
            raise Busy(
                f"the lab {job.lab} is busy: the job {other.id} ({other.kind}) has not ended",
                hint=f"GET /v1/jobs/{other.id}?wait=60 waits for it, POST .../cancel ends it",
            )


def _check_number(job: JobRecord, open_: Sequence[JobRecord], most: int) -> None:
    """Raise LimitReached if the token of ``job`` has too many that are ``open_``."""
    own = sum(other.token == job.token and other.kind not in _ONCE for other in open_)
    if job.kind not in _ONCE and own >= most:
        raise LimitReached(
            f"this token has {own} jobs that have not ended, it may have {most}",
            hint="wait for them (GET /v1/jobs?state=queued), or cancel some",
            retry_after=_RETRY,
        )
