"""What all requests share: the record, contexts, jobs, events."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from api import webhooks
from api.admission import Admission
from api.bell import Bell
from api.contexts import Contexts, Opener
from api.eventlog import EventLog, topic
from api.jobs import Jobs
from api.logs import log
from api.metrics import Metrics
from api.sweeper import Sweeper
from lab.lifecycle.context import open_context
from lab.locks import lock
from lab.progress import Event
from lab.settings import Settings
from lab.state.opening import open_store
from lab.state.records import JobRecord


class Service:
    """The running service. ``open`` and ``close`` it once; ``opener`` opens its contexts."""

    def __init__(self, settings: Settings, opener: Opener = open_context) -> None:
        self.settings = settings
        settings.home.create()
        self.store = open_store(settings.home)
        self.bell = Bell()
        self.contexts = Contexts(settings, opener)
        self.events = EventLog(self.store, self.bell)
        self.metrics = Metrics()
        self.admission = Admission(settings, self.store)
        self.jobs = Jobs(self)
        self.sweeper = Sweeper(self)
        self.stopping = threading.Event()
        self.ready = False
        self.followers = 0  # of logs; counted in the loop only
        self._alone = ExitStack()

    def open(self) -> None:
        """Start; raises HostUnfit if this host cannot run labs, Busy if another service does."""
        # Two would do the same jobs at the same time.
        self._alone.enter_context(lock(self.settings.home, "state", "serve", wait=False))
        with self.contexts.use() as ctx:
            ctx.hypervisor.capabilities()
        webhooks.open_webhook(self.settings.serve)
        self.jobs.open()
        self.sweeper.start()
        self.ready = True

    def stop(self) -> None:
        """Take no more requests: those who wait for events are let go."""
        self.ready = False
        self.stopping.set()
        self.bell.close()

    def close(self) -> None:
        """End. Labs go on; jobs that are not done are left to the next service."""
        self.stop()
        self.sweeper.stop()
        self.jobs.close()
        self.events.close()
        self.contexts.close()
        self.store.close()
        self._alone.close()

    def heard(self, job: JobRecord, event: Event) -> None:
        """A step of a job."""
        self.events.add(job.id, event)
        self.metrics.step(job.kind, event)

    def ended(self, job: JobRecord) -> None:
        """A job has ended, and its record says how."""
        error = (job.error or {}).get("type", "")
        log.info(
            "job ended",
            extra={"kind": job.kind, "state": job.state, "lab": job.lab, "error": error},
        )
        self.metrics.ended(job)
        self.admission.changed()
        self.bell.ring(topic(job.id))
