"""The columns of a server's tables, as masking sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lab.values import dataclass

TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
"""Integer types, and their bits."""
UNICODE = frozenset({"utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"})
"""Character sets that hold all of the Basic Multilingual Plane."""

KeyPart = Literal["", "index", "unique", "primary"]


@dataclass(frozen=True)
class Column:
    """A column of a table, from ``QUERY``."""

    database: str
    table: str
    name: str
    type: str
    """Without length or sign: ``varchar``, ``int``."""
    nullable: bool = True
    length: int | None = None
    """Characters of a text, bytes of a binary; None for other types."""
    charset: str = ""
    """Empty for what is not text."""
    key: KeyPart = ""
    """The strongest kind of key that it is part of."""
    generated: bool = False
    """Computed from other columns."""
    updated: bool = False
    """ON UPDATE CURRENT_TIMESTAMP."""
    versioned: bool = False
    """Its table keeps old rows: WITH SYSTEM VERSIONING."""
    references: tuple[str, str, str] | None = None
    """Database, table and column that its foreign key refers to."""
    constraint: str = ""
    """The name of that foreign key."""

    @property
    def table_name(self) -> str:
        """``database.table``."""
        return f"{self.database}.{self.table}"

    def __str__(self) -> str:
        return f"{self.database}.{self.table}.{self.name}"

    @property
    def is_text(self) -> bool:
        """Whether it holds characters of any length; no ENUM or SET."""
        return self.type in TEXTS

    @property
    def is_unique(self) -> bool:
        """Whether it is part of a unique key, or of the primary key."""
        return self.key in ("unique", "primary")


SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
"""Databases that are no data."""

_ALL = 1_000_000_000
_SYSTEM_LIST = ", ".join(f"'{name}'" for name in SYSTEM)

QUERY = f"""\
SELECT c.table_schema, c.table_name, c.column_name, LOWER(c.data_type), c.is_nullable,
  c.character_maximum_length, c.character_set_name, LOWER(c.extra), t.table_type, s.key_part,
  k.referenced_table_schema, k.referenced_table_name, k.referenced_column_name, k.constraint_name
FROM (SELECT table_schema, table_name, table_type FROM information_schema.tables
  WHERE table_schema NOT IN ({_SYSTEM_LIST})
  AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') LIMIT {_ALL}) t
JOIN (SELECT * FROM information_schema.columns
  WHERE table_schema NOT IN ({_SYSTEM_LIST}) LIMIT {_ALL}) c
  ON c.table_schema = t.table_schema AND c.table_name = t.table_name
LEFT JOIN (SELECT table_schema, table_name, column_name,
  MAX(IF(index_name = 'PRIMARY', 3, IF(non_unique = 0, 2, 1))) AS key_part
  FROM information_schema.statistics WHERE table_schema NOT IN ({_SYSTEM_LIST})
  GROUP BY table_schema, table_name, column_name) s
  ON s.table_schema = c.table_schema AND s.table_name = c.table_name
  AND s.column_name = c.column_name
LEFT JOIN (SELECT * FROM information_schema.key_column_usage
  WHERE table_schema NOT IN ({_SYSTEM_LIST}) AND referenced_table_name IS NOT NULL
  LIMIT {_ALL}) k
  ON k.table_schema = c.table_schema AND k.table_name = c.table_name
  AND k.column_name = c.column_name
ORDER BY c.table_schema, c.table_name, c.ordinal_position, k.constraint_name"""  # noqa: S608
"""Asks a server of MariaDB 10.3 or MySQL 8.0, or later, for all columns of its users.

MariaDB fills a table of information_schema by opening every table, and joined as they are, again
for each row. A derived table, which LIMIT keeps from being merged, is filled once, and has a key.
"""
FIELDS = 14
"""Columns of each row of ``QUERY``."""

Pairs = frozenset[frozenset[str]]
"""Pairs of ``database.table`` that a foreign key connects."""


def references(columns: Iterable[Column]) -> Pairs:
    """The tables that foreign keys connect."""
    return frozenset(
        frozenset({one.table_name, ".".join(one.references[:2])})
        for one in columns
        if one.references
    )


def connected(tables: Sequence[str], pairs: Pairs) -> list[list[int]]:
    """Numbers of ``tables``, ``database.table`` each: those that ``pairs`` connect together.

    A change to a table's indexes waits for tables that foreign keys connect to it, or fails.
    """
    groups: list[list[int]] = []
    for number, name in enumerate(tables):
        joined = [number]
        for group in list(groups):
            if any(frozenset({name, tables[one]}) in pairs for one in group):
                groups.remove(group)
                joined = group + joined
        groups.append(joined)
    return groups


_KEYS: Sequence[KeyPart] = ("", "index", "unique", "primary")


def from_rows(rows: Iterable[Sequence[Any]]) -> tuple[Column, ...]:
    """The columns that ``QUERY`` returned: numbers as numbers or as texts, NULL as None.

    A column with several foreign keys has that whose name is the first.
    """
    found: dict[tuple[str, str, str], Column] = {}
    for row in rows:
        database, table, name = (str(part) for part in row[:3])
        if (database, table, name) in found:
            continue
        extra = str(row[7] or "")
        found[database, table, name] = Column(
            database,
            table,
            name,
            str(row[3]),
            nullable=row[4] == "YES",
            length=None if row[5] is None else int(row[5]),
            charset=str(row[6] or ""),
            key=_KEYS[int(row[9] or 0)],
            # MySQL has "default_generated" as well: a default that is an expression.
            generated="virtual" in extra or "stored" in extra or "persistent" in extra,
            updated="on update" in extra,
            versioned=row[8] == "SYSTEM VERSIONED",
            references=(str(row[10]), str(row[11]), str(row[12])) if row[11] else None,
            constraint=str(row[13]) if row[11] else "",
        )
    return tuple(found.values())


def identifier(name: str) -> str:
    """``name`` as an identifier in SQL."""
    return "`" + name.replace("`", "``") + "`"
