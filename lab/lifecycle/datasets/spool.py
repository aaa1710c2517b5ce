"""The spool: all SQL of a dataset in one file, which becomes a disk of the guest that loads it."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import BinaryIO

from lab.config.enginefile import DialectName, numbers
from lab.datasets import directory, generate
from lab.datasets.collations import former
from lab.datasets.dump import STATEMENT_LIMIT, Statement, chunks, statements
from lab.datasets.kinds import plain, sql
from lab.datasets.live import opened
from lab.datasets.pieces import Piece, content
from lab.datasets.selection import Selection
from lab.datasets.source import (
    MAGIC,
    OWN,
    DumpDirectory,
    DumpFile,
    Generated,
    Server,
    Source,
    StandardInput,
)
from lab.datasets.source_dialect import dialect_of_source
from lab.datasets.survey import (
    FUNCTIONS_LIMIT,
    HEAD,
    SIGNS,
    Found,
    leaves_collations_out,
    survey,
    truncated,
)
from lab.errors import InvalidSpec
from lab.paths import new_file, writing
from lab.storage.sparse import fill
from lab.units import MIB
from lab.values import dataclass

_ALL = Selection()
_SECRET = re.compile(rb"\b(?:IDENTIFIED|PASSWORD)\b", re.IGNORECASE)
_NOTHING = b"DO 0"
"""In the place of what is left out."""
_NO_LINE_END = re.compile(rb"[^\n]")
_FIRST = 4096
"""Bytes of the first line, which is written last: what it says follows from the rest."""


@dataclass(frozen=True)
class SqlSlice:
    """A file in the spool, or a part of one."""

    name: str
    line: int
    """Where it begins in the spool, from 1."""
    offset: int
    """Where it begins in the spool, in bytes."""
    size: int
    """In bytes."""
    lines: int = 0
    """Lines of the file that precede the part."""
    statements: int = 0
    """Statements of the file that precede the part."""


@dataclass(frozen=True)
class Spool:
    """A file of SQL, padded with empty lines to whole MiB; ``size`` in bytes."""

    path: Path
    size: int
    parts: tuple[SqlSlice, ...]
    found: Found

    def blame(self, content: Iterable[bytes], line: int) -> tuple[str, bool]:
        """File and number of the statement that begins at ``line``, or last before it.

        Also whether a password may be in it. ``content``: of the spool, from its start.
        """
        part = [one for one in self.parts if one.line <= line or one is self.parts[0]][-1]
        lines, found, text = _Lines(), (1, part.line), b""
        data = lines.of(_cut(content, part.offset, part.size))
        for one in statements(data, part.name, head=HEAD):
            at = part.line + lines.before(one.offset)
            if at > line:
                break
            found, text = (one.number, at), one.text
        number, at = part.statements + found[0], part.lines + found[1] - part.line + 1
        return f"{part.name}: statement {number}, at line {at}", bool(_SECRET.search(text))


class _Lines:
    """Counts the lines of a stream that is read, up to positions that only grow."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._counted = 0  # in the chunks that are gone

    def of(self, data: Iterable[bytes]) -> Iterator[bytes]:
        """Pass on ``data``, and count its lines."""
        offset = 0
        for chunk in data:
            self._chunks.append((offset, chunk))
            offset += len(chunk)
            yield chunk

    def before(self, offset: int) -> int:
        """The line ends before ``offset``."""
        while len(self._chunks) > 1 and self._chunks[1][0] <= offset:
            self._counted += self._chunks.popleft()[1].count(b"\n")
        if not self._chunks:
            return self._counted
        start, chunk = self._chunks[0]
        return self._counted + chunk.count(b"\n", 0, offset - start)


