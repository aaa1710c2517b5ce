"""``lab sql``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.child import run_child
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.errors import InvalidSpec

if TYPE_CHECKING:
    from lab.observe.ways import Rows


@manual(
    "lab sql",
    "lab sql shop -e 'SHOW STATUS LIKE \"wsrep_cluster_size\"'",
    "lab sql shop --node n2 -e 'SELECT 1' -o json",
    "lab sql shop < dump.sql",
)
def sql(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    statement: Annotated[
        str | None,
        typer.Option(
            "-e",
            "--execute",
            metavar="STATEMENT",
            show_default=False,
            help="Run this statement and print its result; needs no client program.",
        ),
    ] = None,
    node: flags.Node = "",
    output: flags.Output = "table",
) -> int:
    """Run a statement, or open the mariadb or mysql client."""
    app = app_of(ctx)
    how = parse_format(output)
    where = flags.maybe_node(node)
    if statement is None:
        with app.open() as session:
            client = session.client(pick(session, name), where)
        with client:
            return run_child(client.argv, app.interrupts)
    if not statement.strip():
        raise InvalidSpec("the statement is empty", hint="lab sql -e 'SELECT 1'")
    with app.open() as session:
        rows = _plain(session.query(pick(session, name), where, statement))
    if not rows.columns and how == "table":
        app.say(f"ok, {rows.affected} row{'' if rows.affected == 1 else 's'} affected")
        return 0
    emit(
        rows,
        how,
        table=lambda: table(rows.columns, [[_text(cell) for cell in row] for row in rows.rows]),
        names=lambda: [_text(row[0]) for row in rows.rows],
    )
    return 0


def _plain(rows: Rows) -> Rows:
    """``rows`` with binary data as text or, if it is not UTF-8, as hexadecimal digits."""
    from dataclasses import replace

    return replace(rows, rows=tuple(tuple(_decoded(cell) for cell in row) for row in rows.rows))


def _decoded(cell: object) -> object:
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return f"0x{cell.hex()}"


def _text(cell: object) -> str:
    return "NULL" if cell is None else str(cell)
