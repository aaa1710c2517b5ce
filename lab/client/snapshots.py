"""Snapshots of a service's labs."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from lab.client.jobs import Jobs
from lab.client.models import Job, read
from lab.client.transport import Wire, path_of
from lab.lifecycle.core.views import SnapshotView
from lab.progress import Listener
from lab.schedule import read as read_label


class Snapshots:
    """The snapshots of labs; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire, jobs: Jobs) -> None:
        self._wire = wire
        self._jobs = jobs

    def all(self, lab: str) -> list[SnapshotView]:
        """The snapshots of a lab, oldest first; raises NotFound."""
        answer = self._wire.ask("GET", path_of("labs", lab, "snapshots"))
        return read(answer.body, list[SnapshotView])

    def take(
        self, lab: str, name: str = "manual", *, listener: Listener | None = None
    ) -> SnapshotView:
        """Take a snapshot called ``name``; raises NotFound, InvalidSpec, Conflict."""
        path, key = path_of("labs", lab, "snapshots"), str(uuid.uuid4())
        answer = self._wire.ask("POST", path, body={"name": name}, key=key)
        if answer.status == 201:
            return read(answer.body, SnapshotView)
        job = self._jobs.follow(read(answer.body, Job).id, listener).check()
        taken = read_label(job.about.partition(":")[2])
        return SnapshotView(taken.label, taken.name, taken.at)

    def remove(self, lab: str, label: str, *, listener: Listener | None = None) -> None:
        """Remove a snapshot, by label or name (the newest); raises NotFound, Conflict."""
        path = path_of("labs", lab, "snapshots", label)
        self._jobs.done("DELETE", path, {}, None, listener)

    def prune(self, lab: str, *, listener: Listener | None = None) -> list[str]:
        """Remove snapshots beyond the schedule's count; their labels. Raises NotFound, Conflict."""
        answer = self._wire.ask("POST", path_of("labs", lab, "snapshots", "prune"), twice=True)
        if answer.status == 200:
            return read(answer.body, _Pruned).removed
        job = self._jobs.follow(read(answer.body, Job).id, listener).check()
        labels = job.about.partition(":")[2]
        return labels.split(",") if labels else []


@dataclass(frozen=True)
class _Pruned:
    """The labels of removed snapshots."""

    removed: list[str]
