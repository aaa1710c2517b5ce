"""What became of an archive, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportView:
    """An archive that was sent: ``kind`` is image, template or snapshot.

    ``key``: of a snapshot its name, as ``shop@loaded``. ``to``: a file, ``-`` or a host.
    ``outcome``: written (to a file), imported (by a host), exists (it had it already). ``lab``: the
    one that a host made of a snapshot.
    """

    kind: str
    key: str
    to: str
    outcome: str
    size: int
    seconds: float
    lab: str = ""


@dataclass(frozen=True)
class ImportView:
    """What an archive brought. ``outcome``: imported, or exists if it was here already.

    ``key``: under which it is here. ``notes``: what a user should know of it.
    """

    kind: str
    key: str
    outcome: str
    notes: tuple[str, ...] = ()
