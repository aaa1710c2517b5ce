"""Requests about snapshots of labs."""

from __future__ import annotations

from lab.requests.labs import LabRequest


class TakeSnapshot(LabRequest, frozen=True, kw_only=True, omit_defaults=True):
    """``snapshot`` called ``name``; ``scheduled``: take and remove by the lab's schedule instead.

    ``ttl``: seconds until it expires, None for never.
    """

    name: str = ""
    scheduled: bool = False
    disks_only: bool = False
    ttl: float | None = None
    protected: bool = False


class DeleteSnapshot(LabRequest, frozen=True, kw_only=True):
    """``delete-snapshot``: the subject of the job; ``force``: also if it is protected."""

    LATER = ("force",)

    force: bool = False


class PruneSnapshots(LabRequest, frozen=True, kw_only=True):
    """``prune-snapshots``."""
