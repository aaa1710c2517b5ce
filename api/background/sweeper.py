"""What is to be done in time: leases end, snapshots are taken, what was cut is cleared away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dbos import DBOS

from lab import schedule
from lab.api.background import webhooks
from lab.api.background.periodic import Rounds, alone
from lab.api.jobs.submit import new_job_of_ours, submit
from lab.api.jobs.work import ENDS
from lab.api.telemetry.logs import log
from lab.lifecycle import gc, snapshot
from lab.schedule import PERIODS
from lab.state.records import LabRecord

if TYPE_CHECKING:
    from lab.api.service import Service

_AGAIN = 20.0
"""Seconds before what could not be removed is tried again."""
_JUMP = 300.0
"""Seconds by which the clock was set if it is further than time has passed; less is adjustment."""
_PRUNE_EVERY = 3600.0
_ROTATE_EVERY = 60.0


class Sweeper:
    """Looks every ``sweep`` seconds."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.rounds = Rounds("sweeper", self.sweep, service.settings.serve.sweep)
        self._pruned = 0.0
        self._rotated = 0.0
        self._tried: dict[str, float] = {}
        self._wall, self._passed = time.time(), _passed()
        self._known: dict[str, Mapping[str, float | None]] = {}

    def sweep(self) -> None:
        """Look once."""
        service = self._service
        self._follow_time()
        now = time.time()
        service.jobs.look_after()
        jobs = service.store.jobs.open()
        going = {job.lab for job in jobs if job.kind in ENDS}
        making = {job.id for job in jobs if job.kind in ("create", "fill")}
        labs = service.store.labs.all()
        self._known = {lab.name: _times(lab) for lab in labs}
        for lab in labs:
            if lab.expires_at is None or lab.name in going or lab.job in making:
                continue
            with alone("sweeper", lab.name):
                if lab.expires_at <= now:
                    self._expire(lab)
                elif lab.expires_at <= now + self._warning(lab):
                    webhooks.expiring(lab, lab.expires_at, "lease")
        self._clear(making, {job.lab for job in jobs})
        if now - self._rotated >= _ROTATE_EVERY:
            self._rotated = now
            self._rotate()
        if now - self._pruned >= _PRUNE_EVERY:
            self._pruned = now
            self.prune(now - service.settings.serve.keep_jobs)

    def _follow_time(self) -> None:
        """Move the ends of leases with a clock that was set: they last as long as they were to.

        Not what was written since then, nor the leases of labs that are not ready: they begin then.
        """
        wall, passed = time.time(), _passed()
        jump = (wall - self._wall) - (passed - self._passed)
        if abs(jump) >= _JUMP:
            log.error("the clock was set: leases are moved with it", extra={"seconds": round(jump)})
            store = self._service.store
            with store.transaction():
                for lab in store.labs.all():
                    if lab.state != "creating" and (moved := self._moved(lab, jump, wall)):
                        store.labs.update(lab.name, **moved)
        self._wall, self._passed = wall, passed

    def _moved(self, lab: LabRecord, jump: float, now: float) -> dict[str, float]:
        """The times of a lab that were written before the clock was set, as it tells them now.

        These are what the last look found, and after a step forward, what lies in the past.
        """
        known = self._known.get(lab.name, {})
        return {
            field: at + jump
            for field, at in _times(lab).items()
            if at is not None and (at == known.get(field) or (jump > 0 and at <= now))
        }

    def _warning(self, lab: LabRecord) -> float:
        """How long before the end of its lease it is told, seconds: not between two heartbeats."""
        before = self._service.settings.serve.warn_before
        return before if lab.heartbeat is None else min(before, lab.heartbeat / 2)

    def _expire(self, lab: LabRecord) -> None:
        if not self._is_time(f"lease {lab.name}"):
            return
        log.info("lease over", extra={"lab": lab.name})
        asked = {"created_at": lab.created_at, "expires_at": lab.expires_at}
        job = new_job_of_ours("expire", asked, lab=lab.name, project=lab.project)
        submit(self._service, job)

    def _is_time(self, what: str) -> bool:
        """Whether ``what`` was not tried within the last ``_AGAIN`` seconds; now it is."""
        now = time.monotonic()
        self._tried = {name: at for name, at in self._tried.items() if now - at < _AGAIN}
        return self._tried.setdefault(what, now) == now

    def _clear(self, making: set[str], busy: set[str]) -> None:
        """Remove what is left of labs whose maker was killed; jobs of ours see to theirs."""
        with self._service.contexts.use() as ctx:
            ours = {lab.name for lab in ctx.store.labs.all() if lab.job in making} | busy
            found = [
                (owner, why)
                for owner, why in gc.tasks(ctx)
                if owner.kind == "lab" and why != "expired" and owner.name not in ours
            ]
            for line in gc.perform(ctx, found).removed if found else ():
                log.info("cleared", extra={"what": line})

    def _rotate(self) -> None:
        """Ask for the snapshots that schedules want; labs that are worked on: later.

        A job of its own takes them: it talks to guests.
        """
        service = self._service
        busy = {job.lab for job in service.store.jobs.open()}
        with service.contexts.use() as ctx:
            for lab in ctx.store.labs.all():
                if self.rounds.ending:
                    return
                if not lab.snapshots or lab.name in busy:
                    continue
                with alone("sweeper", lab.name):
                    if not snapshot.is_due(ctx, lab) or self._failed_lately(lab):
                        continue
                    if self._is_time(f"snapshot {lab.name}"):
                        asked = {"name": "", "scheduled": True, "created_at": lab.created_at}
                        job = new_job_of_ours("snapshot", asked, lab=lab.name, project=lab.project)
                        submit(service, job)

    def _failed_lately(self, lab: LabRecord) -> bool:
        """Whether the schedule of a lab failed, and its next time has not come.

        Of the jobs that failed the last one is kept.
        """
        jobs = self._service.store.jobs
        found = jobs.latest(states=["failed"], kinds=["snapshot"], lab=lab.name)
        made = lab.created_at
        ours = [job for job in found if not job.token and job.request["created_at"] == made]
        if older := [job.id for job in ours[1:]]:
            self._forget(older)
        kinds = [kind for kind, _ in schedule.parse(lab.snapshots).keep]
        pause = min((PERIODS[kind] for kind in kinds), default=0.0)
        return bool(ours) and time.time() < ours[0].created_at + pause

    def _forget(self, jobs: list[str]) -> None:
        """Forget jobs that ended, by id."""
        DBOS.delete_workflows(jobs, delete_children=True)
        self._service.store.jobs.remove_all(jobs)

    def prune(self, before: float) -> None:
        """Forget what ended before then (epoch seconds): jobs, events, messages, the trail."""
        store = self._service.store
        while old := store.jobs.ended_before(before):
            self._forget(old)
        # Not sooner: a message that is forgotten would be sent again.
        webhooks.prune(before - self._service.settings.serve.warn_before)
        store.events.prune(before)
        store.audit.prune(before)


def _times(lab: LabRecord) -> Mapping[str, float | None]:
    """The times of a lab on which the end of its leases depends."""
    return {"expires_at": lab.expires_at, "active_at": lab.active_at}


def _passed() -> float:
    """Seconds that have passed since some moment, those in which the host slept among them."""
    # Where the system has no such clock, leases last longer by the time that the host slept.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
