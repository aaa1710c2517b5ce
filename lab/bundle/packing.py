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
