"""The content of a chain of overlays, read from its files without a flat copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from lab.errors import InvalidSpec
from lab.run import run
from lab.storage import Extent
from lab.storage.qcow2_format import Backing, read_header
from lab.values import dataclass

_MAP_TIMEOUT = 120.0


@dataclass(frozen=True)
class StoredRange:
    """Bytes of a guest's disk, and where they are stored."""

    offset: int
    """Where the guest sees them."""
    length: int
    handle: int
    """The open file that has them."""
    position: int
    """Where they are in that file."""


def open_parts(top: Path, stack: ExitStack) -> list[StoredRange]:
    """All data of the qcow2 file ``top`` and the files below it, ascending.

    ``stack`` closes the files; while they are open, they may be removed. Raises
    HostUnfit without qemu-img, CommandFailed if it cannot read a file.
    """
    argv = ["qemu-img", "map", "--force-share", "--output=json", "-f", "qcow2", os.fspath(top)]
    entries = json.loads(run(argv, timeout=_MAP_TIMEOUT).stdout)
    handles = [stack.enter_context(path.open("rb")).fileno() for path in _chain(top)]
    return [
        StoredRange(entry["start"], entry["length"], handles[entry["depth"]], entry["offset"])
        for entry in entries
        if entry["data"] and not entry["zero"]
    ]


def seal(top: Path) -> str:
    """Size and times of every file of the chain below ``top``, as one text.

    The kernel changes a file's ctime at each write, truncation or replacement, and no program can
    set it; so equal seals mean that nothing was written. A chain that cannot be read has a unique
    seal.
    """
    found: list[str] = []
    try:
        found.extend(
            f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
            for status in map(Path.stat, _chain(top))
        )
    except (OSError, InvalidSpec) as error:
        found.append(f"unreadable: {error}")
    return " ".join(found)


def read_parts(parts: list[StoredRange], chunk: int) -> Iterator[Extent]:
    """Offset and content of each part, in pieces of at most ``chunk`` bytes."""
    for part in parts:
        for done in range(0, part.length, chunk):
            length = min(chunk, part.length - done)
            data = os.pread(part.handle, length, part.position + done)
            # the last sector of a raw file may be incomplete
            yield part.offset + done, data.ljust(length, b"\0")


def _chain(top: Path) -> Iterator[Path]:
    backing: Backing | None = Backing(top, "qcow2")
    while backing:
        yield backing.path
        if backing.format not in ("qcow2", "raw"):
            raise InvalidSpec(f"{backing.path} has no recorded format")
        backing = read_header(backing.path).backing if backing.format == "qcow2" else None
