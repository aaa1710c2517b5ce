"""What the guest's program ``load`` does in a fake guest.

It executes the statements of a disk, one by one. A physical backup is a stream whose system
tablespace, ``ibdata1``, is SQL.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lab.datasets.dump import chunks, statements
from lab.errors import CommandFailed

_PASSED_OVER = re.compile(rb"/\*M?!|(USE|SET|LOCK|UNLOCK|COMMIT)\b", re.IGNORECASE)
"""What SQLite does not have, and what data do not depend on."""


def run(disk: Path, size: int, execute: Callable[[str], object]) -> str:
    """What ``look`` says once the server's client has read a disk's SQL, or had an error."""
    with disk.open("rb") as file:
        for one in statements(_first(size, chunks(file))):
            if _PASSED_OVER.match(one.text):
                continue
            try:
                execute(one.text.decode())
            except CommandFailed as error:
                file.seek(0)
                line = file.read(one.offset).count(b"\n") + 1
                return f"done 1\nERROR 1064 (42000) at line {line}: {error.stderr}\n"
    return "done 0\n"


def unpack(disk: Path, size: int) -> tuple[str, bytes]:
    """What ``look`` says once a disk's stream is unpacked, and the system tablespace in it."""
    with disk.open("rb") as file:
        data = file.read(size)
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        magic, kind, length = struct.unpack_from("<8sxcI", data, at)
        if magic != b"XBSTCK01":
            return f"done 1\nxb_stream_read_chunk(): wrong chunk magic at offset {at:#x}.\n", b""
        path = data[at + 14 : at + 14 + length]
        at += 14 + length
        if kind == b"P":
            (size,) = struct.unpack_from("<Q", data, at)
            found[path] = found.get(path, b"") + data[at + 20 : at + 20 + size]
            at += 20 + size
    return "done 0\n", found[b"ibdata1"]


def prepare(tablespace: bytes) -> str:
    """What ``look`` says once a backup is prepared."""
    if tablespace.startswith(b"corrupt"):
        return "done 1\n[Note] InnoDB: recovering\n[ERROR] InnoDB: a page is corrupted\n"
    return "done 0\n"


def adopt(tablespace: bytes, execute: Callable[[str], object]) -> str:
    """What ``look`` says once a server has started on a backup."""
    for one in statements([tablespace]):
        try:
            execute(one.text.decode())
        except CommandFailed as error:
            return f"done 1\n[ERROR] {error.stderr}\n"
    return "done 0\n"


def read(stdin: bytes, execute: Callable[[str], object]) -> None:
    """Execute queries; raises CommandFailed as the server's client does."""
    for one in statements(iter([stdin])):
        if not _PASSED_OVER.match(one.text):
            try:
                execute(one.text.decode())
            except CommandFailed as error:
                line = stdin.count(b"\n", 0, one.offset) + 1
                output = f"ERROR 1064 (42000) at line {line}: {error.stderr}\n"
                raise CommandFailed(["load"], 1, stderr=output) from None


def _first(size: int, data: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in data:
        yield chunk[:size]
        size -= len(chunk)
        if size <= 0:
            return
