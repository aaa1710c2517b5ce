"""Masking on the staging server: rules are checked against what was loaded, then applied."""

from __future__ import annotations

from functools import partial

from lab.blueprints.dialects import dialect_of
from lab.datasets.columns import FIELDS, QUERY, Column, from_rows, identifier
from lab.datasets.mask import (
    FORGET,
    LAST,
    Masking,
    plan,
    preconditions,
    secret_statements,
    values,
)
from lab.datasets.rows import shared
from lab.datasets.rules import Rules, scan, uncovered, unknown
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.lifecycle.datasets.loader import Refused, Server, failed, refused

_MOST = 20
"""Columns that a message names."""
_COLUMNS = 20_000
"""Columns of a dataset: what a guest says of them is kept, and read again for each scan."""


def mask(server: Server, rules: Rules, secret: bytes) -> tuple[Column, ...]:
    """Mask what ``server`` has, and return the columns of its tables.

    Raises InvalidSpec for rules that do not fit, and for columns of covered tables without a rule;
    NotReady.
    """
    columns = columns_of(server)
    _check(columns, rules)
    dialect = dialect_of(server.engine)
    masking = plan(columns, rules, binds=dialect.binds)
    databases = sorted({column.database for column in columns})
    if databases:
        try:
            server.set_triggers_aside(databases)
        except CommandFailed as error:
            raise failed(error, "the triggers of the data") from None
    for precondition in preconditions(dialect.confined):
        if rows := _rows(server, precondition.question):
            found = ", ".join(row[0][:128] for row in rows[:_MOST])
            raise InvalidSpec(f"{precondition.message}: {found}", hint=precondition.hint)
    try:
        _apply(server, masking, secret)
    except Refused as error:
        raise refused(error, "masking") from None
    for suspicion in scan(columns, rules):
        text = f"{suspicion.column} looks like {suspicion.reason}, and no rule covers its table"
        server.ctx.progress.note("mask", text)
    return columns


def _apply(server: Server, masking: Masking, secret: bytes) -> None:
    """Mask all tables, some at the same time; raises Refused, NotReady."""
    own, created = secret_statements(secret), _created(server, masking)
    server.execute([[*own, *masking.first(secret), FORGET]], _passed_over)
    sizes = {f"{one.database}.{one.name}": one.size for one in server.tables()}
    groups = masking.groups
    large = {
        at: sum(sizes.get(masking.tables[number][0][0].table_name, 0) for number in group)
        for at, group in enumerate(groups)
    }
    sessions = [
        [number for at in part for number in groups[at]]
        for part in shared(large, server.node.size.cpus)
    ]
    memory = server.node.size.memory // max(len(sessions), 1)
    server.execute(
        [[*own, *masking.masked(some, created, memory), FORGET] for some in sessions],
        partial(_masks, server, masking),
    )
    server.execute([[LAST]], _passed_over)


def columns_of(server: Server) -> tuple[Column, ...]:
    """The columns of all tables of users; raises NotReady, and InvalidSpec for too many."""
    rows = _rows(server, " ".join(QUERY.split()))
    if any(len(row) != FIELDS for row in rows):
        raise NotReady("the guest that loads the data sent an invalid answer")
    if len(rows) > _COLUMNS:
        raise InvalidSpec(
            f"the data have {len(rows)} columns, a dataset can have {_COLUMNS}",
            hint="load fewer tables",
        )
    try:
        return from_rows([None if text == "NULL" else text for text in row] for row in rows)
    except ValueError:
        raise NotReady("the guest that loads the data sent an invalid answer") from None


def require_mimesis() -> None:
    """Raise HostUnfit unless values can be made up here: said before anything is loaded."""
    values("name", "en", 1, bytes(16))


def _check(columns: tuple[Column, ...], rules: Rules) -> None:
    if wrong := unknown(columns, rules):
        raise InvalidSpec(wrong[0].what, hint=wrong[0].hint, details=[e.what for e in wrong[1:]])
    if left := uncovered(columns, rules):
        raise InvalidSpec(
            f"no rule names {len(left)} columns of covered tables",
            hint='`keep` keeps a column as it is: `id = "keep"`',
            details=[str(column) for column in left[:_MOST]],
        )


def _created(server: Server, masking: Masking) -> dict[str, str]:
    """What SHOW CREATE TABLE says of the tables whose indexes are made again."""
    return {
        one.table_name: "\n".join(
            "\t".join(row)
            for row in _rows(
                server, f"SHOW CREATE TABLE {identifier(one.database)}.{identifier(one.table)}"
            )
        )
        for one in masking.indexed
        # A statement is a line; what has another name keeps its indexes.
        if f"{one.database}{one.table}".isprintable()
    }


def _masks(server: Server, masking: Masking, begun: int) -> None:
    """Report how many of ``masking.tables`` are begun, as the guest says."""
    if 0 < begun <= len(masking.tables):
        server.ctx.progress.update("mask", f"table {begun} of {len(masking.tables)}")


def _passed_over(_: int) -> None:
    """Nothing that anybody waits for."""


def _rows(server: Server, question: str) -> list[list[str]]:
    try:
        return server.rows(question)
    except CommandFailed as error:
        raise failed(error, "masking") from None
