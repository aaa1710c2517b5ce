"""Ends leases, takes scheduled snapshots, removes leftovers of interrupted commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dbos import DBOS

from lab.api.background.periodic import Periodic, isolated
from lab.api.core.core import Core
from lab.api.events import webhooks
from lab.api.jobs import uploads
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.stored import concerns
from lab.api.jobs.submit import service_job, submit
from lab.api.jobs.work import ENDS
from lab.api.telemetry.logs import log
from lab.exchange.stage import remove_abandoned
from lab.fleet import placements
from lab.lifecycle.core import waiting
from lab.lifecycle.host import gc
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner
from lab.requests.labs import ExpireLab
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import PERIODS
from lab.state.records import LabRecord

_AGAIN = 20.0
"""Seconds until a removal or a snapshot that failed is retried."""
_JUMP = 300.0
"""Seconds of difference between wall clock and elapsed time from which the clock counts as set."""
_PRUNE_EVERY = 3600.0
_ROTATE_EVERY = 60.0


class Sweeper:
    """Runs every ``sweep`` seconds."""

    def __init__(self, core: Core, jobs: Jobs) -> None:
        self._core = core
        self._jobs = jobs
        self.periodic = Periodic("sweeper", self.sweep, core.settings.serve.sweep)
        self.clock: Callable[[], float] = time.monotonic
        """Elapsed seconds, by which periods are counted."""
        self.wall: Callable[[], float] = time.time
        """The time of day, by which leases end; somebody may set it."""
        self._pruned = 0.0
        self._rotated = -_ROTATE_EVERY
        self._tried: dict[str, float] = {}
        self._wall, self._passed = self.wall(), _passed()
        self._known: dict[str, Mapping[str, float | None]] = {}

    def sweep(self) -> None:
        """Check all labs once."""
        core = self._core
        self._follow_time()
        now = self.wall()
        self._jobs.look_after()
        jobs = core.store.jobs.open()
        ending = {job.lab for job in jobs if job.kind in ENDS}
        creating = {job.id for job in jobs if job.kind in ("create", "fill", "branch")}
        labs = core.store.labs.all()
        self._known = {lab.name: _times(lab) for lab in labs}
        for lab in labs:
            if lab.expires_at is None or lab.name in ending or lab.job in creating:
                continue
            with isolated("sweeper", lab.name):
                if lab.pool:  # made ahead by a command, and nobody's: no job, and no webhook
                    self._drop(lab.name, over=lab.expires_at <= now)
                elif lab.expires_at <= now:
                    self._expire(lab)
                elif lab.expires_at <= now + self.warning(lab):
                    webhooks.expiring(lab, lab.expires_at, "lease")
        self._clear(creating, {job.lab for job in jobs})
        uploads.prune(core, now)
        remove_abandoned(core.settings.home.imports, now)
        if (elapsed := self.clock()) - self._rotated >= _ROTATE_EVERY:
            self._rotated = elapsed
            with isolated("sweeper", "tokens"):
                core.known.record_uses(core.store)
            self.rotate()
        if now - self._pruned >= _PRUNE_EVERY:
            self._pruned = now
            self.prune(now - core.settings.serve.keep_jobs)

    def _follow_time(self) -> None:
        """Move the ends of leases with a clock that was set, so that their durations stay.

        Not times that were written since then, nor leases of labs that are not ready yet.
        """
        wall, passed = self.wall(), _passed()
        jump = (wall - self._wall) - (passed - self._passed)
        if abs(jump) >= _JUMP:
            log.error(
                "the clock was set: the ends of leases are moved by the same time",
                extra={"seconds": round(jump)},
            )
            store = self._core.store
            with store.transaction():
                for lab in store.labs.all():
                    if lab.state != "creating" and (moved := self._moved(lab, jump, wall)):
                        store.labs.update(lab.name, **moved)
        self._wall, self._passed = wall, passed

    def _moved(self, lab: LabRecord, jump: float, now: float) -> dict[str, float]:
        """The times of a lab that were written before the clock was set, moved with it.

        These are the ones that the last run found, and after a step forward, those in the past.
        """
        known = self._known.get(lab.name, {})
        return {
            field: at + jump
            for field, at in _times(lab).items()
            if at is not None and (at == known.get(field) or (jump > 0 and at <= now))
        }

    def warning(self, lab: LabRecord) -> float:
        """Seconds from the warning to the end of a lease: less than between two heartbeats."""
        before = self._core.settings.serve.warn_before
        return before if lab.heartbeat is None else min(before, lab.heartbeat / 2)

    def _expire(self, lab: LabRecord) -> None:
        if not self._is_time(f"lease {lab.name}"):
            return
        log.info("lease over", extra={"lab": lab.name})
        request = ExpireLab(lab=lab.name, created_at=lab.created_at, expires_at=lab.expires_at)
        submit(self._jobs, service_job(request, project=lab.project))

    def _drop(self, name: str, *, over: bool) -> None:
        if over:
            with self._core.contexts.use() as ctx:
                waiting.try_drop(ctx, name)

    def _is_time(self, what: str) -> bool:
        """Whether ``what`` was not tried within the last ``_AGAIN`` seconds; now it is."""
        now = self.clock()
        self._tried = {name: at for name, at in self._tried.items() if now - at < _AGAIN}
        return self._tried.setdefault(what, now) == now

    def _clear(self, creating: set[str], busy: set[str]) -> None:
        """Remove leftovers of killed commands; jobs of the service remove their own."""
        with self._core.contexts.use() as ctx:
            ours = {lab.name for lab in ctx.store.labs.all() if lab.job in creating} | busy
            found = [
                (owner, why)
                for owner, why in gc.tasks(ctx)
                if (owner.kind == "lab" and why != "expired" and owner.name not in ours)
                or self._is_data(owner)
            ]
            for line in gc.perform(ctx, found).removed if found else ():
                log.info("cleared", extra={"what": line})

    def _is_data(self, owner: Owner) -> bool:
        """Whether ``owner`` is a version of a dataset that no job is making."""
        record = self._core.store.images.find(owner.name) if owner.kind == "image" else None
        if record is None or not record.dataset:
            return False
        return record.job not in {job.id for job in self._core.store.jobs.open()}

    def rotate(self) -> None:
        """Submit the snapshots that are due by schedules; labs with open jobs: later.

        Jobs take them, as that needs answers of guests.
        """
        core = self._core
        busy = {job.lab for job in core.store.jobs.open()}
        with core.contexts.use() as ctx:
            for lab in ctx.store.labs.all():
                if self.periodic.ending:
                    return
                if lab.name in busy:
                    continue
                with isolated("sweeper", lab.name):
                    if not snapshot.is_due(ctx, lab) or self._failed_recently(lab):
                        continue
                    if self._is_time(f"snapshot {lab.name}"):
                        request = TakeSnapshot(
                            lab=lab.name, created_at=lab.created_at, scheduled=True
                        )
                        submit(self._jobs, service_job(request, project=lab.project))

    def _failed_recently(self, lab: LabRecord) -> bool:
        """Whether a scheduled snapshot of a lab failed within the last hour.

        Of the jobs that failed, the last one is kept.
        """
        jobs = self._core.store.jobs
        found = jobs.latest(states=["failed"], kinds=["snapshot"], lab=lab.name)
        ours = [job for job in found if not job.token and concerns(job, lab)]
        if older := [job.id for job in ours[1:]]:
            self._forget(older)
        return bool(ours) and time.time() < ours[0].created_at + PERIODS["hourly"]

    def _forget(self, jobs: list[str]) -> None:
        """Remove jobs that have ended, by id."""
        DBOS.delete_workflows(jobs, delete_children=True)
        self._core.store.jobs.remove_all(jobs)

    def prune(self, before: float) -> None:
        """Remove old jobs, events, messages and audit entries; ``before``: epoch seconds."""
        store = self._core.store
        while old := store.jobs.ended_before(before):
            self._forget(old)
        # Not sooner: a message without a workflow would be sent again.
        webhooks.prune(before - self._core.settings.serve.warn_before)
        if self._core.fleet is not None:
            with isolated("sweeper", "placements"):
                placements.prune(self._core.fleet.database, time.time() - before)
        store.events.prune(before)
        store.audit.prune(before)


def _times(lab: LabRecord) -> Mapping[str, float | None]:
    """The times of a lab on which the end of its lease depends."""
    return {"expires_at": lab.expires_at, "active_at": lab.active_at}


def _passed() -> float:
    """Seconds elapsed since some moment, including those in which the host was suspended."""
    # Without such a clock, leases last longer by the time that the host was suspended.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
