"""Snapshots, as they are shown."""

from __future__ import annotations

from typing import Annotated

from lab.marks import Public, Time, public
from lab.values import dataclass


@dataclass(frozen=True)
class SnapshotView:
    """The disks of all nodes at one moment and, if `warm`, their RAM."""

    label: Annotated[str, public("before-upgrade.20261121t110000")]
    name: Annotated[str, public("before-upgrade")]
    """The first part of its label, which users choose."""
    at: Public[Time | None]
    """When it was taken; null if that is not known."""
    warm: Public[bool] = False
    """With the RAM of all nodes."""
    why_cold: Public[str] = ""
    """Why it has no RAM."""
    pause: Public[float] = 0.0
    """How long the nodes were paused, in seconds."""
    ram: Public[int] = 0
    """Size of RAM and device state on disk, in bytes."""
    protected: Public[bool] = False
    """It is removed only with force."""
    expires_at: Public[Time | None] = None
    """When it is removed, unless it is used; null for never."""
    parent: Annotated[
        str, public("lab:shop@before-upgrade.20261121t110000", "template:KEY@formed")
    ] = ""
    """The snapshot or template that it descends from."""
    branches: Public[tuple[str, ...]] = ()
    """The labs that were cloned from it."""
    current: Public[bool] = False
    """The last snapshot that the lab took, or was rolled back to."""


@dataclass(frozen=True)
class Pruned:
    """The labels that were removed because the schedule does not keep them."""

    removed: Annotated[tuple[str, ...], public(["hourly.20261121t110000"])]
