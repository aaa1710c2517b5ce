"""Opens, starts and stops the parts of the service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from lab.api.background.idle import IdleWatch
from lab.api.background.membership import Membership
from lab.api.background.periodic import close_all
from lab.api.background.poolkeeper import PoolKeeper
from lab.api.background.refresher import Refresher
from lab.api.background.sleeper import Sleeper
from lab.api.background.standbykeeper import StandbyKeeper
from lab.api.background.sweeper import Sweeper
from lab.api.core.contexts import Opener
from lab.api.core.core import open_core
from lab.api.core.fleet import Fleet
from lab.api.events import webhooks
from lab.api.jobs.jobs import Jobs
from lab.config.settings import Settings
from lab.lifecycle.core.context import open_context
from lab.lifecycle.service import pool as pools
from lab.locks.named import lock

if TYPE_CHECKING:
    from lab.api.telemetry.spans import Trace

_PATIENCE = 3.0
"""Seconds that all parts but the jobs may take to close, together."""


class Service:
    """The service. ``open`` and ``close`` it once.

    ``opener`` opens contexts of the lifecycle; ``trace`` replaces that of the settings.
    """

    def __init__(
        self, settings: Settings, opener: Opener = open_context, *, trace: Trace | None = None
    ) -> None:
        self.core = open_core(settings, opener, trace)
        self.jobs = Jobs(self.core)
        self.keeper = PoolKeeper(self.core, self.jobs)
        self.sweeper = Sweeper(self.core, self.jobs)
        self.sleeper = Sleeper(self.core)
        self.idle = IdleWatch(self.core, self.sleeper)
        self.refresher = Refresher(self.core, self.jobs)
        self.standbys = StandbyKeeper(self.core, self.jobs)
        self._periodic = {
            "sweeper": self.sweeper.periodic,
            "pool": self.keeper.periodic,
            "idle": self.idle.periodic,
            "sleeper": self.sleeper.periodic,
            "datasets": self.refresher.periodic,
            "standbys": self.standbys.periodic,
        }
        self.membership: Membership | None = None
        self._lock = ExitStack()

    def open(self) -> None:
        """Start; raises HostUnfit if this host cannot run labs, Busy if another service runs.

        Also InvalidSpec if a pool's settings are invalid.
        """
        core = self.core
        # Two services would run the same jobs at the same time.
        self._lock.enter_context(lock(core.settings.home, "state", "serve", wait=False))
        with core.contexts.use() as ctx:
            ctx.hypervisor.capabilities()
        for pool in core.pool.pools:
            pools.check(core.settings, pool.spec)
        if core.fleet is not None:
            core.fleet.open()
        webhooks.open_webhook(core.settings.serve, core.metrics.dropped)
        self.jobs.open()
        core.pool.wake.set()  # the pools are checked at once
        core.observing.observer.start()
        for periodic in self._periodic.values():
            periodic.start()
        core.ready.set()

    def joined(self, fleet: Fleet) -> None:
        """Begin with what a host of a fleet does, now that this one has joined."""
        self.membership = Membership(self.core, self.jobs, fleet)
        self._periodic |= self.membership.periodic
        self.membership.start()

    def stop(self) -> None:
        """Accept no more requests, and end those that wait for events."""
        self.core.ready.clear()
        self.core.stopping.set()
        self.core.notifier.close()

    def close(self, grace: float = 10.0) -> None:
        """End, in ``grace`` seconds for jobs and a few more for all else.

        Labs keep running. Jobs that have not ended are left to the next service, and so is the rest
        of a periodic task that takes longer.
        """
        self.stop()
        if self.membership is not None:
            self.membership.stop()
        for periodic in self._periodic.values():
            periodic.stop()
        parts: dict[str, Callable[[], object]]
        parts = {name: periodic.join for name, periodic in self._periodic.items()}
        parts["observer"] = self.core.observing.close
        if self.jobs.finish(grace):
            parts["jobs"] = self.jobs.close
        parts |= {"events": self.core.events.close, "contexts": self.core.contexts.close}
        parts["tokens"] = partial(self.core.known.record_uses, self.core.store)
        if self.core.trace:
            parts["trace"] = self.core.trace.close
        close_all(parts, _PATIENCE)
        self.core.store.close()
        if self.core.fleet is not None:
            self.core.fleet.close()
        self._lock.close()
