"""What is to be done in time: leases end, snapshots are taken, what was cut is cleared away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dbos import DBOS

from api import webhooks
from api.logs import log
from api.rounds import Rounds
from api.submit import new_job_of_ours, submit
from lab.errors import LabError
from lab.lifecycle import gc, snapshot
from lab.state.records import LabRecord

if TYPE_CHECKING:
    from api.service import Service

_AGAIN = 20.0
"""Seconds before what could not be removed is tried again."""
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

    def sweep(self) -> None:
        """Look once."""
        service, now = self._service, time.time()
        service.jobs.look_after()
        busy = {job.lab for job in service.store.jobs.open()}
        making = {job.id for job in service.store.jobs.open() if job.kind in ("create", "fill")}
        for lab in service.store.labs.all():
            if lab.expires_at is None or lab.name in busy or lab.job in making:
                continue
            if lab.expires_at <= now:
                self._expire(lab)
            elif lab.expires_at <= now + self._warning(lab):
                webhooks.expiring(lab, lab.expires_at, "lease")
        self._clear(making, busy)
        if now - self._rotated >= _ROTATE_EVERY:
            self._rotated = now
            self._rotate(busy)
        if now - self._pruned >= _PRUNE_EVERY:
            self._pruned = now
            self.prune(now - service.settings.serve.keep_jobs)

    def _warning(self, lab: LabRecord) -> float:
        """How long before the end of its lease it is told, seconds: not between two heartbeats."""
        before = self._service.settings.serve.warn_before
        return before if lab.heartbeat is None else min(before, lab.heartbeat / 2)

    def _expire(self, lab: LabRecord) -> None:
        now = time.monotonic()
        if now - self._tried.get(lab.name, -_AGAIN) < _AGAIN:
            return
        self._tried = {name: at for name, at in self._tried.items() if now - at < _AGAIN}
        self._tried[lab.name] = now
        log.info("lease over", extra={"lab": lab.name})
        asked = {"created_at": lab.created_at, "expires_at": lab.expires_at}
        job = new_job_of_ours("expire", asked, lab=lab.name, project=lab.project)
        submit(self._service, job)

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

    def _rotate(self, busy: set[str]) -> None:
        """Take and remove the snapshots that schedules ask for; labs that are worked on: later."""
        with self._service.contexts.use() as ctx:
            for lab in ctx.store.labs.all():
                if self.rounds.ending:
                    return
                if not lab.snapshots or lab.name in busy:
                    continue
                try:
                    for line in snapshot.rotate(ctx, lab.name):
                        log.info("snapshots", extra={"what": line})
                except LabError as error:
                    log.warning("no snapshot", extra={"lab": lab.name, "error": error.what})

    def prune(self, before: float) -> None:
        """Forget what ended before then (epoch seconds): jobs, events, messages, the trail."""
        store = self._service.store
        while old := store.jobs.ended_before(before):
            DBOS.delete_workflows(old, delete_children=True)
            store.jobs.remove_all(old)
        # Not sooner: a message that is forgotten would be sent again.
        webhooks.prune(before - self._service.settings.serve.warn_before)
        store.events.prune(before)
        store.audit.prune(before)
