"""Requests that create labs, images and templates, and their cancellation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lab.client.jobs import AT_ONCE, Jobs, deadline_of
from lab.client.models import Job, read, read_lab
from lab.client.transport import Answer, Wire, path_of
from lab.errors import HostUnfit, LabError, LimitReached, NotFound
from lab.progress import Listener
from lab.undo import Undo
from lab.views.labs import Lab
from lab.wait import Deadline, attempts

T = TypeVar("T")

_LIMITED = 10.0
"""Seconds of retries, while the token has too many requests, to find the job of a request."""
_UNDO = 120.0


def make(
    wire: Wire,
    jobs: Jobs,
    body: dict[str, Any],
    *,
    timeout: float | None,
    listener: Listener | None,
) -> Lab:
    """Create the lab of the request ``body``; the rest is as for ``Client.create``."""
    return _made(wire, jobs, _CreationRequest("/v1/labs", body), timeout, listener)[0]


def make_branches(
    wire: Wire,
    jobs: Jobs,
    lab: str,
    body: dict[str, Any],
    *,
    timeout: float | None,
    listener: Listener | None,
) -> list[Lab]:
    """Create the branches of ``lab`` of the request ``body``; as for ``Client.branch``."""
    return _made(
        wire, jobs, _CreationRequest(path_of("labs", lab, "branches"), body), timeout, listener
    )


@dataclass(frozen=True)
class _CreationRequest:
    """A request that creates labs: its path, its body, and the key that finds its job."""

    path: str
    body: dict[str, Any]
    key: str = field(default_factory=lambda: str(uuid.uuid4()))

    def ask(self, wire: Wire, wait: float = 0.0) -> Answer:
        """Send it, the first time or again."""
        return wire.ask("POST", self.path, body=self.body, key=self.key, wait=wait)


def _made(
    wire: Wire,
    jobs: Jobs,
    request: _CreationRequest,
    timeout: float | None,
    listener: Listener | None,
) -> list[Lab]:
    """The labs that a request creates."""
    deadline = deadline_of(timeout)
    with Undo() as undo:
        # From before the request on: an interrupt may come before its answer.
        undo.push("the request", lambda: _cancel_labs(wire, jobs, request))
        try:
            wait = 0.0 if listener else min(AT_ONCE, deadline.left)
            answer = request.ask(wire, wait)
        except LabError:
            undo.keep()  # refused, or failed and undone by the service
            raise
        if answer.status == 201:
            found = _labs(answer)
        else:
            job = jobs.follow(read(answer.body, Job).id, listener, timeout=deadline.left)
            if job.state != "succeeded":
                undo.keep()
            names = job.check().labs
            found = [read_lab(wire.ask("GET", path_of("labs", name)).body) for name in names]
        undo.keep()
    return found


def _labs(answer: Answer) -> list[Lab]:
    """The lab, or the labs, of an answer."""
    body = answer.body
    return [read_lab(one) for one in (body if isinstance(body, list) else [body])]


def _cancel_labs(wire: Wire, jobs: Jobs, request: _CreationRequest) -> None:
    """Cancel the job of a request, whether or not its answer arrived; its key finds the job."""
    deadline = Deadline.after(_LIMITED)
    try:
        for _ in attempts(deadline, first=0.5, most=5.0):
            with suppress(LimitReached):  # too many requests: retry
                answer = request.ask(wire)
                break
        else:
            answer = request.ask(wire)
    except HostUnfit:
        raise  # the service is away: the job may continue
    except LabError:
        return  # it failed and was undone by the service
    if answer.status == 201:
        names = [lab.name for lab in _labs(answer)]
    else:
        job = jobs.cancel(read(answer.body, Job).id)
        ended = jobs.follow(job.id, timeout=_UNDO)
        if ended.state != "succeeded":
            return  # the service has undone it
        names = ended.labs
    for name in names:
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
    """Build one of ``what`` (images, templates) and return it.

    The rest is as for ``Client.create``.
    """
    key = str(uuid.uuid4())
    answer, about = submitted(
        jobs,
        lambda: wire.ask("POST", path_of(what), body=body, key=key),
        timeout=timeout,
        listener=listener,
    )
    if about:
        answer = wire.ask("GET", path_of(what, about.partition(":")[2]))
    return read(answer.body, kind)


def submitted(
    jobs: Jobs, ask: Callable[[], Answer], *, timeout: float | None, listener: Listener | None
) -> tuple[Answer, str]:
    """The answer to a request that makes something, and the subject of its job once it is made.

    The subject is empty if the answer has the thing itself. ``ask`` sends the request, the first
    time or again. If this raises, the job is cancelled and undone.
    """
    deadline, about = deadline_of(timeout), ""
    with Undo() as undo:
        undo.push("the request", lambda: _cancel_build(jobs, ask))
        try:
            answer = ask()
        except LabError:
            undo.keep()  # refused
            raise
        if answer.status != 201:
            job = jobs.follow(read(answer.body, Job).id, listener, timeout=deadline.left)
            undo.keep()
            about = job.check().about
        undo.keep()
    return answer, about


def _cancel_build(jobs: Jobs, ask: Callable[[], Answer]) -> None:
    """Cancel the job that builds an image or a template, whether or not its answer arrived."""
    try:
        answer = ask()
    except HostUnfit:
        raise  # the service is away: the job may continue
    except LabError:
        return
    if answer.status != 201:
        jobs.follow(jobs.cancel(read(answer.body, Job).id).id, timeout=_UNDO)
