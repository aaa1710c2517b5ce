"""Ends the leases of labs whose databases are idle, and puts labs to sleep."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from lab.api.background.periodic import Periodic, isolated
from lab.api.background.sleeper import Sleeper
from lab.api.core.core import Core
from lab.api.events import webhooks
from lab.api.telemetry.logs import log
from lab.errors import Conflict, LabError
from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.asleep import awake, is_asleep
from lab.lifecycle.service.activity import activity
from lab.names import GuestName
from lab.state.records import LabRecord

EVERY = 15.0
"""Seconds between two checks of a lab."""
_PATIENCE = 2.0
"""Seconds that the check of a lab may take."""
_AT_ONCE = 8
"""Labs that are checked at the same time, each with a thread for every node."""


class IdleWatch:
    """Queries the activity of the servers of labs that have an idle time, or are to sleep.

    The activity counters, and the time of their last change, are in the record: a lab is as idle
    after a restart of the service as before. A lab whose servers do not answer is not idle.
    """

    def __init__(self, core: Core, sleeper: Sleeper) -> None:
        self._core = core
        self._sleeper = sleeper
        self.periodic = Periodic("idle", self.check, EVERY)

    def check(self) -> None:
        """Check each lab once."""
        store = self._core.store
        wanted = [
            lab
            for lab in store.labs.all()
            if (lab.idle is not None or lab.asleep_at is not None or self._sleeper.after(lab))
            and lab.state == "ready"
            and not lab.pool
        ]
        if not wanted:
            return
        busy = {job.lab for job in store.jobs.open()}
        with self._core.contexts.use() as ctx:
            guests = ctx.hypervisor.guests()

            def check(lab: LabRecord) -> None:
                if not self.periodic.ending:
                    with isolated("idle", lab.name):
                        self._check_lab(ctx, lab, guests)

            each(check, [lab for lab in wanted if lab.name not in busy], most=_AT_ONCE)

    def _check_lab(self, ctx: Context, lab: LabRecord, guests: Mapping[GuestName, Guest]) -> None:
        if lab.asleep_at is not None:
            if is_asleep(ctx, lab, guests):
                self._check_lease(lab, lab.active_at or lab.asleep_at)
            else:  # a command was killed that woke it, or put it to sleep
                with suppress(Conflict):
                    awake(ctx, lab.name, timeout=_PATIENCE, used=False)
            return
        since = time.time()
        try:
            asked = self._core.observing.on_kept(ctx, lab.name)
            found = activity(asked, lab.name, patience=_PATIENCE, guests=guests)
        except LabError as error:
            log.info("cannot query a lab's activity", extra={"lab": lab.name, "error": error.what})
            self._used(lab, lab.activity)
            return
        if found.busy or found.counters != lab.activity or lab.active_at is None:
            self._used(lab, found.counters)
            return
        self._check_lease(lab, lab.active_at)
        after = self._sleeper.after(lab)
        if after and time.time() >= lab.active_at + after:
            self._sleeper.sleep(lab, since)

    def _check_lease(self, lab: LabRecord, active_at: float) -> None:
        if lab.idle is None:
            return
        ends, now = active_at + lab.idle, time.time()
        if now >= ends:
            self._end(lab)
        elif now >= ends - min(self._core.settings.serve.warn_before, lab.idle / 2):
            webhooks.expiring(lab, ends, "idle")

    def _used(self, lab: LabRecord, counters: str) -> None:
        store = self._core.store
        with store.transaction():
            now = store.labs.find(lab.name)
            if now is not None and now.created_at == lab.created_at:
                store.labs.update(lab.name, active_at=time.time(), activity=counters)

    def _end(self, lab: LabRecord) -> None:
        """End a lease, unless the lab was used or changed since it was checked."""
        store = self._core.store
        with store.transaction():
            if store.labs.find(lab.name) != lab:
                return
            store.labs.update(lab.name, expires_at=time.time())
        log.info("lab idle: its lease ends", extra={"lab": lab.name, "seconds": lab.idle})
