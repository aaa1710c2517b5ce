"""What became of an archive, as it is shown."""

from __future__ import annotations

from lab.marks import Public
from lab.values import dataclass


@dataclass(frozen=True)
class ExportView:
    """An archive that was sent."""

    kind: Public[str]
    """image, template or snapshot"""
    key: Public[str]
    """Of a snapshot its name, as ``shop@loaded``."""
    to: Public[str]
    """A file, ``-`` or a host."""
    outcome: Public[str]
    """written (to a file), imported (by a host), or exists (it had it already)"""
    size: Public[int]
    seconds: Public[float]
    lab: Public[str] = ""
    """The lab that a host made of a snapshot."""


@dataclass(frozen=True)
class ImportView:
    """What an archive brought."""

    kind: Public[str]
    key: Public[str]
    """Under which it is here."""
    outcome: Public[str]
    """imported, or exists if it was here already"""
    notes: Public[tuple[str, ...]] = ()
    """What a user should know of it."""
