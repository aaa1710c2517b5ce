"""The requests of jobs, as they are kept: in a table that only the job reads, until it has ended.

What others need of a request is in the row of the job: ``facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from lab import request as requests
from lab.errors import InvalidSpec
from lab.lifecycle.core.context import Origin
from lab.request import Request
from lab.requests.datasets import CreateDataset
from lab.requests.labs import CreateLab, FillPool
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.state.service import JobRecord, TokenRecord

TRACEPARENT_KEY = "traceparent"
"""The key of a job's facts that holds the traceparent of the HTTP request."""

GUESTS_KEY = "guests"
"""The key of a job's facts that holds memory and processors of its guests; see ``guests_of``."""

_LARGE_OPTIONS = ("set", "my_cnf", "init", "user", "on")
"""Options that say nothing about the number and the sizes of nodes, and may be large."""

R = TypeVar("R", bound=Request)


def read(job: JobRecord, given: Mapping[str, Any], kind: type[R]) -> R:
    """The request ``given`` of a job, or the facts of it, as a ``kind``; raises InvalidSpec."""
    values = requests.filled(kind, given)
    values |= {name: _subject(job, mark) for name, mark in requests.subject(kind).items()}
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"the request of job {job.id} ({job.kind}) is invalid: {error}") from None


def _subject(job: JobRecord, mark: requests.FieldMark) -> str:
    return job.lab if mark.kind == "lab" else job.about.partition(":")[2]


def subject_of(request: Request) -> tuple[str, str]:
    """What a job is about: the name of a lab, and what else there is, such as ``image:KEY``."""
    if isinstance(request, CreateLab):
        return request.name, ""
    if isinstance(request, CreateDataset):
        return "", f"dataset:{request.name}"
    lab = about = ""
    for name, mark in requests.subject(type(request)).items():
        if mark.kind == "lab":
            lab = getattr(request, name)
        else:
            about = f"{mark.noun}:{getattr(request, name)}"
    return lab, about


def plain(request: Request) -> dict[str, Any]:
    """``request`` as JSON, without what the row of its job says it is about."""
    found: dict[str, Any] = msgspec.to_builtins(request)
    out = requests.subject(type(request))
    kept = {key: value for key, value in found.items() if key not in out}
    return {k: v for k, v in kept.items() if v or k not in request.LATER or _is_number(v)}


def unknown(given: Mapping[str, Any], kind: type[Request]) -> set[str]:
    """The fields of a request ``given`` that say something, and that ``kind`` does not have."""
    known = {one.encode_name for one in msgspec.structs.fields(kind)}
    return {k for k, v in given.items() if k not in known and (v or _is_number(v))}


def _is_number(value: object) -> bool:
    """Whether it is a number: 0 is one that somebody gave, as no default is 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_facts(job: JobRecord, kind: type[R]) -> R:
    """The request of a job without what is ``LARGE`` in it; raises InvalidSpec."""
    return read(job, job.facts, kind)


def facts(request: Request) -> dict[str, Any]:
    """What others than its job need of a request, as JSON for the row of the job."""
    found = {name: value for name, value in plain(request).items() if name not in request.LARGE}
    if isinstance(request, LabSpec) and request.options:
        own = request.options.items()
        found["options"] = {name: value for name, value in own if name not in _LARGE_OPTIONS}
    return found


def guests_of(job: JobRecord) -> list[NodeSize]:
    """The guests that a job runs further to the nodes of labs."""
    return [NodeSize(memory, cpus) for memory, cpus in job.facts.get(GUESTS_KEY, ())]


def traceparent_of(job: JobRecord) -> str:
    """The traceparent of the HTTP request that submitted a job; empty if there is none."""
    return str(job.facts.get(TRACEPARENT_KEY, ""))


def concerns(job: JobRecord, lab: LabRecord) -> bool:
    """Whether a job about an existing lab is about ``lab``, not another of the same name."""
    return job.facts.get("created_at") in (None, lab.created_at)


def pool_of(job: JobRecord) -> str:
    """The warm pool that a job creates a member of; empty for other jobs."""
    return str(job.facts.get("pool", ""))


def origin_of(job: JobRecord, request: Request, token: TokenRecord | None) -> Origin:
    """The origin that is recorded with the lab or template that ``job`` creates.

    ``token``: the job's, None if it has none any more.
    """
    after = token.asleep_after if token else None
    if isinstance(request, CreateDataset) and request.shared:
        return Origin("", job.id)
    if not isinstance(request, CreateLab):
        return Origin(job.project, job.id, asleep_after=after)
    return Origin(
        project=job.project,
        job=job.id,
        protected=request.protected,
        heartbeat=request.heartbeat,
        pool=request.pool if isinstance(request, FillPool) else "",
        idle=request.idle,
        asleep_after=after if request.asleep_after is None else request.asleep_after,
    )
