"""What all requests share: the record, contexts, jobs, events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lab.api.background import webhooks
from lab.api.background.idle import IdleWatch
from lab.api.background.periodic import end
from lab.api.background.pool import Pool
from lab.api.background.poolkeeper import PoolKeeper
from lab.api.background.sweeper import Sweeper
from lab.api.events.eventlog import EventLog, topic
from lab.api.events.notifier import Bell
from lab.api.http.limits import Seats
from lab.api.jobs.admission import Admission
from lab.api.jobs.contexts import Contexts, Opener
from lab.api.jobs.jobs import Jobs
from lab.api.telemetry.logs import log
from lab.api.telemetry.metrics import Metrics
from lab.api.telemetry.trace import open_trace
from lab.config.settings import Settings
from lab.errors import LabError
from lab.lifecycle.core.context import open_context
from lab.locks.named import lock
from lab.progress import Event
from lab.state.opening import open_store
from lab.state.records import JobRecord
from lab.storage import Space

if TYPE_CHECKING:
    from lab.api.telemetry.spans import Trace

SPACE_SECONDS = 10.0
_PATIENCE = 3.0
"""Seconds that all but jobs may take to end, together."""


class Service:
    """The running service. ``open`` and ``close`` it once; ``opener`` opens its contexts."""

    def __init__(self, settings: Settings, opener: Opener = open_context) -> None:
        self.settings = settings
        settings.home.create()
        self.store = open_store(settings.home)
        self.store.labs.suggests = False  # as in contexts
        self.bell = Bell()
        self.contexts = Contexts(settings, opener)
        self.events = EventLog(self.store, self.bell)
        self.metrics = Metrics()
        self.pool = Pool(self)
        self.keeper = PoolKeeper(self)
        self.admission = Admission(settings, self.store, pressed=self.keeper.rounds.wake)
        self.jobs = Jobs(self)
        self.sweeper = Sweeper(self)
        self.idle = IdleWatch(self)
        self._rounds = (self.sweeper.rounds, self.keeper.rounds, self.idle.rounds)
        self.trace: Trace | None = None
        self.stopping = threading.Event()
        self.ready = False
        self._looking = threading.Lock()
        self._space: tuple[float, Space | None] = (-SPACE_SECONDS, None)
        self.requests = Seats(192, "requests are being answered", 2000)
        self.programs = Seats(16, "programs run in nodes", 64)
        self.followers = Seats(16, "logs are followed", 64)
        self.streams = Seats(64, "streams of events are open", 400)
        self.waits = Seats(64, "requests wait", 400)
        self.sweeps = Seats(1, "clearing up goes on", 1)
        self.transfers = Seats(4, "archives are on their way", 4)
        self.tunnels = Seats(16, "tunnels lead into nodes", 64)
        self._alone = ExitStack()

    def open(self) -> None:
        """Start; raises HostUnfit if this host cannot run labs, Busy if another service does."""
        # Two would do the same jobs at the same time.
        self._alone.enter_context(lock(self.settings.home, "state", "serve", wait=False))
        with self.contexts.use() as ctx:
            ctx.hypervisor.capabilities()
        self.pool.check()
        webhooks.open_webhook(self.settings.serve)
        self.trace = open_trace(self.settings.serve)
        self.jobs.open()
        self.keeper.rounds.wake()  # pools are looked at from the start on
        for rounds in self._rounds:
            rounds.start()
        self.ready = True

    def stop(self) -> None:
        """Take no more requests: those who wait for events are let go."""
        self.ready = False
        self.stopping.set()
        self.bell.close()

    def close(self, grace: float = 10.0) -> None:
        """End, in ``grace`` seconds for jobs and a few more for all else.

        Labs go on. Jobs that are not done are left to the next service, and so is a round that
        takes longer: what it did not get to is seen again.
        """
        self.stop()
        for rounds in self._rounds:
            rounds.stop()
        parts: dict[str, Callable[[], object]] = {
            "sweeper": self.sweeper.rounds.join,
            "pool": self.keeper.rounds.join,
            "idle": self.idle.rounds.join,
        }
        if self.jobs.finish(grace):
            parts["jobs"] = self.jobs.close
        parts |= {"events": self.events.close, "contexts": self.contexts.close}
        if self.trace:
            parts["trace"] = self.trace.close
        end(parts, _PATIENCE)
        self.store.close()
        self._alone.close()

    def heard(self, job: JobRecord, event: Event) -> None:
        """A step of a job."""
        self.events.add(job.id, event)
        self.metrics.step(job, event)
        if self.trace:
            self.trace.step(job, event)

    def began(self, job: JobRecord) -> None:
        """A job is being done from now on."""
        if self.trace:
            self.trace.job_began(job)

    def space(self) -> Space | None:
        """The storage's space, as it was within the last ``SPACE_SECONDS``; None: not known.

        Asking costs: ZFS runs a program for it.
        """
        with self._looking:
            at, found = self._space
            if time.monotonic() - at >= SPACE_SECONDS:
                try:
                    with self.contexts.use() as ctx:
                        found = ctx.storage.space()
                except LabError as error:
                    log.warning("the space left is not known", extra={"error": error.what})
                    found = None
                self._space = (time.monotonic(), found)
            return found

    def ended(self, job: JobRecord) -> None:
        """A job has ended, and its record says how."""
        error = (job.error or {}).get("type", "")
        log.info(
            "job ended",
            extra={"kind": job.kind, "state": job.state, "lab": job.lab, "error": error},
        )
        self.metrics.ended(job)
        if self.trace:
            self.trace.job_ended(job)
        self.admission.changed()
        self.keeper.ended(job)
        self.bell.ring(topic(job.id))
