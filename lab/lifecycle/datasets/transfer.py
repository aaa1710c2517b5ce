"""What a server has becomes that of another, in another guest: by a disk that both have in turn.

Definitions go as SQL. Large tables go as files of InnoDB, the rows of others as files that the
servers write and read themselves, some tables at the same time: as INSERTs of a client they would
take as long as the first load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.datasets.columns import SYSTEM, Column
from lab.datasets.rows import ELSEWHERE, Rows, reading, rows_of, shared
from lab.datasets.tablespaces import (
    OTHER_INDEXES,
    TABLES,
    Tablespace,
    independent,
    rebuilding,
    tablespaces,
)
from lab.errors import CommandFailed
from lab.lifecycle.datasets.loader import FIRST, LAST, ROWS, Refused, Server, failed, refused
from lab.progress import ByteProgress
from lab.values import dataclass

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
    """What is on the disk: tables as files, the rows of others, and the sizes of their files."""

    tables: tuple[Tablespace, ...]
    rows: tuple[Rows, ...]
    sizes: tuple[int, ...]
    """Of ``rows``, in bytes."""


def write(
    server: Server, disk: str, columns: Sequence[Column], *, accounts: bool, files: bool
) -> Written:
    """Write all databases to a disk, and ``accounts``; raises InvalidSpec, NotReady.

    ``columns``: of all tables. Triggers were set aside. ``files``: this server has created the
    tables, so those that another creates by its definitions can have their files.
    """
    tables = _rows(server, TABLES) if files else []
    moved = tablespaces(tables, _rows(server, OTHER_INDEXES), columns)
    without = [".".join(row) for row in _rows(server, _WITHOUT)]
    rows = rows_of(columns, ROWS, [*without, *(one.table_name for one in moved)])
    known = {f"{one.database}.{one.name}": one.size for one in server.tables()}
    sizes = {number: known.get(one.table_name, 0) for number, one in enumerate(rows)}
    databases = sorted(row[0] for row in _rows(server, _DATABASES))
    step = server.ctx.progress

    def written(count: int) -> None:
        step.update("mask", f"writing the masked data, table {count} of {len(rows)}")

    def unloading(numbers: Sequence[int]) -> list[str]:
        return [
            statement
            for done, number in enumerate(numbers, 1)
            for statement in (f"SELECT {done}", *rows[number].written())
        ]

    try:
        _rebuild(server, moved, columns)
        step.update("mask", "writing the masked data")
        server.dump(disk, databases, accounts=accounts)
        server.execute([unloading(part) for part in _parts(server, sizes)], written)
        server.export_tables([one.path for one in moved])
    except Refused as error:
        raise refused(error, _WHAT) from None
    found = server.close()
    return Written(moved, rows, tuple(found.get(one.file, 0) for one in rows))


def _rebuild(server: Server, moved: Sequence[Tablespace], columns: Sequence[Column]) -> None:
    """Leave nothing of former rows in the files of tables; raises Refused, NotReady."""
    groups = independent(moved, columns)

    def statements(numbers: Sequence[int]) -> list[str]:
        tables = [moved[number] for at in numbers for number in groups[at]]
        numbered = enumerate(tables, 1)
        return [*rebuilding(), *(s for n, one in numbered for s in (f"SELECT {n}", one.rebuilt()))]

    sizes = {at: sum(moved[number].size for number in group) for at, group in enumerate(groups)}
    server.execute(
        [statements(part) for part in _parts(server, sizes)],
        lambda count: server.ctx.progress.update("mask", f"table {count} of {len(moved)}, rebuilt"),
    )


def read(server: Server, disk: str, written: Written) -> None:
    """Give a server what was written to its ``disk``; raises InvalidSpec, NotReady."""
    rows, sizes = written.rows, written.sizes
    moved, size = sum(one.size for one in written.tables), sum(sizes)

    def loading(numbers: Sequence[int]) -> list[str]:
        statements, done = list(reading()), 0
        for number in numbers:
            done += sizes[number]
            statements += [*rows[number].read(), f"SELECT {done}"]
        return statements

    pace = ByteProgress(server.ctx.progress, "load", moved + size)
    try:
        server.open(disk)
        server.read_file(FIRST)
        if written.tables:
            server.import_tables(lambda done: pace(min(done, moved)), moved)
        server.execute(
            [loading(part) for part in _parts(server, dict(enumerate(sizes)))],
            lambda done: pace(moved + min(done, size)),
            size,
        )
        server.read_file(LAST)
    except Refused as error:
        raise refused(error, _WHAT) from None
    server.close()


def _parts(server: Server, sizes: Mapping[int, int]) -> list[list[int]]:
    return shared(sizes, server.node.size.cpus)


def _rows(server: Server, question: str) -> list[list[str]]:
    try:
        return server.rows(question)
    except CommandFailed as error:
        raise failed(error, _WHAT) from None
