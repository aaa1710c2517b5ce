"""Jobs of the service, and their events as they happen."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from lab.client.models import Job, read
from lab.client.transport import Wire, path_of
from lab.errors import LimitReached, NotReady
from lab.progress import Event, Listener
from lab.values import dataclass
from lab.wait import Deadline

AT_ONCE = 30.0
"""Seconds that one request waits for a job before we ask again."""
_LIMITED = 1.0
"""Seconds between two requests while the service refuses to wait."""
_LONG = 366 * 86400.0


@dataclass
class _Heard:
    """The events of a job so far: the last id, the current step, whether it was the end."""

    last: int = 0
    doing: str = ""
    ended: bool = False


class Jobs:
    """The jobs of a service; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get(self, job: str, *, wait: float = 0.0) -> Job:
        """A job; once it has ended, or as it is after ``wait`` seconds. Raises NotFound."""
        query = {"wait": int(wait)} if wait >= 1 else {}
        return read(self._wire.ask("GET", path_of("jobs", job), query=query, allow=wait).body, Job)

    def cancel(self, job: str) -> Job:
        """Cancel a job: it ends at its next step and is undone; nothing happens if it has ended."""
        answer = self._wire.ask("POST", path_of("jobs", job, "cancel"), twice=True)
        return read(answer.body, Job)

    def follow(
        self, job: str, listener: Listener | None = None, *, timeout: float | None = None
    ) -> Job:
        """The job once it has ended, in any state; ``listener`` is called with its steps.

        Resumes if the connection breaks or the service is restarted. Raises NotReady if the job
        has not ended after ``timeout`` seconds; the job continues.
        """
        deadline = deadline_of(timeout)
        so_far = _Heard()
        while True:
            pause = AT_ONCE
            if listener is not None:
                pause = self._hear(job, so_far, listener, deadline)
            wait, asked = min(pause, deadline.left), time.monotonic()
            try:
                found = self.get(job, wait=wait)
            except LimitReached as error:  # too many requests of the token: the job continues
                if deadline.passed:
                    raise
                time.sleep(min(error.retry_after or AT_ONCE, deadline.left))
                continue
            if found.over:
                if listener is not None and not so_far.ended:  # the stream broke before its end
                    self._hear(job, so_far, listener, deadline)
                return found
            if deadline.passed:
                raise NotReady(
                    f"the job {job} ({found.kind} {found.lab or found.about}) has not ended after"
                    f" {round(timeout or 0.0, 1):g} s",
                    details=[so_far.doing] if so_far.doing else [],
                    begun=True,
                )
            # The stream broke, the service is about to end, or the token has too many waits.
            limited = wait >= 1 and time.monotonic() - asked < 1
            time.sleep(_LIMITED if limited else 0.1)

    def done(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        timeout: float | None,
        listener: Listener | None,
        body: object = None,
    ) -> None:
        """Send a request that may start a job, and return once that has ended; raises its error."""
        deadline = deadline_of(timeout)
        wait = 0.0 if listener else min(AT_ONCE, deadline.left)
        answer = self._wire.ask(method, path, body=body, query=query, wait=wait)
        if answer.status == 202:
            self.follow(read(answer.body, Job).id, listener, timeout=deadline.left).check()

    def _hear(self, job: str, so_far: _Heard, listener: Listener, deadline: Deadline) -> float:
        """Pass on events of a job after those in ``so_far``, until the stream ends or breaks.

        Returns the seconds until the next try: the token may have too many streams.
        """
        try:
            self._listen(job, so_far, listener, deadline)
        except LimitReached as error:
            return error.retry_after or AT_ONCE
        return 0.0

    def _listen(self, job: str, so_far: _Heard, listener: Listener, deadline: Deadline) -> None:
        path = path_of("jobs", job, "events")
        with closing(self._wire.stream(path, after=so_far.last, silence=deadline.left)) as events:
            for event in events:
                so_far.last = event.id
                if event.step == "job":
                    so_far.ended = event.state != "begin"
                    if so_far.ended:
                        return
                    continue
                so_far.doing = event.text or event.step
                listener(Event(event.step, event.state, event.text, event.seconds))
                if deadline.passed:
                    return


def deadline_of(timeout: float | None) -> Deadline:
    """``timeout`` seconds from now; None: so far away that it is none."""
    return Deadline.after(_LONG if timeout is None else timeout)
