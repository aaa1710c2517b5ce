"""Refreshes datasets by the schedule of the settings, one at a time."""

from __future__ import annotations

import time
from contextlib import suppress

from lab.api.background.periodic import Periodic
from lab.api.core.core import Core
from lab.api.jobs.data import last_refresh, latest_of
from lab.api.jobs.jobs import Jobs
from lab.api.jobs.submit import service_job, submit
from lab.api.telemetry.logs import log
from lab.config.datasetfile import ScheduledDataset
from lab.datasets.source import parse
from lab.errors import LabError
from lab.lifecycle.datasets import dataset
from lab.lifecycle.images.provenance import read_provenance
from lab.requests.datasets import RefreshDataset
from lab.state.service import JobKind

_PAUSE = 3600.0
"""Seconds after a refresh that failed, at most: the interval itself where that is shorter."""
_LOADS: tuple[JobKind, ...] = ("create-dataset", "refresh-dataset")


def next_refresh(core: Core, name: str) -> float | None:
    """When a dataset is refreshed, in epoch seconds; None if it is not scheduled, or not there."""
    found = next((one for one in core.settings.serve.datasets if one.name == name), None)
    return None if found is None else _due(core, found)


def _due(core: Core, scheduled: ScheduledDataset) -> float | None:
    latest = latest_of(core.store, scheduled.name)
    if latest is None:
        return None
    at = latest.created_at + scheduled.refresh
    job = last_refresh(core.store, scheduled.name, [latest], ["failed", "cancelled"])
    if job is not None:
        at = max(at, (job.ended_at or job.created_at) + min(scheduled.refresh, _PAUSE))
    return at


class Refresher:
    """Looks every ``sweep`` seconds which dataset is due."""

    def __init__(self, core: Core, jobs: Jobs) -> None:
        self._core = core
        self._jobs = jobs
        self.periodic = Periodic("datasets", self.refresh, core.settings.serve.sweep)

    def refresh(self) -> None:
        """Submit the refresh of the dataset that is due for the longest time."""
        core = self._core
        if any(job.kind in _LOADS for job in core.store.jobs.open()):
            return
        due = []
        for scheduled in core.settings.serve.datasets:
            at = _due(core, scheduled)
            if at is not None and at <= time.time():
                due.append((at, scheduled))
        for _, scheduled in sorted(due, key=lambda one: one[0]):
            try:
                self._submit(scheduled)
            except LabError as error:
                extra = {"dataset": scheduled.name, "error": error.what}
                log.warning("a dataset was not refreshed", extra=extra)
                continue
            return

    def _submit(self, scheduled: ScheduledDataset) -> None:
        latest = latest_of(self._core.store, scheduled.name)
        if latest is None:
            return
        request = RefreshDataset(name=scheduled.name, keep=scheduled.keep)
        with self._core.contexts.use() as ctx:
            made, source = read_provenance(ctx, latest), None
            if not made.source:
                return  # a copy of another host's, which refreshes it
            with suppress(LabError):  # a source that is gone fails when it is read
                source = parse(made.source)
            guest = dataset.guest_size(ctx.store, source)
        submit(self._jobs, service_job(request, project=latest.project, guests=[guest]))
