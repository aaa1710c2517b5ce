"""The seed: a small disk from which a guest, at its first boot, reads which node it is.

Format: a tar archive (POSIX ustar) on a bare disk, with ``lab/seed-id`` and a tree
``lab/root/`` that the guest unpacks over ``/`` when the id is new to it
(``images/guest/usr/lib/lab/boot``). It holds no secrets: all clones of a template share it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lab.values import dataclass

if TYPE_CHECKING:
    from tarfile import TarFile

SERIAL = "lab-seed"
"""The serial number by which the guest finds the disk."""


@dataclass(frozen=True)
class SeedFile:
    """A file to be put into the guest; ``user`` and ``group`` are numeric ids there."""

    content: bytes
    mode: int = 0o644
    user: int = 0
    group: int = 0


def pack(files: Mapping[str, SeedFile]) -> bytes:
    """The seed disk with ``files`` by absolute path; equal files give equal bytes."""
    # Loaded where a seed is written: each list of labs needs this module.
    from tarfile import USTAR_FORMAT, TarFile

    buffer = io.BytesIO()
    with TarFile.open(fileobj=buffer, mode="w", format=USTAR_FORMAT) as archive:
        _add(archive, "lab/seed-id", SeedFile(seed_id(files).encode() + b"\n"))
        for path in sorted(files):
            _add(archive, f"lab/root{path}", files[path])
    return buffer.getvalue()


def seed_id(files: Mapping[str, SeedFile]) -> str:
    """The identity of this seed: a hash of its content."""
    digest = hashlib.sha256()
    for path in sorted(files):
        file = files[path]
        head = f"{path}\0{file.mode:o} {file.user} {file.group} {len(file.content)}\0"
        digest.update(head.encode() + file.content)
    return digest.hexdigest()[:32]


def _add(archive: TarFile, name: str, file: SeedFile) -> None:
    from tarfile import TarInfo

    info = TarInfo(name)
    info.size = len(file.content)
    info.mode, info.uid, info.gid = file.mode, file.user, file.group
    archive.addfile(info, io.BytesIO(file.content))
