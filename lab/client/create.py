"""Requests that create labs, images and templates, and their cancellation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from lab.client.jobs import AT_ONCE, Jobs, deadline_of
from lab.client.models import Job, Lab, lab_of, read
from lab.client.transport import Answer, Wire, path_of
from lab.errors import HostUnfit, LabError, LimitReached, NotFound
from lab.progress import Listener
from lab.undo import Undo
from lab.wait import Deadline, attempts

T = TypeVar("T")

_LIMITED = 10.0
"""Seconds for which we ask what became of a request while our token has too many requests."""
_UNDO = 120.0


def make(
    wire: Wire,
    jobs: Jobs,
    body: dict[str, Any],
    *,
    timeout: float | None,
    listener: Listener | None,
) -> Lab:
    """The lab that ``body`` asks for, once it is ready; the rest is as for ``Client.create``."""
    key = str(uuid.uuid4())
    deadline = deadline_of(timeout)
    with Undo() as undo:
        # From before the request on: its answer may be what an interrupt loses.
        undo.push("the request", lambda: _cancel_lab(wire, jobs, body, key))
        try:
            wait = 0.0 if listener else min(AT_ONCE, deadline.left)
            answer = wire.ask("POST", "/v1/labs", body=body, key=key, wait=wait)
        except LabError:
            undo.keep()  # it was refused, or failed and left nothing but what it was to keep
            raise
        if answer.status != 201:
            job = jobs.follow(read(answer.body, Job).id, listener, timeout=deadline.left)
            if job.state != "succeeded":
                undo.keep()
            answer = wire.ask("GET", path_of("labs", job.check().lab))
        undo.keep()
    return lab_of(answer.body)


def _cancel_lab(wire: Wire, jobs: Jobs, body: dict[str, Any], key: str) -> None:
    """Undo what a request began, whether or not its answer came; the key finds its job."""
    deadline = Deadline.after(_LIMITED)
    try:
        for _ in attempts(deadline, first=0.5, most=5.0):
            with suppress(LimitReached):  # it cannot be told meanwhile what became of it
                answer = wire.ask("POST", "/v1/labs", body=body, key=key)
                break
        else:
            answer = wire.ask("POST", "/v1/labs", body=body, key=key)
    except HostUnfit:
        raise  # the service is away: what was begun may go on
    except LabError:
        return  # it failed meanwhile, and left nothing but what it was to keep
    if answer.status == 201:
        name = lab_of(answer.body).name
    else:
        job = jobs.cancel(read(answer.body, Job).id)
        ended = jobs.follow(job.id, timeout=_UNDO)
        if ended.state != "succeeded":
            return  # the service has undone it
        name = ended.lab
    with suppress(NotFound):
        jobs.done("DELETE", path_of("labs", name), {"force": "true"}, None, None)


def build(
    wire: Wire,
    jobs: Jobs,
    what: str,
    body: dict[str, Any],
    kind: type[T],
    *,
    timeout: float | None,
    listener: Listener | None,
) -> T:
    """Have one of ``what`` (images, templates) made; it, once it is there.

    The rest is as for ``Client.create``.
    """
    key = str(uuid.uuid4())
    deadline = deadline_of(timeout)

    def ask() -> Answer:
        return wire.ask("POST", path_of(what), body=body, key=key)

    with Undo() as undo:
        undo.push("the request", lambda: _cancel_build(jobs, ask))
        try:
            answer = ask()
        except LabError:
            undo.keep()  # it was refused
            raise
        if answer.status != 201:
            job = jobs.follow(read(answer.body, Job).id, listener, timeout=deadline.left)
            undo.keep()
            made = job.check().about.partition(":")[2]
            answer = wire.ask("GET", path_of(what, made))
        undo.keep()
    return read(answer.body, kind)


def _cancel_build(jobs: Jobs, ask: Callable[[], Answer]) -> None:
    """End the job that a request began, whether or not its answer came; its key finds it."""
    try:
        answer = ask()
    except HostUnfit:
        raise  # the service is away: what was begun may go on
    except LabError:
        return
    if answer.status != 201:
        jobs.follow(jobs.cancel(read(answer.body, Job).id).id, timeout=_UNDO)
