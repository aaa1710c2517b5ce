"""Makes the next standby after each reset.

Removes those that cannot be used any more, and all of them while a request lacks room.
"""

from __future__ import annotations

from lab.api.background.periodic import Periodic, isolated
from lab.api.core.core import Core
from lab.api.core.standbys import Wanted
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.quota import check_standby
from lab.api.jobs.submit import service_job, submit
from lab.lifecycle.nodes import standby
from lab.requests.labs import MakeStandby


class StandbyKeeper:
    """Runs after each reset, and every ``sweep`` seconds."""

    def __init__(self, core: Core, jobs: Jobs) -> None:
        self._core = core
        self._jobs = jobs
        self.periodic = Periodic(
            "standby", self.keep, core.settings.serve.sweep, core.standbys.wake
        )

    def keep(self) -> None:
        """Submit a job for each standby that is wanted; what is left of others goes."""
        core = self._core
        asked = core.standbys.take()
        for wanted in asked:
            with isolated("standby", wanted.lab):
                self._make(wanted)
        found = sorted(core.store.standbys.all(), key=lambda one: one.created_at)
        if not found and not asked:
            return
        with core.contexts.use() as ctx:
            standby.sweep(ctx)
            for one in found:
                if core.admission.lacking() is None:
                    break
                with isolated("standby", one.lab):
                    standby.forget_standby(ctx, one.lab)
                core.admission.changed()

    def _make(self, wanted: Wanted) -> None:
        """Submit a job, unless it would exceed a quota of the token that asked: raises that."""
        store = self._core.store
        lab, token = store.labs.find(wanted.lab), store.tokens.find(wanted.token)
        if lab is None or lab.state != "ready" or self.periodic.ending:
            return
        if wanted.created_at not in (None, lab.created_at):
            return  # another lab of that name
        request = MakeStandby(lab=lab.name, created_at=lab.created_at)
        job = service_job(request, project=lab.project)
        submit(self._jobs, job, lambda: check_standby(self._core, token, lab) if token else None)
