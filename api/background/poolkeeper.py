"""Keeps the pools as the settings want them: full, sound, and smaller while requests need room."""

from __future__ import annotations

import time

from lab.api.background.periodic import Periodic, isolated
from lab.api.core.admission import TAKE_ROOM, Need, need_of, need_of_lab
from lab.api.core.core import Core
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.stored import read_facts
from lab.api.jobs.submit import service_job, submit
from lab.api.telemetry.logs import log
from lab.config.poolfile import WarmPool
from lab.errors import Conflict, HostUnfit, LabError
from lab.lifecycle.core import waiting
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import AHEAD
from lab.lifecycle.service import pool as pools
from lab.names import GuestName
from lab.requests.labs import FillPool
from lab.state.records import LabRecord
from lab.state.service import JobRecord

OWNER = "pool"
"""The owner of members until they are claimed."""


class PoolKeeper:
    """Checks the pools when their ``wake`` is set, and every ``sweep`` seconds."""

    def __init__(self, core: Core, jobs: Jobs) -> None:
        self._core = core
        self._jobs = jobs
        self._pool = core.pool
        self.periodic = Periodic("pool", self.keep, core.settings.serve.sweep, core.pool.wake)
        self._keys: dict[str, tuple[float, pools.MemberKeys | None]] = {}

    def keep(self) -> None:
        """Check the pools once."""
        store = self._core.store
        if not self._pool.pools and not any(lab.pool for lab in store.labs.all()):
            return
        # Before the members are checked: a job may end, and its member be ready, right after that.
        busy = self._busy()
        with self._core.contexts.use() as ctx:
            ready = self._sound(ctx)
            ready = self._make_room(ctx, ready)
            found: dict[str, list[str]] = {}
            for lab in ready:
                found.setdefault(lab.pool, []).append(lab.name)
            self._pool.offer(found)
            self._rest(ctx, found)
        if not busy:
            self._fill(found)

    def _rest(self, ctx: Context, ready: dict[str, list[str]]) -> None:
        """Pause the members that are not to run while they wait: all but the next ones."""
        guests = ctx.hypervisor.guests()
        for pool in self._pool.pools:
            for number, name in enumerate(ready.get(pool.name, ())):
                awake = number < pool.running
                there = (guests.get(GuestName(n.guest)) for n in ctx.store.nodes.of(name))
                states = {guest.state for guest in there if guest}
                if states != {"running" if awake else "paused"}:
                    with isolated("pool", name):
                        pools.rest(ctx, name, awake=awake)

    def _sound(self, ctx: Context) -> list[LabRecord]:
        """The members that can be claimed; those that never can are removed."""
        unsound, guests = self._pool.take_unsound(), ctx.hypervisor.guests()
        members = waiting.members(ctx)
        making = {job.lab for job in ctx.store.jobs.open() if job.kind == "fill"}
        sound: list[LabRecord] = []
        wanted = {pool.name: pool for pool in self._pool.pools}
        for lab in members:
            if lab.pool == AHEAD:
                continue  # of commands on this host: it has a lease
            if lab.state in ("creating", "removing") or lab.name in making:
                continue  # its job, which has its lock, or the sweeper handles it
            pool = wanted.get(lab.pool)
            why = ""
            if pool is None or len(pools.ready(sound, lab.pool)) >= pool.count:
                why = "the pool is larger than its setting"
            elif not self._fits(ctx, lab, pool):
                why = "the pool's configuration, image or template has changed"
            elif (
                lab.state != "ready"
                or lab.name in unsound
                or not pools.whole(ctx, lab.name, guests)
            ):
                why = "it is not running"
            if not why:
                sound.append(lab)
            else:
                self._drop(ctx, lab.name, why)
        return sound

    def _fits(self, ctx: Context, lab: LabRecord, pool: WarmPool) -> bool:
        at, keys = self._keys.get(pool.name, (0.0, None))
        if keys is None or time.monotonic() >= at + self._core.settings.serve.sweep:
            try:
                keys = pools.keys(ctx, pool.spec)
            except HostUnfit:
                return True  # not known now
            except LabError:
                return False  # the image that it would be created from does not exist yet
            self._keys[pool.name] = (time.monotonic(), keys)
        return pools.fits(ctx.settings, lab, pool.spec, keys)

    def _drop(self, ctx: Context, name: str, why: str) -> bool:
        self._pool.withdraw(name)
        try:
            dropped = waiting.drop(ctx, name)
        except Conflict:
            return False  # locked by another process: later
        except LabError as error:
            log.warning("cannot remove a pooled lab", extra={"lab": name, "error": error.what})
            return False
        if dropped:
            log.info("removed from the pool", extra={"lab": name, "why": why})
            self._core.admission.changed()
        return dropped

    def _make_room(self, ctx: Context, ready: list[LabRecord]) -> list[LabRecord]:
        """Remove members, the newest first, if a request then has the room that it lacks.

        Labs that commands made ahead come first. A member that is being created is cancelled
        before. Returns those that are left.
        """
        filling = self._filling()
        if not self._would_help(ctx, Need()):
            return ready
        coming = Need()
        if filling is not None:
            self._jobs.cancel(filling)
            coming = need_of(read_facts(filling, FillPool))
        left = [*ready, *waiting.made_ahead(ctx)]
        while left and self._would_help(ctx, coming):
            self._drop(ctx, left.pop().name, "a request needs the room")
        return [lab for lab in left if lab.pool != AHEAD]

    def _would_help(self, ctx: Context, coming: Need) -> bool:
        """Whether a request lacks room, also with ``coming``, that members have.

        Asked before each removal: a request is let in while the guests of a member still end.
        """
        need = self._core.admission.lacking(coming)
        if need is None:
            return False
        recorded = ctx.store.labs_with_nodes()
        # One that a command is making ahead is that command's.
        spare = sum(
            (
                need_of_lab(found)
                for found in recorded
                if found.lab.pool and (found.lab.pool, found.lab.state) != (AHEAD, "creating")
            ),
            Need(),
        )
        return not self._core.admission.short(need, spare)

    def _filling(self) -> JobRecord | None:
        return next((job for job in self._core.store.jobs.open() if job.kind == "fill"), None)

    def _busy(self) -> bool:
        """Whether labs are being created, for requests or for pools; their ends wake us."""
        return any(job.kind in (*TAKE_ROOM, "fill") for job in self._core.store.jobs.open())

    def _fill(self, ready: dict[str, list[str]]) -> None:
        """Create the next member, unless requests are being served or there is no room."""
        if self.periodic.ending or self._busy():
            return
        for pool in sorted(self._pool.pools, key=lambda one: len(ready.get(one.name, ()))):
            if len(ready.get(pool.name, ())) >= pool.count:
                continue
            if self._pool.paused(pool.name):
                continue
            if not self._core.admission.short(need_of(pool.spec)):
                self._begin(pool)
                return

    def _begin(self, pool: WarmPool) -> None:
        name = pools.new_name(pool.spec.blueprint)
        request = FillPool.of(pool.spec, name=name, owner=OWNER, pool=pool.name)
        submit(self._jobs, service_job(request))
