"""What a server has becomes that of another, in another guest: by a disk that both have in turn.

Definitions go as SQL. Rows go as files that the servers write and read themselves, some tables at
the same time: as INSERTs of a client they would take as long as the first load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.datasets.columns import SYSTEM, Column
from lab.datasets.rows import ELSEWHERE, Rows, reading, rows_of, shared
from lab.errors import CommandFailed
from lab.lifecycle.datasets.loader import FIRST, LAST, ROWS, Refused, Server, failed, refused
from lab.lifecycle.datasets.pace import Pace

_WHAT = "the masked data"
_DATABASES = (
    "SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN"  # noqa: S608
    f" {SYSTEM}"
)
_WITHOUT = (
    "SELECT table_schema, table_name FROM information_schema.tables"  # noqa: S608
    f" WHERE engine IN {ELSEWHERE}"
)


@dataclass(frozen=True)
class Written:
    """What is on the disk: the tables' rows, and the sizes of their files in bytes."""

    rows: tuple[Rows, ...]
    sizes: tuple[int, ...]


def write(server: Server, disk: str, columns: Sequence[Column], *, accounts: bool) -> Written:
    """Write all databases to a disk, and ``accounts``; raises InvalidSpec, NotReady.

    ``columns``: of all tables. Triggers were set aside.
    """
    rows = rows_of(columns, ROWS, (".".join(row) for row in _rows(server, _WITHOUT)))
    tables = {f"{one.database}.{one.name}": one.size for one in server.tables()}
    sizes = [tables.get(one.table_name, 0) for one in rows]
    databases = sorted(row[0] for row in _rows(server, _DATABASES))
    step = server.ctx.progress
    try:
        step.update("mask", "writing the masked data")
        server.dump(disk, databases, accounts=accounts)

        def written(count: int) -> None:
            step.update("mask", f"writing the masked data, table {count} of {len(rows)}")

        def unloading(numbers: Sequence[int]) -> list[str]:
            return [
                statement
                for done, number in enumerate(numbers, 1)
                for statement in (f"SELECT {done}", *rows[number].written())
            ]

        server.execute([unloading(part) for part in _parts(server, sizes)], written)
    except Refused as error:
        raise refused(error, _WHAT) from None
    found = server.close()
    return Written(rows, tuple(found.get(one.file, 0) for one in rows))


def read(server: Server, disk: str, written: Written) -> None:
    """Give a server what was written to its ``disk``; raises InvalidSpec, NotReady."""
    rows, sizes = written.rows, written.sizes
    size = sum(sizes)

    def loading(numbers: Sequence[int]) -> list[str]:
        statements, done = list(reading()), 0
        for number in numbers:
            done += sizes[number]
            statements += [*rows[number].read(), f"SELECT {done}"]
        return statements

    pace = Pace(server.ctx.progress, "load", size)
    try:
        server.open(disk)
        server.read_file(FIRST)
        server.execute([loading(part) for part in _parts(server, sizes)], _most(pace, size), size)
        server.read_file(LAST)
    except Refused as error:
        raise refused(error, _WHAT) from None
    server.close()


def _parts(server: Server, sizes: Sequence[int]) -> list[list[int]]:
    return shared(dict(enumerate(sizes)), server.node.size.cpus)


def _most(pace: Callable[[int], None], size: int) -> Callable[[int], None]:
    return lambda done: pace(min(done, size))


def _rows(server: Server, question: str) -> list[list[str]]:
    try:
        return server.rows(question)
    except CommandFailed as error:
        raise failed(error, _WHAT) from None
