"""Jobs: operations that take time, run as workflows of DBOS, so that they outlive the process.

A job is a row in our state database (the request and the result) and a workflow of DBOS with the
same id. DBOS recovers workflows: the next service restarts those of a killed one. The row is
written first; at the start of the service, a row without a workflow gets one.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from lab.api.core.admission import (
    WAKE,
    Need,
    need_of,
    need_of_guest,
    need_to_branch,
    need_to_wake,
)
from lab.api.core.captures import named
from lab.api.core.core import Core
from lab.api.core.problem import internal, problem
from lab.api.core.standbys import Wanted
from lab.api.events import webhooks
from lab.api.events.eventlog import topic
from lab.api.jobs import stored
from lab.api.jobs.claim import claim
from lab.api.jobs.data import check_data, check_fleet_data, project_of
from lab.api.jobs.fetching import fetch
from lab.api.jobs.quota import Loading, limited, max_templates
from lab.api.jobs.work import ABOUT_OTHERS, ENDS, WORK, Task, lab_made_by, labs_made_by
from lab.api.telemetry.current import JOB
from lab.api.telemetry.logs import log
from lab.errors import Conflict, HostUnfit, Interrupted, LabError, NotReady
from lab.lifecycle.datasets.load import loader_size
from lab.lifecycle.nodes.inspect import running_nodes
from lab.progress import Event
from lab.request import Request
from lab.requests.datasets import CreateDataset, RefreshDataset
from lab.requests.labs import BranchLab, CreateLab, FillPool
from lab.spec import LabSpec
from lab.state.jobs import OPEN
from lab.state.service import JobRecord, JobState
from lab.units import format_duration

_OVERDUE = 30.0
"""Seconds after which a queued job without a workflow is started again."""
_THREADS = 512
"""Jobs that run, or wait for room, at the same time; each has a thread."""
_HALT_EVERY = 0.25
_WARM = 60.0
"""Seconds for the queries of a project that read its data into memory."""
_WRITES = 6
"""Attempts to record the end of a job; each waits for other writers."""
_TRIES = 20
"""How often a job is started: one that repeatedly ends the service is abandoned."""
_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
"""The states of workflows that DBOS does not continue."""
_VERSION = "1"
"""Of the workflows, not of the program: a newer program continues an older one's jobs."""

_running: Jobs | None = None


@DBOS.workflow(name="job", max_recovery_attempts=_TRIES)
def _workflow(job: str) -> None:
    _step(job)
    if _running is not None:
        _running.tell(job)


@DBOS.step(name="perform")
def _step(job: str) -> None:
    if _running is not None:
        _running.perform(job)


def _kept(name: str) -> LabError:
    """The error of a lab that failed and is kept, if the service was killed before recording it."""
    return LabError(
        f"lab {name} failed, and is kept for inspection until its lease ends",
        hint="the events of the job show its last step",
        details=["the service was killed before it recorded the error"],
    )


class _Cut(BaseException):
    """The service is stopping: the next one runs the job."""


def _late(seconds: float) -> NotReady:
    """The error of a job whose time was over; what it ran has ended by then."""
    return NotReady(
        f"the data were not loaded within {format_duration(seconds)}, the limit of this service",
        hint="load less; dataset_time of [serve] is the limit for tokens without the scope admin",
    )


