"""Bundles as they are shown."""

from __future__ import annotations

from lab.values import dataclass


@dataclass(frozen=True)
class BundleView:
    """A bundle that was written. ``size``: bytes of all its files, uncompressed."""

    lab: str
    state: str
    """Of the lab, as it was observed."""
    size: int
    files: int
    seconds: float
    lacks_lab: str = ""
    """Why the lab itself is not in it, although that was requested."""
