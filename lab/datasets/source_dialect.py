"""Which server a source is of, by its first bytes: known before anything is read or loaded.

What cannot be read is of no known server: an error is that of the reader, which says more.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Literal

from lab.config.enginefile import DialectName
from lab.datasets.dump import chunks
from lab.datasets.kinds import sql
from lab.datasets.source import (
    BackupDirectory,
    BackupStream,
    DataDirectory,
    DumpDirectory,
    DumpFile,
    Server,
    Source,
    StandardInput,
)
from lab.datasets.survey import HEAD, header
from lab.errors import HostUnfit, LabError

_SECONDS = 10.0
_PARTS = 32
"""Parts of ``HEAD`` bytes that are read: bzip2 gives nothing before a whole block, of 900 kB."""
_GREETING = 256
"""Bytes of a server's first packet in which its version is."""
_MARIADB: DialectName = "mariadb"
SourceDialect = DialectName | Literal[""]


def dialect_of_source(source: Source) -> SourceDialect:
    """Whose SQL or files a source has; empty: unknown."""
    if isinstance(source, BackupDirectory | DataDirectory | BackupStream):
        # The data dictionary of MySQL; what was before 8.0 is of no server here.
        return "mysql" if (source.path / "mysql.ibd").exists() else _MARIADB
    if isinstance(source, DumpFile):
        return _of_file(source.path)
    if isinstance(source, DumpDirectory):
        return _of_directory(source)
    if isinstance(source, StandardInput):
        # What is looked at here is read again.
        peek = getattr(sys.stdin.buffer, "peek", lambda _: b"")
        return _of_bytes(iter([peek(HEAD)]))
    if isinstance(source, Server):
        return _of_server(source)
    return ""


def _of_directory(source: DumpDirectory) -> SourceDialect:
    if source.layout == "mysqlsh":
        return "mysql"
    with suppress(OSError):
        files = sorted(source.path.rglob("*.sql*"))[:1]
        return next(map(_of_file, files), "")
    return ""


def _of_file(path: Path) -> SourceDialect:
    try:
        if not path.is_file():  # a pipe is read once
            return ""
        with path.open("rb") as file:
            return _of_bytes(islice(chunks(file, HEAD), _PARTS))
    except OSError:
        return ""


def _of_bytes(data: Iterator[bytes]) -> SourceDialect:
    head = b""
    with suppress(LabError):  # a part of what is compressed is truncated
        for found in sql(data, "the dump"):
            head += found
            if len(head) >= HEAD:
                break
    return header(head).dialect


def _of_server(source: Server) -> SourceDialect:
    with suppress(LabError):
        return dialect_of_version(greeting(source))
    return ""


def dialect_of_version(version: str) -> DialectName:
    """Whose server says that it is of a version."""
    return _MARIADB if _MARIADB in version.lower() else "mysql"


def greeting(source: Server) -> str:
    """The version in a server's greeting, which it sends before anybody logs in.

    Raises HostUnfit if there is none.
    """
    why = "it sent no greeting of such a server"
    packet = b""
    try:
        with closing(socket.create_connection((source.host, source.port), _SECONDS)) as connection:
            packet = connection.recv(_GREETING)
    except OSError as error:
        why = error.strerror or str(error)
    # Length and number of the packet, the version of the protocol, then the server's, and a zero.
    version, end, _ = packet[5:].partition(b"\0")
    if packet[4:5] == b"\x0a" and end:
        return version.decode(errors="replace")
    if packet[4:5] == b"\xff":  # an error: its number, and its text
        text = packet[7:].decode(errors="replace").strip()
        why = "".join(sign if sign.isprintable() else "?" for sign in text)
    raise HostUnfit(f"{source} cannot be reached", hint="check address and port", details=[why])
