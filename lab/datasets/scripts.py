"""Directories of SQL files, which are executed in the order of their names.

So do the images of containers of servers (``docker-entrypoint-initdb.d``), and so does ``lab dump``
write one: a file for each part of a dump that is of one database. The views of all databases follow
their tables, in files of their own, as they do in the dump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from lab.datasets.kinds import sql
from lab.datasets.pieces import Piece, content
from lab.errors import LabError

_SCRIPT = re.compile(r".*\.sql(?:\.(?:gz|zst|xz|bz2|zip))?")
_OF_OTHERS = re.compile(
    r".*@.*|.+-schema-(?:create|post|triggers|view|sequence)\.sql.*|[^.]+\..+-schema\.sql.*"
    r"|[^.]+\..+\.\d{5,}\.sql.*"
)
"""Names of MySQL Shell's and mydumper's files, whose order is another one."""
_PART = re.compile(rb"-- Current Database: `((?:[^`]|``)+)`\r?\n")
_END = b"/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;"
"""What both dump programs write first, once all databases are done."""
_LINE = 1024
"""Bytes of a line, of which longer ones are rows."""
_HEAD = 1 << 16
"""Bytes before the first database, and after the last one, at most."""
_FILES = 99_999
_ONE_FILE = "`--to FILE` writes it to one file, as it is"
_NAME = 64
"""Characters of a database's name."""


def are_scripts(names: Mapping[str, bool]) -> bool:
    """Whether a directory has nothing else; ``names``: of its entries, true for directories."""
    visible = [name for name in names if not name.startswith(".")]
    return bool(visible) and all(
        _SCRIPT.fullmatch(name) and not names[name] and not _OF_OTHERS.fullmatch(name)
        for name in visible
    )


def foreign(names: Iterable[str]) -> str:
    """A name that other programs give; empty: there is none."""
    return next((name for name in sorted(names) if _OF_OTHERS.fullmatch(name)), "")


def pieces(top: Path, files: Iterable[Path], before: bytes) -> Iterator[Piece]:
    """The SQL of each file behind ``before``."""
    for path in files:
        if not path.name.startswith("."):
            yield Piece(str(path.relative_to(top.parent)), content(path, sql), before)


class Split:
    """A dump that is written to a directory, each part of it that is of one database to a file.

    Each file is a dump as well: it begins and ends as the whole does. A line that looks as if a
    database began is none in the body of a routine, which has a delimiter of its own.
    """

    def __init__(self, create: Callable[[str], BinaryIO]) -> None:
        """``create`` makes a file of that name, or opens what it made, to append to it."""
        self._create = create
        self._names: list[str] = []
        self._file: BinaryIO | None = None
        self._head = self._tail = self._held = b""
        self._within = self._ended = self._in_body = False

    def write(self, data: bytes) -> int:
        """Take more of the dump; raises LabError for what neither program writes."""
        for part in _lines(data):
            is_end = part.endswith(b"\n")
            if self._within:
                self._put(part)
                self._within = not is_end
            elif is_end:
                line, self._held = self._held + part, b""
                self._line(line)
            elif len(self._held) + len(part) > _LINE:
                self._put(self._held + part)
                self._held, self._within = b"", True
            else:
                self._held += part
        return len(data)

    def flush(self) -> None:
        """Nothing: files are complete when the dump is."""

    def close(self) -> None:
        """Close the last file, whether or not the dump is complete."""
        if self._file is not None:
            self._file.close()

    def complete(self) -> None:
        """Give all files their end; raises LabError if the dump has none."""
        self._put(self._held)
        self.close()
        if not self._tail.rstrip().rpartition(b"\n")[2].startswith(b"-- Dump completed"):
            raise LabError("the dump is incomplete: its last line is not `-- Dump completed`")
        for name in self._names:
            with self._create(name) as file:
                file.write(self._tail)

    def _line(self, line: bytes) -> None:
        if line.startswith(b"DELIMITER "):
            self._in_body = line.split()[1:] != [b";"]
        elif not self._in_body and (found := _PART.fullmatch(line)):
            self._begin(found[1].replace(b"``", b"`").decode(errors="replace"))
        elif not self._in_body and line.startswith(_END):
            self._ended = True
        self._put(line)

    def _begin(self, database: str) -> None:
        if self._file is not None:
            self._file.close()
        if len(self._names) == _FILES:
            raise LabError(f"the dump has more than {_FILES} parts", hint=_ONE_FILE)
        # Without hyphens: `-schema-post.sql` would be a file of mydumper.
        plain = re.sub(r"\W", "_", database[:_NAME], flags=re.ASCII)
        self._names.append(f"{len(self._names) + 1:05}_{plain}.sql")
        self._file, self._ended = self._create(self._names[-1]), False
        self._file.write(self._head + self._tail)
        self._tail = b""

    def _put(self, data: bytes) -> None:
        if self._ended:
            self._tail += data
        elif self._file is not None:
            self._file.write(data)
        else:
            self._head += data
        if max(len(self._head), len(self._tail)) > _HEAD:
            raise LabError(
                f"the dump has more than {_HEAD >> 10} KiB before its first database or after its"
                " last one, as none of mysqldump or mariadb-dump has",
                hint=_ONE_FILE,
            )


def _lines(data: bytes) -> list[bytes]:
    """Lines; a carriage return ends none."""
    found = data.split(b"\n")
    return [line + b"\n" for line in found[:-1]] + ([found[-1]] if found[-1] else [])
