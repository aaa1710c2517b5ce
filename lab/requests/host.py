"""Requests about a host."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.requests.request import IN_SECONDS, Request, Seconds


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


ORDINARY = CollectGarbage()
"""What is expired, or was left over by commands that were killed."""
