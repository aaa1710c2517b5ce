"""Which server a source is of, by its first bytes: known before anything is read or loaded.

What cannot be read is of no known server: an error is that of the reader, which says more.

A directory of mydumper names its server nowhere. It has the server's position, whose GTIDs each
family writes in a form of its own, and what the server showed of its databases and tables.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Literal

from lab.config.enginefile import DialectName
from lab.datasets.dump import chunks, statements
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
_FILES = 1000
"""Files of tables of a directory of mydumper that are looked at, at most."""
_POSITION = re.compile(
    rb"^(?:SHOW MASTER STATUS:|\[(?:master|source)\])[^\S\n]*\n(?:(?!\[|SHOW )[^\n]*\n){0,9}?"
    rb"[#\s]*(?:GTID:|executed_gtid_set\s*=)[^\S\n]*\"?([^\s\"]+)",
    re.IGNORECASE | re.MULTILINE,
)
"""The server's own position in ``metadata`` of mydumper, as 0.10 and as later ones write it; not
that of the server which it replicates from."""
_GTIDS: Mapping[DialectName, re.Pattern[bytes]] = {
    "mariadb": re.compile(rb"\d{1,10}-\d{1,10}-\d{1,20}(?:,|\Z)"),
    "mysql": re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:"),
}
_SHOWN: Mapping[DialectName, re.Pattern[bytes]] = {
    # Its current_timestamp() since 10.2, and its default collations since 11.5.
    "mariadb": re.compile(
        rb"\bDEFAULT current_timestamp\(|\bCOLLATE[ =]\w*(?:uca1400|nopad)_"
        rb"|\ACREATE SEQUENCE\b|\bWITH SYSTEM VERSIONING\b"
    ),
    # Each database since 8.0.16 has /*!80016 DEFAULT ENCRYPTION='N' */. MariaDB writes no comment
    # of a version that it does not have itself.
    "mysql": re.compile(rb"/\*!8\d{4}\s|(?m:^)[^\S\n]*'' json\b"),
}
"""What only a server of the family shows of databases and tables (SHOW CREATE). No sign is a
collation utf8mb4_0900, which MariaDB has since 11.4.5."""
_QUOTED = re.compile(
    rb"(?:'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)|`(?:[^`]|``)*(?:`|\Z)|\"(?:[^\"\\]|\\.|\"\")*(?:\"|\\?\Z))",
    re.DOTALL,
)
"""Strings and names; one without an end takes all that is left, so that nothing is read again."""
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
    if source.layout == "mydumper":
        return _of_mydumper(source.path)
    with suppress(OSError):
        files = sorted(source.path.rglob("*.sql*"))[:1]
        return next(map(_of_file, files), "")
    return ""


def _of_mydumper(top: Path) -> SourceDialect:
    if position := _POSITION.search(_head(top / "metadata")):
        for dialect, written in _GTIDS.items():
            if written.match(position[1]):
                return dialect
    with suppress(OSError):
        databases = sorted(top.glob("*-schema-create.sql*"))
        others = [*top.glob("*-schema-sequence.sql*"), *top.glob("*-schema.sql*")]
        for path in [*databases, *sorted(others)][:_FILES]:
            if found := _shown(_head(path)):
                return found
    return ""


def _shown(text: bytes) -> SourceDialect:
    """Whose server has shown what a file creates; strings and names are no signs."""
    found: set[DialectName] = set()
    with suppress(LabError):  # a file may end anywhere
        for one in statements([text]):
            if one.text.startswith(b"CREATE "):
                bare = _QUOTED.sub(b"''", one.text)
                found |= {name for name, sign in _SHOWN.items() if sign.search(bare)}
    return found.pop() if len(found) == 1 else ""


def _of_file(path: Path) -> SourceDialect:
    return header(_head(path)).dialect


def _of_bytes(data: Iterator[bytes]) -> SourceDialect:
    return header(_first(data)).dialect


def _head(path: Path) -> bytes:
    """The first ``HEAD`` bytes of a file, unpacked; fewer where it cannot be read."""
    with suppress(OSError):
        if path.is_file():  # a pipe is read once
            with path.open("rb") as file:
                return _first(islice(chunks(file, HEAD), _PARTS))
    return b""


def _first(data: Iterator[bytes]) -> bytes:
    head = b""
    with suppress(LabError):  # a part of what is compressed is truncated
        for found in sql(data, "the dump"):
            head += found
            if len(head) >= HEAD:
                break
    return head


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
