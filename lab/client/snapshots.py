"""Snapshots of a service's labs."""

from __future__ import annotations

from typing import Any

from lab.client.jobs import Jobs
from lab.client.models import read
from lab.client.run import run, settable
from lab.client.transport import Wire, path_of
from lab.progress import Listener
from lab.requests.snapshots import ChangeSnapshot, DeleteSnapshot, PruneSnapshots, TakeSnapshot
from lab.views.snapshots import SnapshotView


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
        self, lab: str, name: str = "manual", *, listener: Listener | None = None, **fields: Any
    ) -> SnapshotView:
        """Take a snapshot called ``name``, with RAM where all nodes run.

        ``fields``: those of ``TakeSnapshot``, such as ``disks_only=True``. Raises NotFound,
        InvalidSpec, Conflict.
        """
        asked = TakeSnapshot(lab=lab, name=name, **settable(TakeSnapshot, fields))
        taken: SnapshotView = run(self._wire, self._jobs, asked, None, listener)
        return taken

    def protect(self, lab: str, label: str, *, protected: bool = True) -> SnapshotView:
        """Protect a snapshot from removal, by label or name, or end that.

        Raises NotFound, and Conflict while a job works on the lab.
        """
        asked = ChangeSnapshot(lab=lab, label=label, protected=protected)
        changed: SnapshotView = run(self._wire, self._jobs, asked, None, None)
        return changed

    def remove(
        self, lab: str, label: str, *, force: bool = False, listener: Listener | None = None
    ) -> None:
        """Remove a snapshot, by label or name (the newest); ``force``: a protected one as well.

        Raises NotFound, Conflict (protected, or needed by branches or other snapshots).
        """
        asked = DeleteSnapshot(lab=lab, label=label, force=force)
        run(self._wire, self._jobs, asked, None, listener)

    def prune(self, lab: str, *, listener: Listener | None = None) -> list[str]:
        """Remove snapshots beyond the schedule's count; their labels. Raises NotFound, Conflict."""
        labels: list[str] = run(self._wire, self._jobs, PruneSnapshots(lab=lab), None, listener)
        return labels