def write(
    source: Source | None,
    files: Sequence[Path],
    path: Path,
    database: str,
    progress: Callable[[int], None],
    selection: Selection = _ALL,
    *,
    limit: int = STATEMENT_LIMIT,
    dialect: DialectName,
    version: str = "",
) -> Spool:
    """Write the SQL of ``source``, if there is one, then of ``files``, to the new file ``path``.

    ``database``: what tables go into if the dump names no database; ``progress`` is called with
    the bytes that are written; ``selection``: of a live server; ``limit``: bytes of one statement,
    at most; ``dialect``, ``version``: of the server that is to have it. Raises InvalidSpec for a
    dump that is damaged, truncated or has the server's own databases; HostUnfit if there is no
    space, or no server to be reached.
    """
    with new_file(path) as out:
        out.write(b"\n" * _FIRST)  # its size; see below
        written = _Written(out, progress, _Changes(dialect, version), limit)
        found = Found()
        if source is not None:
            with closing(_pieces(source, selection, path.parent, dialect, version)) as pieces:
                found = _joined(written.piece(piece) for piece in pieces)
            if isinstance(source, DumpDirectory) and source.layout == "mydumper":
                found = replace(found, dialect=dialect_of_source(source))
        before = _own_session(dialect).encode()
        further = (
            written.piece(Piece(str(file), content(file, sql), before=before)) for file in files
        )
        every = [found, *further]
        long = frozenset(key for one in every for key in one.long)
        found = replace(found, signs=_together(every), long=long)
        out.flush()
        with writing(path):
            placed = written.changed(path)
        done = out.seek(0, os.SEEK_END)
        size = -(-done // MIB) * MIB
        out.write(b"\n" * (size - done))
        out.flush()
        # On a server with autocommit=0, what a source does not commit itself would be lost.
        text = "SET SESSION autocommit=1; "
        text += former(dialect) if _is_older(source, found, dialect) else ""
        if source is not None and not found.databases:
            text += f"CREATE DATABASE IF NOT EXISTS `{database}`; USE `{database}`;"
        with writing(path):
            fill(out.fileno(), text.encode().ljust(_FIRST - 1) + b"\n", 0)
    return Spool(path, size, placed, found)


def _is_older(source: Source | None, found: Found, dialect: DialectName) -> bool:
    """Whether a source may leave out collations that a newer server would choose otherwise."""
    if isinstance(source, DumpDirectory) and source.layout in ("mydumper", "mysqlsh"):
        return True  # newer ones show them
    return leaves_collations_out(found, dialect)


def _own_session(dialect: DialectName) -> str:
    """What a user's own SQL begins with, whatever the source before it has set."""
    return (
        f"{former(dialect, off=True)} SET NAMES utf8mb4; SET SESSION sql_mode=DEFAULT,"
        " time_zone=DEFAULT, foreign_key_checks=1, unique_checks=1, autocommit=1;\n"
    )


class _Written:
    """The pieces of a spool, one after the other."""

    def __init__(
        self, out: BinaryIO, progress: Callable[[int], None], changes: _Changes, limit: int
    ) -> None:
        self._out = out
        self._progress = progress
        self._changes = changes
        self._limit = limit
        self._parts: list[SqlSlice] = []
        self._done, self._line = _FIRST, 2

    def piece(self, piece: Piece) -> Found:
        """Write a piece; what is found in it."""
        seen = self._changes.of(self._done + len(piece.before))
        try:
            found = survey(self._copied(piece), piece.name, limit=self._limit, seen=seen)
        finally:
            if isinstance(piece.data, Generator):
                piece.data.close()  # a program that is read ends now
        self._put(found.rest)
        if piece.database and piece.database not in found.databases:
            found = replace(found, databases=(piece.database, *found.databases))
        found = replace(found, notes=piece.notes)
        _check(found, piece.name)
        return found

    def changed(self, path: Path) -> tuple[SqlSlice, ...]:
        """Change the statements that the server gets in other words; the pieces then."""
        return self._changes.made(path, self._done, self._parts)

    def _copied(self, piece: Piece) -> Iterator[bytes]:
        self._put(piece.before)
        begin, first = self._done, self._line
        for chunk in piece.data:
            self._put(chunk)
            self._progress(self._done)
            yield chunk
        size = self._done - begin
        self._put(b"\n")
        self._parts.append(SqlSlice(piece.name, first, begin, size, piece.lines, piece.statements))

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._done += len(data)
        self._line += data.count(b"\n")


class _Changes:
    """The statements of a spool that its server gets in other words, or not at all."""

    def __init__(self, dialect: DialectName, version: str) -> None:
        self._dialect: DialectName = dialect
        self._version = numbers(version)
        self._found: dict[int, tuple[int, bytes]] = {}

    def of(self, begin: int) -> Callable[[str, Statement], None]:
        """What ``survey`` calls for a piece that begins at this offset."""

        def seen(key: str, one: Statement) -> None:
            sign, at, size = SIGNS[key], begin + one.offset, len(one.text)
            if not sign.is_unknown(self._dialect, self._version):
                return
            _, text = self._found.get(at, (size, one.text))
            changed = sign.becomes(text, self._dialect, self._version)
            if changed is None:  # line ends stay, by which other statements are found
                changed = _NOTHING + _NO_LINE_END.sub(b" ", text[len(_NOTHING) :])
            if changed != one.text:
                self._found[at] = (size, changed.ljust(size))

        return seen

    def made(self, file: Path, size: int, parts: Iterable[SqlSlice]) -> tuple[SqlSlice, ...]:
        """Change a ``file`` of ``size`` bytes; its ``parts`` as they are then."""
        places = sorted(self._found)
        grown = (len(self._found[at][1]) - self._found[at][0] for at in places)
        sums = [0, *accumulate(grown)]

        def now(offset: int) -> int:
            return offset + sums[bisect_left(places, offset)]

        with file.open("rb+", buffering=0) as out:
            end = size
            for at in reversed(places):
                old, text = self._found[at]
                _move(out.fileno(), at + old, end, now(end) - end)
                fill(out.fileno(), text, now(at))
                end = at
        return tuple(
            replace(one, offset=now(one.offset), size=now(one.offset + one.size) - now(one.offset))
            for one in parts
        )


def _move(file: int, begin: int, end: int, shift: int) -> None:
    """Move a part of a file towards its end, the last bytes first."""
    while shift and begin < end:
        at = max(begin, end - MIB)
        fill(file, os.pread(file, end - at, at), at + shift)
        end = at


def _pieces(
    source: Source, selection: Selection, work: Path, dialect: DialectName, version: str
) -> Generator[Piece]:
    name = str(source)
    if isinstance(source, Generated):
        yield Piece(name, generate.generate(source))
    elif isinstance(source, StandardInput):
        yield Piece(name, _sql(chunks(sys.stdin.buffer)))
    elif isinstance(source, DumpFile):
        yield Piece(name, content(source.path, sql))
    elif isinstance(source, DumpDirectory):
        yield from directory.pieces(source, dialect, version)
    elif isinstance(source, Server):
        with opened(source, selection, work) as live:
            yield from live.pieces(dialect, version)
    else:
        raise InvalidSpec(
            f"{source}: data cannot be loaded from this source yet",
            hint="a file of SQL; - for standard input; a directory of a dump;"
            " mysql://user@host/database; generate:sysbench",
        )


def _sql(data: Iterator[bytes]) -> Iterator[bytes]:
    """``data`` of standard input; raises InvalidSpec for the stream of a physical backup."""
    data = plain(data, "standard input")
    first = next(data, b"")
    if first.startswith(MAGIC):
        raise InvalidSpec(
            "standard input is a stream of mbstream or xbstream, which is read from a file only",
            hint="write it to a file: mariadb-backup --backup --stream=mbstream >shop.xb; one of"
            " XtraBackup is unpacked and prepared first (xbstream -x, xtrabackup --prepare)",
        )
    yield from sql(chain([first], data), "standard input")


def _joined(parts: Iterable[Found]) -> Found:
    """What is found in a source of several parts."""
    known = Found()
    for part in parts:
        first = known if known.dialect or known.program else part
        known = Found(
            program=first.program,
            dialect=first.dialect,
            version=first.version,
            databases=tuple(dict.fromkeys(known.databases + part.databases)),
            named=known.named or part.named,
            complete=part.complete if known.complete is None else known.complete,
            tables=known.tables + part.tables,
            statements=known.statements + part.statements,
            size=known.size + part.size,
            signs=_together([known, part]),
            long=known.long | part.long,
            functions=tuple(dict.fromkeys(known.functions + part.functions))[:FUNCTIONS_LIMIT],
            notes=known.notes + part.notes,
        )
    return known


def _together(parts: Iterable[Found]) -> dict[str, int]:
    """The signs of all parts, with their counts."""
    return dict(sum((Counter(one.signs) for one in parts), Counter[str]()))


def _check(found: Found, name: str) -> None:
    if (error := truncated(found, name)) is not None:
        raise error
    if own := sorted(OWN.intersection(found.databases)):
        raise InvalidSpec(
            f"{name} has the server's own database {own[0]}",
            hint="dump the databases of the application: `--databases shop crm`",
        )


def _cut(content: Iterable[bytes], offset: int, size: int) -> Iterator[bytes]:
    """``size`` bytes of ``content`` from ``offset`` on."""
    at = 0
    for chunk in content:
        start, end = max(0, offset - at), min(len(chunk), offset + size - at)
        at += len(chunk)
        if end > start:
            yield chunk[start:end]
        if at >= offset + size:
            return
