"""Labs whose databases nobody uses: their leases end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lab.api.background import webhooks
from lab.api.background.periodic import Rounds, alone
from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.service.activity import activity
from lab.names import GuestName
from lab.state.records import LabRecord

if TYPE_CHECKING:
    from lab.api.service import Service

EVERY = 15.0
"""Seconds between two looks at a lab."""
_PATIENCE = 2.0
"""Seconds that a lab may take, whatever its nodes do."""
_AT_ONCE = 8
"""Labs that are asked at the same time, each with a thread for every node."""


class IdleWatch:
    """Asks the servers of labs which are to end when nobody uses them.

    What was counted, and when that last changed, is in the record: a lab is as idle after a restart
    of the service as before. One that cannot be asked is not idle.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.rounds = Rounds("idle", self.look, EVERY)

    def look(self) -> None:
        """Look at each lab once."""
        store = self._service.store
        wanted = [lab for lab in store.labs.all() if lab.idle is not None and lab.state == "ready"]
        if not wanted:
            return
        busy = {job.lab for job in store.jobs.open()}
        with self._service.contexts.use() as ctx:
            guests = ctx.hypervisor.guests()

            def one(lab: LabRecord) -> None:
                if not self.rounds.ending:
                    with alone("idle", lab.name):
                        self._look_at(ctx, lab, guests)

            each(one, [lab for lab in wanted if lab.name not in busy], most=_AT_ONCE)

    def _look_at(self, ctx: Context, lab: LabRecord, guests: Mapping[GuestName, Guest]) -> None:
        try:
            found = activity(ctx, lab.name, patience=_PATIENCE, guests=guests)
        except LabError as error:
            log.info("a lab cannot be asked", extra={"lab": lab.name, "error": error.what})
            self._used(lab, lab.activity)
            return
        if found.busy or found.counters != lab.activity or lab.active_at is None:
            self._used(lab, found.counters)
            return
        idle = lab.idle or 0.0
        ends, now = lab.active_at + idle, time.time()
        if now >= ends:
            self._end(lab)
        elif now >= ends - min(self._service.settings.serve.warn_before, idle / 2):
            webhooks.expiring(lab, ends, "idle")

    def _used(self, lab: LabRecord, counters: str) -> None:
        store = self._service.store
        with store.transaction():
            now = store.labs.find(lab.name)
            if now is not None and now.created_at == lab.created_at:
                store.labs.update(lab.name, active_at=time.time(), activity=counters)

    def _end(self, lab: LabRecord) -> None:
        """End a lease, unless the lab was used or changed since it was looked at."""
        store = self._service.store
        with store.transaction():
            if store.labs.find(lab.name) != lab:
                return
            store.labs.update(lab.name, expires_at=time.time())
        log.info("idle", extra={"lab": lab.name, "seconds": lab.idle})
