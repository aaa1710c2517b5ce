"""Where the archives of exports go, and how those of imports are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.exchange.frames import Sink


@dataclass(frozen=True)
class Destination:
    """Where an archive goes: a file, a stream, or another host, which imports it."""

    where: str = ""
    """The path of a file, or ``-``: standard output."""
    host: str = ""
    """``[USER@]HOST``, which is reached over SSH; what it has is not sent again."""
    command: str = "lab"
    """The lab program of that host."""
    resume: bool = False
    """Whether an interrupted export to the file is resumed; one to a host always is."""
    native: bool = False
    """Disks of images as streams of this storage, which only the same storage reads; two hosts
    decide that by themselves."""
    sink: Sink | None = None
    """A stream that is open already."""


@dataclass(frozen=True)
class ImportOptions:
    """How an archive is imported."""

    resume: bool = False
    """Whether what was received is kept for a day if the transfer is interrupted, and an
    interrupted one is resumed."""
    warm_only: bool = False
    """Whether it fails if the RAM of a template cannot be restored here."""
    ram: bool = True
    """False leaves out the RAM of a template, so that its labs boot."""
    name: str = ""
    """What a dataset is called here; empty: as there."""


WHOLE = ImportOptions()
"""An import that is not resumed, of all that is in the archive."""
