"""Jobs: what takes time, on DBOS, so that it outlives the process.

A job is a row of ours (who wants what, how it ended) and a workflow of DBOS with the same id, which
makes sure that it is done: one that a killed service left is begun again by the next. The row comes
first; a row without a workflow is given one at the start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dbos import DBOS, DBOSConfig, SetWorkflowID

from lab.api.background import webhooks
from lab.api.events.eventlog import topic
from lab.api.http import problems
from lab.api.http.quota import max_templates
from lab.api.jobs.admission import TAKE_ROOM, WAKE, Need, need_of, need_to_wake
from lab.api.jobs.work import ABOUT_OTHERS, WORK, Task, lab_of, origin_of, spec_of
from lab.api.telemetry.logs import JOB, log
from lab.errors import Conflict, HostUnfit, Interrupted, LabError
from lab.lifecycle import power
from lab.progress import Event
from lab.state.jobs import OPEN
from lab.state.records import JobRecord, JobState

if TYPE_CHECKING:
    from lab.api.service import Service

_OVERDUE = 30.0
"""Seconds after which a job should have been begun."""
_HALT_EVERY = 0.25
_WRITES = 6
"""How often the end of a job is tried to be recorded; each try waits for others to write."""
_TRIES = 20
"""How often a job is begun: one that takes the service down with it is given up."""
_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
"""The states of workflows that DBOS does not go on with."""
_VERSION = "1"
"""Of the workflows, not of the program: a newer program goes on with an older one's jobs."""

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
    """A lab failed and is kept, but we did not live to say so, nor why."""
    return LabError(
        f"the lab {name} failed, and is kept as it is until its lease ends",
        hint="the events of the job say how far it came",
        details=["the service was cut before it could tell why"],
    )


class _Cut(BaseException):
    """The service ends: the next one does the job."""


class _Halt:
    """Ends a job that ``stop`` raises for: once, as what is undone then has steps and waits too."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._over = False
        self._next = 0.0

    def now(self) -> None:
        """Between two steps."""
        if not self._over:
            try:
                self._stop()
            except Interrupted:
                self._over = True
                raise

    def soon(self) -> None:
        """While something is waited for, however often: looks every ``_HALT_EVERY`` seconds."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _HALT_EVERY
            self.now()


