"""Requests about archives; commands perform them, no jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from lab.names import LAB_NAME, ArchiveKind
from lab.request import EMPTY, HOST_ONLY, Request
from lab.spec import Ttl
from lab.values import dataclass

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


class ExportArchive(Request, frozen=True, kw_only=True):
    """An archive to write, or to have another host import."""

    kind: ArchiveKind
    which: str
    """A key or a recipe, a version of a dataset, or the label of a snapshot of ``lab``."""
    to: Annotated[Destination, HOST_ONLY]
    lab: str = ""
    image: bool = True
    """With the images that it needs."""
    ram: bool = True
    """With its RAM, if it has any."""


class ImportArchive(Request, frozen=True, kw_only=True):
    """An archive to import."""

    kind: ArchiveKind
    where: str
    """The path of a file, or ``-``: standard input."""
    how: Annotated[ImportOptions, HOST_ONLY] = WHOLE
    talk: bool = False
    """As the other end of an export, which gets the report, on standard output."""


class ImportSnapshot(ImportArchive, frozen=True, kw_only=True):
    """The archive of a snapshot to import, and the lab to make of it."""

    kind: ArchiveKind = "snapshot"
    where: str = "-"
    name: Annotated[str, EMPTY, Meta(pattern=LAB_NAME)] = ""
    """Empty: the exported lab's, with a number if that is taken."""
    ttl: Ttl | None = None
    """Seconds of its lease."""
    keep_sessions: bool = False
    """Whether client sessions in the snapshot are kept; else they are ended."""


class OpenBundle(ImportSnapshot, frozen=True, kw_only=True):
    """A bundle with a lab in it, and the lab to make of that."""


AS_EXPORTED = ImportSnapshot()
"""All of the archive, and a lab of the name that it had, without a lease."""
