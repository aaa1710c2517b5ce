"""Tables that go from one server to another as files of InnoDB.

That is several times as fast as their rows. A table is rebuilt before: so its file has the rows it
has now, and nothing of what they were, which pages of tables keep after changes.

Source: MariaDB's and MySQL's documentation of transportable tablespaces; tables that they except,
and those where nobody would miss it, go as rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lab.datasets.columns import SYSTEM, Column, connected, references
from lab.units import MIB
from lab.values import dataclass

LEAST = MIB
"""Bytes of a table that is worth its statements: rebuilt, discarded, imported."""
TABLES = (
    "SELECT table_schema, table_name, data_length + index_length"  # noqa: S608
    f" FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}"
    " AND engine = 'InnoDB' AND table_type = 'BASE TABLE' AND @@GLOBAL.innodb_file_per_table"
    " AND row_format IN ('Dynamic', 'Compact', 'Redundant')"
    " AND create_options NOT REGEXP 'partition|compress|encrypt|directory'"
    f" AND data_length + index_length >= {LEAST} LIMIT 10000"
)
"""Asks a server for tables that could go as files, and their sizes in bytes."""
OTHER_INDEXES = (
    "SELECT DISTINCT table_schema, table_name FROM information_schema.statistics"  # noqa: S608
    f" WHERE (index_type <> 'BTREE' OR column_name IS NULL) AND table_schema NOT IN {SYSTEM}"
)
"""Asks it for tables with an index that is in other files, in a form of its own, or of an
expression, which is kept as a column."""
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,64}")
"""A name that is the same in SQL and in paths."""


@dataclass(frozen=True)
class Tablespace:
    """The file of a table; ``size`` in bytes."""

    database: str
    table: str
    size: int

    @property
    def table_name(self) -> str:
        """``database.table``."""
        return f"{self.database}.{self.table}"

    @property
    def path(self) -> str:
        """Its file below a data directory, without the suffix."""
        return f"{self.database}/{self.table}"

    def rebuilt(self) -> str:
        """The statement that leaves its rows only."""
        return f"ALTER TABLE `{self.database}`.`{self.table}` FORCE"


def tablespaces(
    tables: Iterable[Sequence[str]], others: Iterable[Sequence[str]], columns: Iterable[Column]
) -> tuple[Tablespace, ...]:
    """Tables that go as files, in order: rows of ``TABLES``, without those of ``OTHER_INDEXES``.

    ``columns``: of all tables. What is generated or versioned goes as rows.
    """
    excepted = {one.table_name for one in columns if one.generated or one.versioned}
    excepted |= {".".join(row) for row in others}
    found = (Tablespace(row[0], row[1], int(row[2])) for row in tables if _is_plain(row))
    some = (one for one in found if one.table_name not in excepted)
    return tuple(sorted(some, key=lambda one: one.path))


def rebuilding() -> tuple[str, ...]:
    """What a session that rebuilds tables begins with: they keep what they have, whatever it is."""
    return (
        "SET SESSION sql_mode = ''",
        "SET SESSION innodb_strict_mode = OFF",
        "SET SESSION foreign_key_checks = 0",
    )


def independent(some: Sequence[Tablespace], columns: Iterable[Column]) -> list[list[int]]:
    """Numbers of ``some``: those of different lists can be rebuilt at the same time."""
    return connected([one.table_name for one in some], references(columns))


def _is_plain(row: Sequence[str]) -> bool:
    names = len(row) == 3 and all(_PLAIN.fullmatch(name) for name in row[:2])
    return bool(names and re.fullmatch(r"[0-9]{1,18}", row[2]))
