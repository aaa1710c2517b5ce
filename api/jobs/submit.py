"""New jobs, requested with a token or by the service itself."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lab import host
from lab.api.core.core import Core
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.stored import GUESTS_KEY, TRACEPARENT_KEY, facts, plain, subject_of
from lab.api.jobs.work import KINDS
from lab.api.telemetry.current import TRACEPARENT
from lab.errors import Busy, InvalidSpec, LimitReached
from lab.fleet import ids
from lab.request import Request
from lab.sizes import NodeSize
from lab.state.service import JobKind, JobRecord, NewJob, TokenRecord
from lab.units import format_size

_RETRY = 10.0
_ONCE: tuple[JobKind, ...] = (
    "delete",
    "delete-image",
    "delete-template",
    "delete-snapshot",
    "delete-dataset",
    "prune-snapshots",
)
"""Kinds of which a new request returns an equal job that has not ended."""


_FILL: tuple[JobKind, ...] = (
    "create", "branch", "snapshot", "build-image", "build-template", "create-dataset",
    "refresh-dataset", "upgrade",
)  # fmt: skip
"""Kinds that need space; others are accepted also where there is none."""

_ALONE: tuple[JobKind, ...] = (
    "start", "stop", "restart", "sleep", "wake", "snapshot", "rollback", "reset", "branch",
    "promote", "upgrade",
)  # fmt: skip
"""Kinds that run one at a time on a lab, jobs of its schedule included."""


class KeyReused(InvalidSpec):
    """An Idempotency-Key was used before, with a different request."""


def new_job(
    token: TokenRecord,
    request: Request,
    *,
    project: str | None = None,
    key: str | None = None,
    guests: Sequence[NodeSize] = (),
) -> NewJob:
    """A job requested with ``token``; it is not recorded yet. ``project``: the token's if None.

    ``guests``: those that the job runs further to the nodes of labs.
    """
    return NewJob(
        project=token.project if project is None else project,
        token=token.id,
        **_asked(request, guests),
        digest=digest_of(request),
        key=key,
    )


def digest_of(request: Request) -> str:
    """A hash that is equal for equal requests, in all versions of the service."""
    kind, (lab, about) = KINDS[type(request)], subject_of(request)
    text = json.dumps([kind, lab, *([about] if about else []), plain(request)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def service_job(request: Request, *, project: str = "", guests: Sequence[NodeSize] = ()) -> NewJob:
    """A job of the service itself; it is not recorded yet. ``guests``: see ``new_job``."""
    return NewJob(project=project, token="", **_asked(request, guests), digest="")


def _asked(request: Request, guests: Sequence[NodeSize]) -> dict[str, Any]:
    """The fields of a new job that follow from what is asked for, and now."""
    fields, (lab, about) = plain(request), subject_of(request)
    known = facts(request)
    if guests:
        known[GUESTS_KEY] = [[one.memory, one.cpus] for one in guests]
    return {
        "id": str(uuid.uuid4()),
        "kind": KINDS[type(request)],
        "lab": lab,
        "about": about,
        "state": "queued",
        "request": fields,
        "facts": known,
        "size": len(json.dumps(fields)),
        "created_at": time.time(),
    }


def submit(jobs: Jobs, job: NewJob, check: Callable[[], None] = lambda: None) -> JobRecord:
    """Record a job and start it; if its Idempotency-Key was used before, return that job.

    ``check`` raises to refuse a new job; it runs in the transaction that records it. Raises
    KeyReused, Busy while another job runs on the same lab, LimitReached if the token has too many
    jobs or sends them too fast, HostUnfit if there is no space for what it would make.
    """
    store, fleet = jobs.core.store, jobs.core.fleet
    if fleet is not None and ids.host_of(job.id, ()) is None:
        job = replace(job, id=ids.job_id(fleet.name))
    with store.transaction():
        before = store.jobs.by_key(job.token, job.key) if job.key else None
        if before is not None:
            if before.digest != job.digest:
                raise KeyReused(
                    "this Idempotency-Key was used before with a different request",
                    hint="use a new key for each new request",
                )
            return before
        unfinished = store.jobs.open()
        for other in unfinished:
            if job.kind in _ONCE and other.project == job.project and _same(other, job):
                return other  # an equal request: one job serves both
        _check_alone(job, unfinished)
        if job.token:
            _check_token(jobs.core, job, unfinished)
        check()
        if parent := TRACEPARENT.get():  # not in the digest: a retry has another
            job = replace(job, facts={**job.facts, TRACEPARENT_KEY: parent})
        store.jobs.add(job)
    jobs.start(job.id)
    return job


def _same(one: JobRecord, other: JobRecord) -> bool:
    return (one.kind, one.digest) == (other.kind, other.digest)


def _check_alone(job: JobRecord, unfinished: Sequence[JobRecord]) -> None:
    """Raise Busy if ``job`` and one of ``unfinished`` need exclusive use of the same lab."""
    for other in unfinished:
        if job.kind in _ALONE and other.kind in _ALONE and other.lab == job.lab:
            raise Busy(
                f"the lab {job.lab} is busy: the job {other.id} ({other.kind}) has not ended",
                hint="try again when it ends: the page Jobs shows and cancels it, as do"
                f" GET /v1/jobs/{other.id}?wait=60 and POST /v1/jobs/{other.id}/cancel",
            )


def _check_token(core: Core, job: NewJob, unfinished: Sequence[JobRecord]) -> None:
    """Raise LimitReached or HostUnfit if the token of ``job`` may not submit it now."""
    serve, settings = core.settings.serve, core.settings
    _check_number(job, unfinished, serve.token_jobs)
    token = core.store.tokens.find(job.token)
    if token is None or token.scope != "admin":
        own = [other.size for other in unfinished if other.token == job.token]
        check_kept(core, token, [job.size, *own])
        core.limits.submissions.use(job.token)
    if job.kind in _FILL:
        home = settings.home.root
        host.check_space(shutil.disk_usage(home).free, settings.space_floor, home)


def check_kept(core: Core, token: TokenRecord | None, sizes: Sequence[int]) -> None:
    """Raise LimitReached if the requests of a token's open jobs may not have ``sizes`` bytes."""
    kept, most = sum(sizes), core.settings.serve.token_requests
    if most and kept > most and (token is None or token.scope != "admin"):
        raise LimitReached(
            f"the requests of this token's open jobs would have {format_size(kept)},"
            f" {format_size(most)} is the limit",
            hint="wait for the jobs, or send less with a request",
            retry_after=_RETRY,
        )


def _check_number(job: JobRecord, unfinished: Sequence[JobRecord], most: int) -> None:
    """Raise LimitReached if the token of ``job`` has too many in ``unfinished``."""
    if job.kind in _ONCE:
        return
    check_number(
        sum(other.token == job.token and other.kind not in _ONCE for other in unfinished), most
    )


def check_number(own: int, most: int) -> None:
    """Raise LimitReached if a token that has ``own`` open jobs may have no more."""
    if own >= most:
        raise LimitReached(
            f"this token has {own} jobs that have not ended, its limit is {most}",
            hint="wait for them, or cancel some; the page Jobs, or GET /v1/jobs, lists the jobs",
            retry_after=_RETRY,
        )
