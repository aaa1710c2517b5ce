"""Snapshots of a service's labs."""

from __future__ import annotations

import uuid
from typing import Any

from lab.client.jobs import Jobs
from lab.client.models import Job, read
from lab.client.transport import Wire, path_of
from lab.errors import NotFound
from lab.progress import Listener
from lab.views.snapshots import Pruned, SnapshotView


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
        self,
        lab: str,
        name: str = "manual",
        *,
        disks_only: bool = False,
        ttl: float | None = None,
        protected: bool = False,
        listener: Listener | None = None,
    ) -> SnapshotView:
        """Take a snapshot called ``name``, with RAM where all nodes run, unless ``disks_only``.

        ``ttl``: seconds until it is removed, once nothing descends from it. ``protected``: it is
        removed only with force. Raises NotFound, InvalidSpec, Conflict.
        """
        path, key = path_of("labs", lab, "snapshots"), str(uuid.uuid4())
        body: dict[str, Any] = {"name": name}
        body |= {"disks_only": True} if disks_only else {}
        body |= {"ttl": ttl} if ttl is not None else {}
        body |= {"protected": True} if protected else {}
        answer = self._wire.ask("POST", path, body=body, key=key)
        if answer.status == 201:
            return read(answer.body, SnapshotView)
        job = self._jobs.follow(read(answer.body, Job).id, listener).check()
        label = job.about.partition(":")[2]
        for found in self.all(lab):
            if found.label == label:
                return found
        raise NotFound(f"the snapshot {label} of {lab} was removed")

    def protect(self, lab: str, label: str, *, protected: bool = True) -> SnapshotView:
        """Protect a snapshot from removal, by label or name, or end that.

        Raises NotFound, and Conflict while a job works on the lab.
        """
        path = path_of("labs", lab, "snapshots", label)
        answer = self._wire.ask("PATCH", path, body={"protected": protected})
        return read(answer.body, SnapshotView)

    def remove(
        self, lab: str, label: str, *, force: bool = False, listener: Listener | None = None
    ) -> None:
        """Remove a snapshot, by label or name (the newest); ``force``: a protected one as well.

        Raises NotFound, Conflict (protected, or needed by branches or other snapshots).
        """
        path, query = path_of("labs", lab, "snapshots", label), {"force": "true"} if force else {}
        self._jobs.done("DELETE", path, query, None, listener)

    def prune(self, lab: str, *, listener: Listener | None = None) -> list[str]:
        """Remove snapshots beyond the schedule's count; their labels. Raises NotFound, Conflict."""
        answer = self._wire.ask("POST", path_of("labs", lab, "snapshots", "prune"), twice=True)
        if answer.status == 200:
            return list(read(answer.body, Pruned).removed)
        job = self._jobs.follow(read(answer.body, Job).id, listener).check()
        labels = job.about.partition(":")[2]
        return labels.split(",") if labels else []
