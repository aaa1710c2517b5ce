"""What all parts of the service share, opened once and handed to each of them."""

from __future__ import annotations

import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING

from lab.api.core.admission import Admission
from lab.api.core.contexts import Contexts, Opener
from lab.api.core.known import KnownTokens
from lab.api.core.limits import Limits
from lab.api.core.observing import Observing
from lab.api.core.pool import Pool
from lab.api.core.standbys import Standbys
from lab.api.events.eventlog import EventLog
from lab.api.events.notifier import Notifier
from lab.api.telemetry.logs import log
from lab.api.telemetry.metrics import Metrics
from lab.api.telemetry.trace import open_trace
from lab.config.settings import Settings
from lab.errors import LabError
from lab.progress import Event
from lab.state import open_store
from lab.state.service import JobRecord
from lab.state.store import Store
from lab.storage import Space
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.api.core.fleet import Fleet
    from lab.api.telemetry.spans import Trace


SPACE_SECONDS = 10.0
"""Seconds that a measured value is used for: ZFS runs a program for each."""


class CachedSpace:
    """The storage's space. Safe for use by several threads."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._lock = threading.Lock()
        self._found: tuple[float, Space | None] = (-SPACE_SECONDS, None)

    def get(self) -> Space | None:
        """The space as it was within the last ``SPACE_SECONDS``; None if it is not known."""
        with self._lock:
            at, found = self._found
            if time.monotonic() - at >= SPACE_SECONDS:
                try:
                    with self._contexts.use() as ctx:
                        found = ctx.storage.space()
                except LabError as error:
                    log.warning("cannot read the storage's free space", extra={"error": error.what})
                    found = None
                self._found = (time.monotonic(), found)
            return found


@dataclass(frozen=True)
class Core:
    """The record, contexts of the lifecycle, what is observed, events, figures and limits."""

    settings: Settings
    store: Store
    contexts: Contexts
    notifier: Notifier
    events: EventLog
    metrics: Metrics
    trace: Trace | None
    """None unless spans are exported."""
    pool: Pool
    admission: Admission
    space: CachedSpace
    observing: Observing
    limits: Limits
    fleet: Fleet | None = None
    """None unless this host belongs to one."""
    standbys: Standbys = field(default_factory=Standbys)
    known: KnownTokens = field(default_factory=KnownTokens)
    loads: dict[str, int] = field(default_factory=dict)
    """Bytes of SQL that running jobs have read so far, by the job's id."""
    ready: threading.Event = field(default_factory=threading.Event)
    """Set while requests are accepted."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set from the moment when the service begins to end."""

    def job_began(self, job: JobRecord, traceparent: str) -> None:
        """A job begins to run; ``traceparent``: the span that its span is a child of, or empty."""
        if self.trace:
            self.trace.job_began(job, traceparent)

    def job_step(self, job: JobRecord, event: Event) -> None:
        """A step of a job began, ended or failed, or said something."""
        self.events.add(job.id, event)
        self.metrics.step(job, event)
        if self.trace:
            self.trace.step(job, event)

    def job_ended(self, job: JobRecord) -> None:
        """A job has ended, and its record says how."""
        self.metrics.ended(job)
        if self.trace:
            self.trace.job_ended(job)


def open_core(settings: Settings, opener: Opener, trace: Trace | None = None) -> Core:
    """The core of a service; ``opener`` opens contexts, ``trace`` replaces that of the settings.

    Raises HostUnfit, and InvalidSpec if a file of a pool cannot be used.
    """
    pool = Pool(settings.warm_pools())
    settings.home.create()
    trace = trace or open_trace(settings.serve)
    store = open_store(settings.home)
    store.labs.suggests = False  # as in contexts
    notifier, contexts, standbys = Notifier(), Contexts(settings, opener), Standbys()

    def pressed() -> None:
        pool.wake.set()
        standbys.wake.set()

    return Core(
        settings=settings,
        store=store,
        contexts=contexts,
        notifier=notifier,
        events=EventLog(store, notifier),
        metrics=Metrics(),
        trace=trace,
        pool=pool,
        admission=Admission(settings, store, pressed=pressed),
        space=CachedSpace(contexts),
        observing=Observing(settings, store, contexts),
        limits=Limits(settings.serve.token_rate),
        fleet=_fleet(settings),
        standbys=standbys,
    )


def _fleet(settings: Settings) -> Fleet | None:
    if not settings.serve.database:
        return None
    from lab.api.core.fleet import Fleet

    return Fleet(settings)