class _Halt:
    """Ends a job when ``stop`` raises, or after ``seconds``, so that it is ``late``.

    It does so only once, as the undo has steps and waits too.
    """

    def __init__(self, stop: Callable[[], None], seconds: float) -> None:
        self.seconds = seconds
        self.late = False
        self._stop = stop
        self._end = time.monotonic() + seconds
        self._over = False
        self._next = 0.0

    def now(self) -> None:
        """Call ``stop``, between two steps."""
        if not self._over:
            try:
                self._stop()
                if time.monotonic() > self._end:
                    self.late = True
                    raise Interrupted("the time of the job is over")
            except Interrupted:
                self._over = True
                raise

    def soon(self) -> None:
        """Call ``stop`` during a wait, at most every ``_HALT_EVERY`` seconds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _HALT_EVERY
            self.now()


class Jobs:
    """Runs jobs, each in its own thread. One instance in a process, as of DBOS."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._store = core.store
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._left = 0
        self._idle = threading.Condition(self._lock)
        self._stopping = threading.Event()

    def open(self) -> None:
        """Start DBOS and resume the jobs of an earlier service; raises HostUnfit."""
        global _running  # noqa: PLW0603  # DBOS has one instance in a process, and so does Jobs
        settings = self.core.settings
        # Also of a host of a fleet: its jobs are nobody else's, and need no database elsewhere.
        settings.home.jobs_database.touch(mode=0o600)
        config = DBOSConfig(
            name="lab",
            system_database_url=f"sqlite:///{settings.home.jobs_database}",
            application_version=_VERSION,
            executor_id="lab",
            log_level="WARNING",
            max_executor_threads=_THREADS,
        )
        _running = self
        try:
            DBOS(config=config)
            DBOS.launch()
            webhooks.open_queue()
        except Exception as error:
            _running = None
            log.debug("DBOS does not start", exc_info=error)
            raise HostUnfit(
                f"the database of the service's jobs cannot be used: {type(error).__name__}",
                hint="check LAB_HOME",
            ) from error
        for job in self._store.jobs.open():
            self._take_up(job)

    def look_after(self) -> None:
        """Start recorded jobs whose start failed, for example because the disk was full."""
        with self._lock:
            active = set(self._active)
        for job in self._store.jobs.open():
            if job.id not in active and job.created_at < time.time() - _OVERDUE:
                self._take_up(job)

    def _take_up(self, job: JobRecord) -> None:
        """Start a job that has no workflow; fail one whose workflow ended without a result."""
        known = DBOS.get_workflow_status(job.id)
        if known is None:
            self.start(job.id)
        elif known.status in _OVER and self._store.jobs.get(job.id).state in OPEN:
            log.error("a job was abandoned", extra={"given_up": job.id, "was": known.status})
            self._end(job, "failed", job.lab, internal(), about=job.about)

    def finish(self, grace: float) -> bool:
        """Start no more jobs, and wait up to ``grace`` seconds for running ones.

        Returns False if some still run: the next service resumes them.
        """
        self._stopping.set()
        self.core.admission.changed()
        deadline = time.monotonic() + grace
        with self._idle:
            while self._active and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)
            cut = len(self._active) + self._left
        if cut:
            log.warning("unfinished jobs resume at the next start", extra={"jobs": cut})
        return not cut

    def close(self) -> None:
        """End DBOS, once all jobs are done."""
        global _running  # noqa: PLW0603  # see open
        with contextlib.suppress(Exception):
            DBOS.destroy()
        _running = None

    def start(self, job: str) -> None:
        """Start a job at once; no error if it was started already.

        While the service is stopping, the row is left to the next one.
        """
        if self._stopping.is_set():
            return
        with SetWorkflowID(job):
            DBOS.start_workflow(_workflow, job)

    def cancel(self, job: JobRecord) -> None:
        """End a job at its next step or wait, and undo its work; no error if it has ended."""
        if job.state in OPEN and self._store.jobs.find(job.id) is not None:
            self._store.jobs.update(job.id, cancel=True)
            self.core.admission.changed()

    def perform(self, identity: str) -> None:
        """Run a job until it has ended."""
        with self._idle:
            while identity in self._active:
                self._idle.wait()
            self._active.add(identity)
        token = JOB.set(identity)
        try:
            self._perform(identity)
        except _Cut:
            with self._idle:
                self._left += 1
                self._active.discard(identity)
                self._idle.notify_all()
            # The workflow must not be recorded as completed: this thread ends with the process.
            threading.Event().wait()
        finally:
            JOB.reset(token)
            with self._idle:
                self._active.discard(identity)
                self._idle.notify_all()

    def tell(self, identity: str) -> None:
        """Send the result of a job to the webhook."""
        job = self._store.jobs.find(identity)
        if job is not None and job.state not in OPEN:
            webhooks.ended(job)

    def _perform(self, identity: str) -> None:
        job = self._store.jobs.find(identity)
        if job is None or job.state not in OPEN:
            return
        self.core.job_began(job, stored.traceparent_of(job))
        state: JobState = "succeeded"
        found: dict[str, Any] | None = None
        lab, about = job.lab, job.about
        try:
            given = self._store.jobs.request(job.id)
            made = self._do(job, stored.read(job, given, WORK[job.kind].request))
            lab, about = (lab, made) if job.kind in ABOUT_OTHERS else (made, about)
        except Interrupted as error:
            state, found = "cancelled", problem(error)
        except LabError as error:
            state, found = "failed", problem(error)
        except Exception as error:  # noqa: BLE001  # any error ends the job
            log.error("a job failed", exc_info=error)
            state, found = "failed", internal()
        if job.kind in ENDS and found is None and self.core.fleet is not None:
            self.core.fleet.forget(lab)
        left = None if job.kind in ABOUT_OTHERS else lab_made_by(self._store, job.id)
        if found and left is not None:
            lab = left.name  # kept: the request had keep_failed
        self._end(job, state, lab, found, about=about)

    def _do(self, job: JobRecord, request: Request) -> str:
        core = self.core
        whole = job.kind not in ABOUT_OTHERS  # its result is one lab
        made = lab_made_by(self._store, job.id) if whole and job.state == "running" else None
        if made is not None and made.state not in ("creating", "removing"):
            if made.state == "failed":
                raise _kept(made.name)
            return made.name  # ready; the service was killed before it recorded that
        if isinstance(request, LabSpec):
            request.check()
            # Its dataset may be another's by now.
            check_fleet_data(core, project_of(core, job), request)
        need = self._need(job, request)
        if need is None:
            return self._work(job, request)
        if isinstance(request, FillPool):
            with core.admission.spare(job.id, need):
                return self._work(job, request)
        # An incomplete lab of an earlier attempt is removed first, before a pooled lab is claimed.
        if isinstance(request, CreateLab) and made is None and (name := claim(core, job, request)):
            return name
        with core.admission.enter(
            job.id, job.created_at, need, stop=lambda: self._stop(job, waiting=True)
        ):
            return self._work(job, request)

    def _need(self, job: JobRecord, request: Request) -> Need | None:
        """The resources that a job must be admitted for; None if it needs none."""
        if isinstance(request, LabSpec):
            return need_of(request)
        if guests := stored.guests_of(job):
            return sum(map(need_of_guest, guests), Need())
        if isinstance(request, CreateDataset | RefreshDataset):  # of an earlier version
            return need_of_guest(loader_size())
        if isinstance(request, BranchLab):
            there = len(labs_made_by(self._store, job.id))
            parent = self._store.lab_with_nodes(job.lab)
            return need_to_branch(parent, max(0, request.count - there))
        # An upgrade that was interrupted starts the lab, all of it if the host was started again.
        wakes = job.kind in WAKE or (job.kind == "upgrade" and job.state == "running")
        lab = self._store.labs.find(job.lab) if wakes else None
        if lab is None:
            return None
        with self.core.contexts.use() as ctx:
            running = {node.name for node in running_nodes(ctx, lab.name)}
            need = need_to_wake(self._store.lab_with_nodes(lab.name), running)
        return need if need != Need() else None

    def _work(self, job: JobRecord, request: Request) -> str:
        """Do the job's work in a context that reports its steps."""
        core, again = self.core, job.state == "running"
        halt = _Halt(lambda: self._stop(job), self._time_for(job, request))

        def hear(event: Event) -> None:
            core.job_step(job, event)
            if event.state == "begin":
                halt.now()

        self._store.jobs.update(job.id, state="running", started_at=job.started_at or time.time())
        core.events.add(job.id, Event("job", "begin", job.kind))
        owner = request.owner if isinstance(request, (CreateLab, BranchLab)) else ""
        loads = isinstance(request, CreateDataset | RefreshDataset) and limited(core, job)
        loading = Loading(core, job) if loads else None
        with (
            core.observing.working(job.lab),
            core.contexts.use(
                hear,
                halt=halt.soon,
                origin=stored.origin_of(job, request, self._store.tokens.find(job.token)),
                owner=owner,
                templates=max_templates(core, job),
                data=loading,
                warm=_WARM if limited(core, job) else None,
                above=self._above(request),
            ) as ctx,
        ):
            try:
                if isinstance(request, LabSpec) and core.fleet is not None:
                    project = project_of(core, job)
                    fetch(ctx, core.fleet, request, project)
                    check_data(self._store, project, request)
                return WORK[job.kind].run(ctx, Task(job, request, again))
            except Interrupted:
                if halt.late:
                    raise _late(halt.seconds) from None
                raise
            finally:
                if loading:
                    loading.ended()

    def _above(self, request: Request) -> int:
        """The latest version of a dataset that is made, on the other hosts of the fleet."""
        fleet = self.core.fleet
        if fleet is None or not isinstance(request, CreateDataset | RefreshDataset):
            return 0
        return max((version.version for _, version in named(fleet, request.name)), default=0)

    def _time_for(self, job: JobRecord, request: Request) -> float:
        """Seconds that a job may run; infinite if there is no limit."""
        loads = isinstance(request, CreateDataset | RefreshDataset)
        limit = self.core.settings.serve.dataset_time if loads and limited(self.core, job) else 0.0
        return limit or math.inf

    def _stop(self, job: JobRecord, *, waiting: bool = False) -> None:
        """Raise if the job must stop; ``waiting``: it has not started."""
        if waiting and self._stopping.is_set():
            raise _Cut
        if job.kind == "fill" and self._stopping.is_set():
            raise Interrupted("the service is stopping")
        found = self._store.jobs.find(job.id)
        if found is not None and found.cancel:
            raise Interrupted("the job was cancelled")

    def _end(
        self,
        job: JobRecord,
        state: JobState,
        lab: str,
        found: dict[str, Any] | None,
        *,
        about: str = "",
    ) -> None:
        core, now = self.core, time.time()
        core.events.flush()
        how = "end" if state == "succeeded" else "fail"
        for left in reversed(range(_WRITES)):
            try:
                with self._store.transaction():
                    self._store.jobs.update(
                        job.id, state=state, lab=lab, about=about, ended_at=now, error=found
                    )
                    self._store.jobs.drop_request(job.id)
                    self._store.events.add(topic(job.id), "job", how, state, now - job.created_at)
                break
            except Conflict:  # other writers hold the database
                if not left:
                    raise
        self._ended(self._store.jobs.get(job.id))

    def _ended(self, job: JobRecord) -> None:
        """Report the end of a job, and wake all requests that wait for it."""
        core, error = self.core, (job.error or {}).get("type", "")
        log.info(
            "job ended",
            extra={"kind": job.kind, "state": job.state, "lab": job.lab, "error": error},
        )
        core.job_ended(job)
        core.observing.observer.changed(job.lab)
        core.admission.changed()
        if core.fleet is not None:
            core.fleet.changed.set()
            core.fleet.wake.set()
            if job.kind in ABOUT_OTHERS:  # such as a dataset that other hosts can have now
                core.fleet.has.set()
        if job.kind == "reset" and job.state == "succeeded" and not job.facts.get("once"):
            created = job.facts.get("created_at")
            core.standbys.want(Wanted(job.lab, created, job.token))
        if job.kind == "fill":
            core.pool.filled(stored.pool_of(job), failed=job.state == "failed")
        if core.pool.pools:
            core.pool.wake.set()
        core.notifier.notify(topic(job.id))
