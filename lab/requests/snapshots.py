"""Requests about snapshots of labs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.request import HOST_ONLY, IN_SECONDS, FieldMark
from lab.requests.labs import LabRequest
from lab.spec import Ttl


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


class ChangeSnapshot(LabRequest, frozen=True, kw_only=True):
    """Changes of a snapshot."""

    label: Annotated[str, FieldMark("about", "snapshot")] = ""
    """Or its name: the newest of it."""
    protected: bool


class DeleteSnapshot(LabRequest, frozen=True, kw_only=True):
    """The removal of a snapshot."""

    LATER = ("force",)

    label: Annotated[str, FieldMark("about", "snapshot")] = ""
    force: Annotated[bool, Meta(description="Also if the snapshot is protected.")] = False


class DeleteSnapshots(LabRequest, frozen=True, kw_only=True):
    """The removal of snapshots: no job, a command's request, which a service gets one by one."""

    labels: Annotated[tuple[str, ...], FieldMark("about", "snapshots")]
    """Or names: the newest of each."""
    force: bool = False
    """Also those that are protected."""


class PruneSnapshots(LabRequest, frozen=True, kw_only=True):
    """The removal of snapshots that the lab's schedule does not keep."""
