"""The files that an overlay puts into a guest, as a tar archive and as a digest.

A file's mode is what git keeps of it: executable or not. A checkout made under a strange
umask, or by another user, gives the same image.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.values import dataclass

OVERLAYS = ("etc", "usr")
"""The subdirectories of a recipe (and of guest/) that are laid over the root file system."""


@dataclass(frozen=True)
class File:
    """A file as it goes in: ``path`` relative, with slashes; ``mode`` 0o644 or 0o755."""

    path: str
    mode: int
    content: bytes


def files(directory: Path) -> Iterator[File]:
    """All files below ``directory``, in the order of their paths."""
    found = []
    for top, _, names in os.walk(directory):
        if Path(top).name == "__pycache__":
            continue
        found += [Path(top) / name for name in names]
    for path in sorted(found, key=lambda each: each.relative_to(directory).as_posix()):
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        yield File(path.relative_to(directory).as_posix(), mode, path.read_bytes())


def overlay_tar(directories: Sequence[Path]) -> bytes:
    """The overlays of all ``directories`` as an uncompressed tar, owned by root.

    A file of a later directory replaces one of an earlier directory.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory in directories:
            for file in files(directory):
                if file.path.split("/", 1)[0] in OVERLAYS:
                    info = tarfile.TarInfo(file.path)
                    info.mode, info.size = file.mode, len(file.content)
                    tar.addfile(info, io.BytesIO(file.content))
    return buffer.getvalue()
