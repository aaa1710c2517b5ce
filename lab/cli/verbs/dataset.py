"""``lab dataset ...``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import age, seconds_or_dash, size_or_dash
from lab.cli.terminal.table import facts, table
from lab.errors import InvalidSpec

if TYPE_CHECKING:
    from lab.views.datasets import DatasetView

Name = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, help="A name, such as shop.")
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@VERSION]",
        show_default=False,
        autocompletion=complete.datasets,
        help="A dataset, as in `lab dataset ls`.",
    ),
]


@manual(
    "lab dataset create shop --from shop.sql.gz",
    "lab dataset create shop --from shop.sql --mask rules.toml --keep 3",
    "lab dataset create shop --from mysql://reader@db.example/shop --schema-only shop.log",
    "lab dataset create bench --from 'generate:sysbench?tables=8&rows=100000'",
    "lab dataset create shop --from /backups/shop/full",
    "lab dataset create crm --from lab:shop",
)
def create(
    ctx: typer.Context,
    *,
    name: Name,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            show_default=False,
            help="A dump (.sql, .sql.gz, .zip, a directory), a backup of mariadb-backup (a"
            " directory, .xb), or of XtraBackup that is prepared, the data directory of a stopped"
            " server (also .tar), mysql://user@host/database, - for standard input, lab:NAME, or"
            " generate:sysbench.",
        ),
    ],
    blueprint: Annotated[
        str,
        typer.Option(
            "--blueprint",
            metavar="BLUEPRINT",
            show_default=False,
            autocompletion=complete.blueprints,
            help="What labs of it will be; default: galera, or replication on MySQL.",
        ),
    ] = "",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE[:SERIES]",
            show_default=False,
            autocompletion=complete.engines,
            help="What it is loaded by, such as mysql or mariadb:10.11; default: the family of the"
            " server that the source is of.",
        ),
    ] = "",
    sql: Annotated[
        list[Path] | None,
        typer.Option(
            "--sql",
            metavar="FILE",
            show_default=False,
            help="SQL that is executed after the load; may be repeated.",
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            "--mask",
            metavar="RULES.toml",
            show_default=False,
            help="Rules by which personal data are replaced before anything is captured.",
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="N",
            show_default=False,
            help="How many versions `refresh` keeps; default: all.",
        ),
    ] = "",
    tables: Annotated[
        str,
        typer.Option(
            "--tables",
            metavar="DB.TABLE,...",
            show_default=False,
            help="Of a live server: only these tables.",
        ),
    ] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="DB.TABLE:CONDITION",
            show_default=False,
            help="Of a live server: only rows of a table that meet a condition; may be repeated.",
        ),
    ] = None,
    schema_only: Annotated[
        list[str] | None,
        typer.Option(
            "--schema-only",
            metavar="DB.TABLE",
            show_default=False,
            help="Of a live server: a table without its rows; may be repeated.",
        ),
    ] = None,
    defaults_file: Annotated[
        Path | None,
        typer.Option(
            "--defaults-file",
            metavar="FILE",
            show_default=False,
            help="Of a live server: password and TLS, in [client]; else LAB_SOURCE_PASSWORD.",
        ),
    ] = None,
    warm: Annotated[
        Path | None,
        typer.Option(
            "--warm",
            metavar="QUERY.sql",
            show_default=False,
            help="Queries whose data labs have in memory; default: small tables.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            show_default=False,
            help="An option of the servers that load and mask; may be repeated.",
        ),
    ] = None,
    my_cnf: Annotated[
        list[Path] | None,
        typer.Option(
            "--my-cnf",
            metavar="FILE",
            show_default=False,
            help="An option file of these servers; may be repeated.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also of a source that leaves no table.")
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Load data into an image for labs with `--dataset`."""
    from lab.datasets import queries, rules
    from lab.options import read_file
    from lab.requests.datasets import CreateDataset

    app = app_of(ctx)
    how = parse_format(output)
    kept = flags.whole("--keep", keep) if keep else 0
    if keep and kept < 1:
        raise InvalidSpec("--keep: at least 1 version is kept")
    asked = CreateDataset(
        name=name,
        source=source,
        blueprint=blueprint,
        keep=kept,
        mask=rules.read_text(mask) if mask else "",
        files=tuple(str(file) for file in sql or ()),
        tables=tuple(tables.split(",")) if tables else (),
        where=tuple(where or ()),
        schema_only=tuple(schema_only or ()),
        defaults_file=str(defaults_file or ""),
        warm=queries.read(warm) if warm else "",
        engine=engine,
        force=force,
        settings=tuple(settings or ()),
        my_cnf="\n".join(read_file(str(path)) for path in my_cnf or ()),
    )
    with app.open(doing="removing the unfinished dataset") as session:
        view = session.run(asked)
    emit(view, how, table=lambda: shown(view, app.now()), names=lambda: [view.at])


