"""Rows that have one name: labs, images and templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Connection, CursorResult, Table, delete, insert, select, update

from lab.errors import Conflict, NotFound
from lab.state.database import Database
from lab.suggest import did_you_mean

R = TypeVar("R")

_TAKEN = "`lab down {0}` removes it, `--exist-ok` accepts it, `--name` gives another name"


def as_records(rows: CursorResult[Any], record: type[R]) -> list[R]:
    """Rows whose columns are the fields of ``record``; for many, ``mappings()`` is slow."""
    names = list(rows.keys())
    return [record(**dict(zip(names, row, strict=True))) for row in rows]


class Keyed(Generic[R]):
    """Rows of ``table`` as ``record``; ``noun`` is what messages call them."""

    def __init__(self, database: Database, table: Table, record: type[R], noun: str) -> None:
        self._database = database
        self._table = table
        self._record = record
        self._noun = noun
        self.suggests = True
        """Whether errors name what has a similar name: not to those who may not see all."""
        self._key: Column[str] = next(iter(table.primary_key.columns))

    def add(self, record: R) -> None:
        """Add a row; raises Conflict if the name is taken."""
        values = dict(vars(record))
        name: str = values[self._key.name]
        with self._database.write() as connection:
            if self._exists(connection, name):
                raise Conflict(
                    f"{self._noun} {name} exists already",
                    hint=_TAKEN.format(name) if self._noun == "lab" else "",
                )
            connection.execute(insert(self._table).values(values))

    def get(self, name: str) -> R:
        """The row of that name; raises NotFound."""
        with self._database.read() as connection:
            found = self._find(connection, name)
            if found is None:
                raise self._unknown(connection, name)
            return found

    def find(self, name: str) -> R | None:
        """The row of that name, if there is one."""
        with self._database.read() as connection:
            return self._find(connection, name)

    def all(self) -> list[R]:
        """All rows, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(self._table).order_by(self._key))
            return as_records(rows, self._record)

    def update(self, name: str, **fields: Any) -> None:
        """Set some of the record's fields; raises NotFound."""
        with self._database.write() as connection:
            done = connection.execute(
                update(self._table).where(self._key == name).values(fields)
            ).rowcount
            if not done:
                raise self._unknown(connection, name)

    def remove(self, name: str) -> None:
        """Remove the row (and what belongs to it); fine if absent."""
        with self._database.write() as connection:
            connection.execute(delete(self._table).where(self._key == name))

    def _find(self, connection: Connection, name: str) -> R | None:
        query = select(self._table).where(self._key == name)
        row = connection.execute(query).mappings().first()
        return self._record(**row) if row is not None else None

    def _exists(self, connection: Connection, name: str) -> bool:
        return connection.execute(select(self._key).where(self._key == name)).first() is not None

    def _unknown(self, connection: Connection, name: str) -> NotFound:
        if not self.suggests:
            return NotFound(f"there is no {self._noun} {name!r}")
        known: Sequence[str] = connection.execute(select(self._key)).scalars().all()
        otherwise = ""
        if self._noun == "lab":
            otherwise = "`lab ls` shows them" if known else "`lab up pxc` makes one"
        return NotFound(
            f"there is no {self._noun} {name!r}",
            hint=did_you_mean(name, known, otherwise=otherwise),
        )
