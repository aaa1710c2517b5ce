"""Requests about snapshots of labs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.names import LAB_NAME
from lab.requests.labs import LabRequest, Ttl
from lab.requests.request import EMPTY, HOST_ONLY, IN_SECONDS, Mark, Request


class TakeSnapshot(LabRequest, frozen=True, kw_only=True):
    """A snapshot to take."""

    LATER = ("created_at", "scheduled", "disks_only", "ttl", "protected")

    name: Annotated[str, Meta(max_length=40, examples=["before-upgrade"])] = "manual"
    scheduled: Annotated[bool, HOST_ONLY] = False
    """Take and remove by the lab's schedule instead."""
    disks_only: Annotated[bool, Meta(description="Omit the RAM of running nodes.")] = False
    ttl: Annotated[
        Ttl | None,
        Meta(description=f"Remove it after this time, once nothing needs it, {IN_SECONDS}."),
    ] = None
    protected: Annotated[bool, Meta(description="It is removed only with force.")] = False


class DeleteSnapshot(LabRequest, frozen=True, kw_only=True):
    """The removal of a snapshot."""

    LATER = ("force",)

    label: Annotated[str, Mark("about", "snapshot")] = ""
    force: bool = False
    """Also if it is protected."""


class ImportSnapshot(Request, frozen=True, kw_only=True):
    """The lab to make of an imported snapshot: no job, a command's request."""

    name: Annotated[str, EMPTY, Meta(pattern=LAB_NAME)] = ""
    """Empty: the exported lab's, with a number if that is taken."""
    ttl: Ttl | None = None
    """Seconds of its lease."""
    keep_sessions: bool = False
    """Whether client sessions in the snapshot are kept; else they are ended."""


AS_EXPORTED = ImportSnapshot()
"""A lab of the name that it had, without a lease."""


class PruneSnapshots(LabRequest, frozen=True, kw_only=True):
    """The removal of snapshots that the lab's schedule does not keep."""
