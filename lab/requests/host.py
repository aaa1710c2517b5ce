"""Requests about a host."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.request import HOST_ONLY, IN_SECONDS, FieldMark, Request, Seconds


class CollectGarbage(Request, frozen=True, kw_only=True):
    """What to remove, as for `lab gc`."""

    dry_run: Annotated[
        bool, Meta(description="Report what would be removed, and remove nothing.")
    ] = False
    orphans: Annotated[
        bool, Meta(description="Also tagged resources that are missing from the state database.")
    ] = False
    unused: Annotated[bool, Meta(description="Also unused images and templates.")] = False
    age: Annotated[
        Seconds,
        Meta(
            ge=0, le=10 * 366 * 86400, description=f"Only those unused for this time, {IN_SECONDS}."
        ),
    ] = 0.0


class AddEngine(Request, frozen=True, kw_only=True):
    """A build of a server to add as an engine; a foreign program, which only its host adds."""

    name: Annotated[str, FieldMark("about", "engine")] = ""
    source: Annotated[str, HOST_ONLY] = ""
    """The path of the build."""
    force: Annotated[bool, HOST_ONLY] = False
    """Replace an engine of that name."""


class RemoveEngine(Request, frozen=True, kw_only=True):
    """The removal of an added engine."""

    name: Annotated[str, FieldMark("about", "engine")] = ""


ORDINARY = CollectGarbage()
"""What is expired, or was left over by commands that were killed."""
