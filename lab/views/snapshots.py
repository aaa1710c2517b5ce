"""Snapshots, as they are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SnapshotView:
    """A snapshot of a lab."""

    label: str
    name: str
    """The first part of its label, which users choose."""
    at: float | None
    """When it was taken; None if that is not known."""
    warm: bool = False
    """Whether it has the RAM of all nodes."""
    why_cold: str = ""
    """Why it has no RAM."""
    pause: float = 0.0
    """Seconds for which the nodes were paused."""
    ram: int = 0
    """Bytes on disk of its files besides disks."""
    protected: bool = False
    expires_at: float | None = None
    """When it is removed, unless it is used; None for never."""
    parent: str = ""
    """The capture that it descends from, as ``OWNER@LABEL``."""
    branches: tuple[str, ...] = ()
    """The labs that are clones of it."""
    current: bool = False
    """Whether no other snapshot was taken or rolled back to since this one was."""
