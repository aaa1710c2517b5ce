"""``lab sql``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.child import run_child
from lab.cli.terminal.output import Format, emit, parse_format
from lab.cli.terminal.table import table
from lab.errors import InvalidSpec, LabError

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.observe.ways import NodeResults, Rows


@manual(
    "lab sql",
    "lab sql shop -e 'SHOW STATUS LIKE \"wsrep_cluster_size\"'",
    "lab sql shop --node n2 -D crm -e 'SELECT COUNT(*) FROM orders; SHOW TABLES' -o json",
    "lab sql shop --all-nodes -e 'SELECT @@hostname, @@read_only'",
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
            metavar="STATEMENTS",
            show_default=False,
            help="Run these statements and print their results; needs no client program.",
        ),
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            "-D", "--database", metavar="NAME", show_default=False, help="The default database."
        ),
    ] = "",
    node: flags.Node = "",
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="With -e: on every node with a server, at once.")
    ] = False,
    output: flags.Output = "table",
) -> int:
    """Run statements, or open the mariadb or mysql client.

    The client reads a script from stdin, as UTF-8. It reads no option files, and no variables
    of the caller's that would change the session.
    """
    app = app_of(ctx)
    how = parse_format(output)
    where = flags.maybe_node(node)
    if all_nodes and node:
        raise InvalidSpec("--node and --all-nodes exclude each other")
    if statement is None:
        source = ctx.get_parameter_source("output")
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidSpec(
                "-o is for the results of -e: those of a script are printed by the client",
                hint="give the statements with -e",
            )
        if all_nodes:
            raise InvalidSpec("--all-nodes needs statements", hint="lab sql --all-nodes -e ...")
        with app.open() as session:
            client = session.client(pick(session, name), where, database=database)
        with client:
            return run_child(client.argv, app.interrupts, env=client.env)
    if not statement.strip():
        raise InvalidSpec("the statement is empty", hint="lab sql -e 'SELECT 1'")
    if all_nodes:
        with app.open() as session:
            found = session.everywhere(pick(session, name), statement, database=database)
        return _print_nodes(app, found, how)
    with app.open() as session:
        _print(app, session.results(pick(session, name), where, statement, database=database), how)
    return 0


def _print(app: App, results: Iterator[Rows], how: Format) -> None:
    """Print the results; if a statement is refused, those before it first."""
    found: list[Rows] = []
    try:
        found.extend(map(_plain, results))  # what came before an error is kept
    except LabError:
        if how == "table":
            _show(app, found)
        raise
    if how == "table":
        _show(app, found)
        return
    shown = _shown(found)
    data = shown[0] if len(shown) == 1 else shown
    emit(data, how, table=str, names=lambda: [_text(row[0]) for one in shown for row in one.rows])


def _print_nodes(app: App, found: Sequence[NodeResults], how: Format) -> int:
    """The results of each node, and the exit code of the first that failed."""
    from dataclasses import replace

    found = [replace(one, results=tuple(map(_plain, one.results))) for one in found]
    code = next((one.code for one in found if one.code), 0)
    if how != "table":
        rows = [row for one in found for result in one.results for row in result.rows]
        emit(found, how, table=str, names=lambda: [_text(row[0]) for row in rows])
        return code
    shown = [_shown(one.results) for one in found]
    columns = {one[0].columns if len(one) == 1 else () for one in shown}
    if code == 0 and len(columns) == 1 and () not in columns:
        header = ("NODE", *columns.pop())
        each = [
            (node.node, *map(_text, row))
            for node, one in zip(found, shown, strict=True)
            for row in one[0].rows
        ]
        emit(found, how, table=lambda: table(header, each), names=list)
        return code
    for node in found:
        emit(node, "table", table=f"{node.node}:\n".__str__, names=list)
        _show(app, node.results)
        if node.error:
            app.say(f"  {node.error}")
    return code


def _show(app: App, results: Sequence[Rows]) -> None:
    """Print tables, an empty line between them, and what was done by statements without one."""
    shown = _shown(results)
    for number, rows in enumerate(shown):
        if number and rows.columns and shown[number - 1].columns:
            emit("", "table", table=lambda: "\n", names=list)
        if rows.columns:
            emit(rows, "table", table=partial(_table, rows), names=list)
        else:
            app.say(f"ok, {rows.affected} row{'' if rows.affected == 1 else 's'} affected")


def _shown(results: Sequence[Rows]) -> Sequence[Rows]:
    """The results without the end of a CALL, which has no rows and changed none."""
    last = results[-1] if len(results) > 1 else None
    return results[:-1] if last and not last.columns and not last.affected else results


def _table(rows: Rows) -> str:
    return table(rows.columns, [[_text(cell) for cell in row] for row in rows.rows])


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
