"""Rows that go from one server to another in files: the statements that write and read them.

Servers write and read the rows of a table several times as fast as a client's INSERTs, and several
tables at the same time. A file has the bytes of each value as the server keeps them, separated and
escaped as ``SELECT ... INTO OUTFILE`` does by default: no character set is converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.datasets.columns import BINARIES, INTEGERS, TEXTS, Column, identifier
from lab.values import dataclass

_NUMBERS = INTEGERS.keys() | {"decimal", "float", "double"}
_BYTES = (
    TEXTS
    | BINARIES
    | _NUMBERS
    | {"enum", "set", "vector"}
    | {"date", "time", "datetime", "timestamp", "year"}
    | {"geometry", "point", "linestring", "polygon", "geometrycollection"}
    | {"geomcollection"}
    | {"multipoint", "multilinestring", "multipolygon"}
)
"""Types that are read from the bytes that are kept; others, as BIT and UUID, from text."""
_PLAIN = frozenset({"", "ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})
"""Character sets in which the bytes that are escaped are no part of another character."""
ELSEWHERE = ("FEDERATED", "MRG_MyISAM")
"""Engines whose tables have no rows of their own."""
_SESSION = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"


@dataclass(frozen=True)
class Rows:
    """The rows of a table, in a file of ``directory``; ``columns`` has none that is generated."""

    database: str
    table: str
    columns: tuple[Column, ...]
    directory: str
    file: str

    @property
    def table_name(self) -> str:
        """``database.table``."""
        return f"{self.database}.{self.table}"

    def written(self) -> tuple[str, ...]:
        """The statements that write the file."""
        values = ", ".join(map(_value, self.columns)) or "1"
        text = f"SELECT {values} FROM {self._target} INTO OUTFILE {self._path}"  # noqa: S608
        return _session(strict=False), f"{text} CHARACTER SET binary"

    def read(self) -> tuple[str, ...]:
        """The statements that read the file into a table that has no rows."""
        names, changes = [], []
        # Where a statement has SET, the server counts a 0 as the next number, unless it is set.
        direct = _BYTES
        if any(column.type not in _BYTES for column in self.columns):
            direct -= _NUMBERS
        for number, column in enumerate(self.columns):
            name = identifier(column.name)
            if column.type in direct:
                names.append(name)
            else:
                names.append(f"@lab_{number}")
                changes.append(f"{name} = {_read(column, f'@lab_{number}')}")
        listed = ", ".join(names) or "@lab_0"
        # An invalid value of an ENUM is one that a strict server refuses.
        is_strict = not any(column.type in ("enum", "set") for column in self.columns)
        text = f"LOAD DATA INFILE {self._path} INTO TABLE {self._target} CHARACTER SET binary"
        changed = f" SET {', '.join(changes)}" if changes else ""
        return _session(strict=is_strict), f"{text} ({listed}){changed}"

    @property
    def _path(self) -> str:
        return f"'{self.directory}/{self.file}'"

    @property
    def _target(self) -> str:
        return f"{identifier(self.database)}.{identifier(self.table)}"


def rows_of(
    columns: Iterable[Column], directory: str, without: Iterable[str] = ()
) -> tuple[Rows, ...]:
    """The rows of all tables of ``columns``, in files of ``directory``.

    ``without``: ``database.table`` of those that have no rows of their own.
    """
    found: dict[str, list[Column]] = {}
    for column in columns:
        found.setdefault(column.table_name, []).append(column)
    passed_over = set(without)
    return tuple(
        Rows(
            some[0].database,
            some[0].table,
            tuple(column for column in some if not column.generated),
            directory,
            f"{number:06}",
        )
        for number, (name, some) in enumerate(found.items())
        if name not in passed_over
    )


def shared(sizes: Mapping[int, int], sessions: int) -> list[list[int]]:
    """Numbers with sizes, shared out to sessions that run at the same time; none is without."""
    parts: list[list[int]] = [[] for _ in range(sessions)]
    loads = [0] * sessions
    for number in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = loads.index(min(loads))
        parts[least].append(number)
        loads[least] += max(sizes[number], 1)
    return [part for part in parts if part]


def reading() -> tuple[str, ...]:
    """What a session that reads rows begins with: they were in such tables, so they fit.

    They are there when it has ended, also on a server that is given autocommit=0.
    """
    # Without unique_checks as well, the server sorts rows and keys in files first, which was found
    # to take more time, up to twice as much, than what it saves.
    return ("SET SESSION foreign_key_checks = 0, autocommit = 1",)


def _session(*, strict: bool) -> str:
    mode = f"{_SESSION}{',STRICT_ALL_TABLES' if strict else ''}"
    return f"SET SESSION sql_mode = '{mode}', time_zone = '+00:00'"


def _value(column: Column) -> str:
    name = identifier(column.name)
    if column.type == "bit":  # it is a number, whose bytes are not escaped
        return f"{name} + 0"
    if column.type == "float":  # as text it has six digits
        return f"CAST({name} AS DOUBLE)"
    return name if column.charset in _PLAIN else f"CAST({name} AS BINARY)"


def _read(column: Column, text: str) -> str:
    if column.type == "bit":
        return f"CAST({text} AS UNSIGNED)"
    return f"CONVERT({text} USING utf8mb4)"
