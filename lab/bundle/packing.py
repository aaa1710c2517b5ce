"""The file itself: a tar archive, compressed with zstd, that is written once from its start."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import IO, Any

from lab.distribution import extra
from lab.values import dataclass

PART = 16 << 20
"""Bytes of a file of a stream, and so of the memory that it takes."""


@dataclass
class Packing:
    """A bundle that is being written; all its files are in the directory ``top``."""

    tar: tarfile.TarFile
    top: str
    at: float
    """When it was begun, in epoch seconds: the time of all its files."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size in bytes and SHA-256 of each file, by its path below ``top``."""

    def add(self, path: str, content: str | bytes) -> None:
        """Add a file; ``path`` is relative, and ours."""
        data = content.encode() if isinstance(content, str) else content
        info = tarfile.TarInfo(f"{self.top}/{path}")
        info.size, info.mtime, info.mode = len(data), int(self.at), 0o600
        self.tar.addfile(info, io.BytesIO(data))
        self.files[path] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def add_json(self, path: str, value: Any) -> None:
        """Add a value as JSON."""
        self.add(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


class Parts:
    """A stream whose size is not known before, as files ``directory/000000``, ``000001`` ...

    A tar archive has sizes first: it is cut into files of ``PART`` bytes, and is complete once it
    is finished; an error before that leaves some of its first files.
    """

    def __init__(self, out: Packing, directory: str) -> None:
        self.refused = False
        """Whether the bundle itself could not be written: nothing of it is to be saved."""
        self._out = out
        self._directory = directory
        self._number = 0
        self._waiting = bytearray()

    def write(self, data: bytes, /) -> int:
        """Take all of ``data``."""
        self._waiting += data
        while len(self._waiting) >= PART:
            self._put(bytes(self._waiting[:PART]))
            del self._waiting[:PART]
        return len(data)

    def flush(self) -> None:
        """Nothing: a file is written once its size is known."""

    def finish(self) -> None:
        """Write what is left."""
        if self._waiting:
            self._put(bytes(self._waiting))
            self._waiting.clear()

    def _put(self, data: bytes) -> None:
        self.refused = True
        self._out.add(f"{self._directory}/{self._number:06}", data)
        self.refused = False
        self._number += 1


@contextmanager
def packing(to: IO[bytes], top: str) -> Iterator[Packing]:
    """Write a bundle to ``to``, which stays open; raises HostUnfit where zstandard is missing."""
    with extra("host", "a bundle"):
        import zstandard
    compressor = zstandard.ZstdCompressor(level=6)
    with (
        compressor.stream_writer(to, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield Packing(tar, top, time.time())
