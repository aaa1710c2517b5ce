"""Keeping the pools as the settings want them: full, sound, and out of the way of requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lab.api.background.periodic import Rounds
from lab.api.jobs.admission import TAKE_ROOM, Need, need_of, need_of_lab
from lab.api.jobs.submit import new_job_of_ours, submit
from lab.api.jobs.work import asked_of, spec_of
from lab.api.telemetry.logs import log
from lab.config.poolfile import WarmPool
from lab.errors import Conflict, HostUnfit, LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.service import pool as pools
from lab.state.records import JobRecord, LabRecord

if TYPE_CHECKING:
    from lab.api.service import Service

OWNER = "pool"
"""Whom members belong to until they are claimed."""

_AGAIN = 20.0
"""Seconds until a lab that could not be made is tried again; doubled each time."""
_LONGEST = 1200.0


class PoolKeeper:
    """Looks when it is woken, and every ``sweep`` seconds."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = service.pool
        self.rounds = Rounds("pool", self.keep, service.settings.serve.sweep)
        self._keys: dict[str, tuple[float, pools.Keys | None]] = {}
        self._failures: dict[str, tuple[int, float]] = {}

    def ended(self, job: JobRecord) -> None:
        """A job has ended."""
        if job.kind == "fill":
            name = str(job.request["pool"])
            count, _ = self._failures.pop(name, (0, 0.0))
            if job.state == "failed":
                pause = min(_LONGEST, _AGAIN * 2**count)
                self._failures[name] = (count + 1, time.monotonic() + pause)
        if self._pool.pools:
            self.rounds.wake()

    def keep(self) -> None:
        """Look once."""
        store = self._service.store
        if not self._pool.pools and not any(lab.pool for lab in store.labs.all()):
            return
        # Before the members are looked at: one may be there, and its job over, right after that.
        busy = self._busy()
        with self._service.contexts.use() as ctx:
            ready = self._sound(ctx)
            ready = self._make_room(ctx, ready)
        found: dict[str, list[str]] = {}
        for lab in ready:
            found.setdefault(lab.pool, []).append(lab.name)
        self._pool.offer(found)
        if not busy:
            self._fill(found)

    def _sound(self, ctx: Context) -> list[LabRecord]:
        """The members that can be given away; those that never can are removed."""
        amiss, guests = self._pool.amiss(), ctx.hypervisor.guests()
        members = pools.members(ctx)
        sound: list[LabRecord] = []
        wanted = {pool.name: pool for pool in self._pool.pools}
        for lab in members:
            if lab.state in ("creating", "removing"):
                continue  # its job, or the sweeper, sees to it
            pool = wanted.get(lab.pool)
            why = ""
            if pool is None or len(pools.ready(sound, lab.pool)) >= pool.count:
                why = "the settings ask for less"
            elif not self._fits(ctx, lab, pool):
                why = "it is not what would be made now"
            elif lab.state != "ready" or lab.name in amiss or not pools.runs(ctx, lab.name, guests):
                why = "it does not run"
            if not why:
                sound.append(lab)
            else:
                self._drop(ctx, lab.name, why)
        return sound

    def _fits(self, ctx: Context, lab: LabRecord, pool: WarmPool) -> bool:
        at, keys = self._keys.get(pool.name, (0.0, None))
        if keys is None or time.monotonic() >= at + self._service.settings.serve.sweep:
            try:
                keys = pools.keys(ctx, pool.spec)
            except HostUnfit:
                return True  # cannot be told now
            except LabError:
                return False  # the image that it would be made of is not there yet
            self._keys[pool.name] = (time.monotonic(), keys)
        return pools.fits(ctx.settings, lab, pool.spec, keys)

    def _drop(self, ctx: Context, name: str, why: str) -> bool:
        self._pool.withdraw(name)
        try:
            dropped = pools.drop(ctx, name)
        except Conflict:
            return False  # somebody works on it: later
        except LabError as error:
            log.warning("a pooled lab is not removed", extra={"lab": name, "error": error.what})
            return False
        if dropped:
            log.info("removed from the pool", extra={"lab": name, "why": why})
            self._service.admission.changed()
        return dropped

    def _make_room(self, ctx: Context, ready: list[LabRecord]) -> list[LabRecord]:
        """Give up members, the last made first, if a request has no room that it would have then.

        One that is being made is given up before. Returns those that are left.
        """
        admission = self._service.admission
        need = admission.lacking()
        filling = self._filling()
        spare = sum((need_of_lab(lab) for lab in pools.members(ctx)), Need())
        if need is None or admission.short(need, spare):
            return ready
        coming = Need()
        if filling is not None:
            self._service.jobs.cancel(filling)
            coming = need_of(spec_of(filling.request))
        left = list(ready)
        while left and admission.short(need, coming):
            self._drop(ctx, left.pop().name, "a request needs the room")
        return left

    def _filling(self) -> JobRecord | None:
        return next((job for job in self._service.store.jobs.open() if job.kind == "fill"), None)

    def _busy(self) -> bool:
        """Whether labs are being made, for requests or for pools; their ends wake us."""
        return any(job.kind in (*TAKE_ROOM, "fill") for job in self._service.store.jobs.open())

    def _fill(self, ready: dict[str, list[str]]) -> None:
        """Have the next member made, unless requests are being served or there is no room."""
        service, now = self._service, time.monotonic()
        if self.rounds.ending or self._busy():
            return
        for pool in sorted(self._pool.pools, key=lambda one: len(ready.get(one.name, ()))):
            if len(ready.get(pool.name, ())) >= pool.count:
                continue
            if now < self._failures.get(pool.name, (0, 0.0))[1]:
                continue
            if not service.admission.short(need_of(pool.spec)):
                self._begin(pool)
                return

    def _begin(self, pool: WarmPool) -> None:
        name = pools.new_name(pool.spec.blueprint)
        asked = {**asked_of(pool.spec), "name": name, "owner": OWNER, "pool": pool.name}
        submit(self._service, new_job_of_ours("fill", asked, lab=name))