class Jobs:
    """Does jobs, each in a thread of its own. One at a time in a process, as DBOS is."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self._guard = threading.Lock()
        self._active: set[str] = set()
        self._left = 0
        self._idle = threading.Condition(self._guard)
        self._stopping = threading.Event()

    def open(self) -> None:
        """Start DBOS, and with it what an earlier service left undone; raises HostUnfit."""
        global _running  # noqa: PLW0603  # DBOS has one instance in a process, and so have we
        settings = self._service.settings
        url = settings.serve.database or f"sqlite:///{settings.home.jobs_database}"
        if not settings.serve.database:
            settings.home.jobs_database.touch(mode=0o600)
        config = DBOSConfig(
            name="lab",
            system_database_url=url,
            application_version=_VERSION,
            executor_id="lab",
            log_level="WARNING",
        )
        _running = self
        try:
            DBOS(config=config)
            DBOS.launch()
        except Exception as error:
            _running = None
            log.debug("DBOS does not start", exc_info=error)
            raise HostUnfit(
                f"the service's jobs cannot be kept: {type(error).__name__}",
                hint="look at the setting database of [serve], and at LAB_HOME",
            ) from error
        for job in self._store.jobs.open():
            self._take_up(job)

    def look_after(self) -> None:
        """Take up what was recorded and could not be begun, as happens if the disk is full."""
        with self._guard:
            active = set(self._active)
        for job in self._store.jobs.open():
            if job.id not in active and job.created_at < time.time() - _OVERDUE:
                self._take_up(job)

    def _take_up(self, job: JobRecord) -> None:
        """See to a job that an earlier service left; DBOS goes on with those that it knows."""
        known = DBOS.get_workflow_status(job.id)
        if known is None:
            self.start(job.id)
        elif known.status in _OVER and self._store.jobs.get(job.id).state in OPEN:
            log.error("a job was given up", extra={"given_up": job.id, "was": known.status})
            self._end(job, "failed", job.lab, problems.internal(), about=job.about)

    def finish(self, grace: float) -> bool:
        """Begin nothing more; wait ``grace`` seconds for what is being done.

        False if something is not done then: it is left to the next service.
        """
        self._stopping.set()
        self._service.admission.changed()
        deadline = time.monotonic() + grace
        with self._idle:
            while self._active and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)
            cut = len(self._active) + self._left
        if cut:
            log.warning("jobs are left to the next service", extra={"jobs": cut})
        return not cut

    def close(self) -> None:
        """End DBOS, once all jobs are done."""
        global _running  # noqa: PLW0603  # see open
        with contextlib.suppress(Exception):
            DBOS.destroy()
        _running = None

    def start(self, job: str) -> None:
        """Begin a job at once; fine if that was done already.

        When the service ends it is left to the next one, which finds its row.
        """
        if self._stopping.is_set():
            return
        with SetWorkflowID(job):
            DBOS.start_workflow(_workflow, job)

    def cancel(self, job: JobRecord) -> None:
        """Have a job end at its next step or in a wait, and undo what it made; fine if it ended."""
        if job.state in OPEN:
            self._store.jobs.update(job.id, cancel=True)
            self._service.admission.changed()

    def perform(self, identity: str) -> None:
        """Do a job to its end, whatever that is."""
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
            # The workflow must not be noted as done: this thread ends with the process.
            threading.Event().wait()
        finally:
            JOB.reset(token)
            with self._idle:
                self._active.discard(identity)
                self._idle.notify_all()

    def tell(self, identity: str) -> None:
        """Tell the webhook how a job ended."""
        job = self._store.jobs.find(identity)
        if job is not None and job.state not in OPEN:
            webhooks.ended(job)

    def _perform(self, identity: str) -> None:
        job = self._store.jobs.find(identity)
        if job is None or job.state not in OPEN:
            return
        self._service.began(job)
        state: JobState = "succeeded"
        problem = None
        lab, about = job.lab, job.about
        try:
            made = self._do(job)
            lab, about = (lab, made) if job.kind in ABOUT_OTHERS else (made, about)
        except Interrupted as error:
            state, problem = "cancelled", problems.problem(error)
        except LabError as error:
            state, problem = "failed", problems.problem(error)
        except Exception as error:  # noqa: BLE001  # whatever it is: the job has ended
            log.error("a job failed", exc_info=error)
            state, problem = "failed", problems.internal()
        if problem and (left := lab_of(self._store, job.id)) is not None:
            lab = left.name  # it was to be kept
        self._end(job, state, lab, problem, about=about)

    def _do(self, job: JobRecord) -> str:
        service = self._service
        made = lab_of(self._store, job.id) if job.state == "running" else None
        if made is not None and made.state not in ("creating", "removing"):
            if made.state == "failed":
                raise _kept(made.name)
            return made.name  # ready, but we did not live to say so
        need = self._need(job)
        if need is None:
            return self._work(job)
        if job.kind == "fill":
            with service.admission.spare(job.id, need):
                return self._work(job)
        # What a first try left is removed before there is another lab of this job.
        if job.kind == "create" and made is None and (claimed := service.pool.claim(job)):
            return claimed
        with service.admission.enter(
            job.id, job.created_at, need, stop=lambda: self._stop(job, waiting=True)
        ):
            return self._work(job)

    def _need(self, job: JobRecord) -> Need | None:
        """The room that a job has to wait for; None if it needs none."""
        if job.kind in (*TAKE_ROOM, "fill"):
            return need_of(spec_of(job.request))
        lab = self._store.labs.find(job.lab) if job.kind in WAKE else None
        if lab is None:
            return None
        with self._service.contexts.use() as ctx:
            need = need_to_wake(lab, len(power.running(ctx, lab.name)))
        return need if need != Need() else None

    def _work(self, job: JobRecord) -> str:
        """Do the job's work in a context that tells of its steps."""
        service, again = self._service, job.state == "running"
        halt = _Halt(lambda: self._stop(job))

        def hear(event: Event) -> None:
            service.heard(job, event)
            if event.state == "begin":
                halt.now()

        self._store.jobs.update(job.id, state="running", started_at=job.started_at or time.time())
        service.events.add(job.id, Event("job", "begin", job.kind))
        owner = str(job.request.get("owner", ""))
        with service.contexts.use(
            hear,
            halt=halt.soon,
            origin=origin_of(job),
            owner=owner,
            templates=max_templates(service, job),
        ) as ctx:
            return WORK[job.kind](ctx, Task(job, again))

    def _stop(self, job: JobRecord, *, waiting: bool = False) -> None:
        """Raise if the job is to go no further; ``waiting``: it has done nothing yet."""
        if waiting and self._stopping.is_set():
            raise _Cut
        if job.kind == "fill" and self._stopping.is_set():
            raise Interrupted("the service ends, and nobody waits for this lab")
        found = self._store.jobs.find(job.id)
        if found is not None and found.cancel:
            raise Interrupted("the job was cancelled")

    def _end(
        self,
        job: JobRecord,
        state: JobState,
        lab: str,
        problem: dict[str, object] | None,
        *,
        about: str = "",
    ) -> None:
        service, now = self._service, time.time()
        service.events.flush()
        how = "end" if state == "succeeded" else "fail"
        for left in reversed(range(_WRITES)):
            try:
                with self._store.transaction():
                    self._store.jobs.update(
                        job.id, state=state, lab=lab, about=about, ended_at=now, error=problem
                    )
                    self._store.events.add(topic(job.id), "job", how, state, now - job.created_at)
                break
            except Conflict:  # others write all the time
                if not left:
                    raise
        service.ended(self._store.jobs.get(job.id))