@manual("lab dataset refresh shop", "lab dataset refresh shop --engine mariadb:10.11")
def refresh(
    ctx: typer.Context,
    which: Which,
    *,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE[:SERIES]",
            show_default=False,
            autocompletion=complete.engines,
            help="What the version is loaded by; default: as the latest one.",
        ),
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if the source has less than half of the tables, rows or bytes."
        ),
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Make the next version from the same source."""
    from lab.requests.datasets import RefreshDataset

    app = app_of(ctx)
    how = parse_format(output)
    with app.open(doing="removing the unfinished dataset") as session:
        view = session.run(RefreshDataset(name=which, engine=engine, force=force))
    emit(view, how, table=lambda: shown(view, app.now()), names=lambda: [view.at])


@manual("lab dataset ls", "lab dataset ls -o name")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List the versions of all datasets."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        views = session.datasets()
    if not views and how == "table":
        app.say("no datasets; `lab dataset create` makes one")
        return
    emit(
        views,
        how,
        table=lambda: _table(views, app.now()),
        names=lambda: [view.at for view in views],
    )


@manual("lab dataset show shop", "lab dataset show shop@2 -o json")
def show(ctx: typer.Context, which: Which, output: flags.Output = "table") -> None:
    """Show a version of a dataset, and its tables."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        view = session.dataset(which)
    emit(view, how, table=lambda: shown(view, app.now()), names=lambda: [view.at])


@manual("lab dataset scan shop")
def scan(ctx: typer.Context, which: Which, output: flags.Output = "table") -> None:
    """List columns that look personal and have no rule."""
    app = app_of(ctx)
    how = parse_format(output)
    with app.open() as session:
        found = session.scan_dataset(which)
    if not found and how == "table":
        app.say(f"no column of {which} looks personal and is not covered")
        return
    emit(
        found,
        how,
        table=lambda: table(
            ("COLUMN", "LOOKS LIKE", "RULE"), [(one.column, one.reason, one.rule) for one in found]
        ),
        names=lambda: [one.column for one in found],
    )


@manual("lab dataset rm shop@1", "lab dataset rm shop --defer")
def rm(
    ctx: typer.Context,
    which: Which,
    *,
    defer: Annotated[
        bool,
        typer.Option("--defer", help="What labs use is removed with the last of these labs."),
    ] = False,
) -> None:
    """Remove a version of a dataset, or all of them."""
    from lab.requests.datasets import DeleteDataset

    app = app_of(ctx)
    with app.open() as session:
        app.if_interrupted(f"`lab dataset rm {which}` again removes the rest")
        gone = session.run(DeleteDataset(which=which, defer=defer))
    app.say(f"removed dataset {which}" if gone else f"{which} is removed with its last lab")


def _table(views: Sequence[DatasetView], now: float) -> str:
    return table(
        (
            "DATASET", "STATE", "ENGINE", "TABLES", "SQL", "SIZE", "LOADED IN", "AGE", "USED BY",
            "SOURCE",
        ),
        [
            (
                view.at,
                view.state,
                view.engine,
                str(len(view.tables)) if view.state != "building" else "-",
                size_or_dash(view.loaded),
                size_or_dash(view.size),
                seconds_or_dash(view.seconds),
                age(view.created_at, now),
                str(len(view.used_by)) if view.used_by else "-",
                view.source,
            )
            for view in views
        ],
        right={3, 4, 5, 6},
    )  # fmt: skip


def shown(view: DatasetView, now: float) -> str:
    """The details of a version, a line each, and its largest tables."""
    largest = sorted(view.tables, key=lambda one: -int(one["size"]))[:10]
    return facts(
        [
            ("dataset", view.at),
            ("state", view.state),
            ("image", view.image),
            ("engine", view.engine),
            ("source", view.source),
            ("masked", "yes" if view.masked else "no"),
            ("options", ", ".join(view.options)),
            ("accounts", ", ".join(view.accounts)),
            ("no account", ", ".join(view.definers)),
            ("project", view.project),
            ("sql", size_or_dash(view.loaded)),
            ("size", size_or_dash(view.size)),
            *_times(view, now),
            ("used by", ", ".join(view.used_by)),
            *(
                [("tables", str(len(view.tables))), *(("", _table_text(one)) for one in largest)]
                if view.state != "building"
                else []
            ),
        ]
    )


def _times(view: DatasetView, now: float) -> list[tuple[str, str]]:
    """How long it took and when; of one that is being loaded, since when."""
    since = age(view.created_at, now)
    if view.state == "building":
        return [("loading", f"since {since}")]
    return [("loaded in", seconds_or_dash(view.seconds)), ("age", since)]


def _table_text(one: Mapping[str, str | int]) -> str:
    size = size_or_dash(int(one["size"]))
    return f"{one['database']}.{one['name']}, about {one['rows']} rows, {size}"
