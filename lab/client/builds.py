"""Images and templates of the service: having them made, and called off."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from lab.client.jobs import Jobs, deadline_of
from lab.client.models import Job, read
from lab.client.transport import Answer, Wire, path_of
from lab.errors import HostUnfit, LabError
from lab.progress import Listener
from lab.undo import Undo

T = TypeVar("T")

_UNDO = 120.0


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
        undo.push("the request", lambda: _call_off(jobs, ask))
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


def _call_off(jobs: Jobs, ask: Callable[[], Answer]) -> None:
    """End the job that a request began, whether or not its answer came; its key finds it."""
    try:
        answer = ask()
    except HostUnfit:
        raise  # the service is away: what was begun may go on
    except LabError:
        return
    if answer.status != 201:
        jobs.follow(jobs.cancel(read(answer.body, Job).id).id, timeout=_UNDO)
