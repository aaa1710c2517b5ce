"""How a version of a dataset was made, as its image's directory has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import msgspec

from lab.datasets import queries
from lab.datasets.columns import Column
from lab.datasets.selection import Selection
from lab.drafts import replaced
from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.core.context import Context
from lab.state.records import ImageRecord
from lab.values import dataclass

INFO = "dataset.json"
"""The name of what is recorded of a version, in the directory of its image."""
_NAME_LIMIT = 64
"""Characters of names of the server."""


@dataclass(frozen=True)
class TableFacts:
    """A table that was loaded; ``rows`` as the server estimates them, ``size`` in bytes."""

    database: str
    name: str
    engine: str
    rows: int
    size: int


@dataclass(frozen=True)
class Provenance:
    """How a version was made: enough to make the next one."""

    source: str
    """The source, as it was written."""
    blueprint: str
    files: tuple[str, ...] = ()
    """Absolute paths of further SQL."""
    keep: int = 0
    """How many versions are kept, 0 for all."""
    mask: str = ""
    """The file of masking rules, as it was."""
    selection: Selection = field(default_factory=Selection)
    """Of a live server's databases and tables."""
    loaded: int = 0
    """Bytes of SQL, and of a physical backup."""
    tables: tuple[TableFacts, ...] = field(default_factory=tuple)
    columns: tuple[Column, ...] = field(default_factory=tuple)
    sql: str = ""
    """Further SQL, executed after that of ``files``."""
    lab_project: str = ""
    """Of the lab that it is made from: another lab may have its name later."""
    warm: str = ""
    """Queries whose data labs have in memory; empty: small tables."""
    engine: str = ""
    """As requests name it, such as mariadb:10.11; empty: the default one of the blueprint."""
    settings: tuple[str, ...] = ()
    """Options of the servers that load and mask, NAME=VALUE."""
    my_cnf: str = ""
    """An option file of these servers, as text."""
    accounts: tuple[str, ...] = ()
    """Of the source, beside those of an image."""
    definers: tuple[str, ...] = ()
    """Of views, routines, triggers and events, that are no account."""
    masked: bool = False
    """By rules that stayed on the host that exported it."""


def write_provenance(ctx: Context, key: str, made: Provenance) -> None:
    """Record how the image ``key`` was made."""
    with replaced(ctx.home.image(key) / INFO) as file:  # rules and SQL may have secrets
        file.write_bytes(_encoded(made))


def read_provenance(ctx: Context, record: ImageRecord, *, columns: bool = True) -> Provenance:
    """How a version was made, ``columns``: with its columns; raises NotFound if that is lost."""
    path = ctx.home.image(record.key) / INFO
    try:
        data = path.read_bytes()
        if not columns:  # lists read many versions, and thousands of columns of each
            known = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            known.pop("columns", None)
            data = msgspec.json.encode(known)
        return msgspec.json.decode(data, type=Provenance)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotFound(
            f"dataset {record.dataset}@{record.version} has lost its {INFO}",
            hint="create it again under another name",
        ) from error


def exported(made: Provenance) -> bytes:
    """What goes into an archive: neither the source, nor texts that may have secrets."""
    masked = made.masked or bool(made.mask)
    return _encoded(
        Provenance(
            source="",
            blueprint=made.blueprint,
            loaded=made.loaded,
            tables=made.tables,
            columns=made.columns,
            warm=made.warm,
            masked=masked,
        )
    )


def imported(info: bytes) -> Provenance:
    """What an archive says of a version; raises InvalidSpec unless all of it is valid."""
    try:
        made = msgspec.json.decode(info, type=Provenance)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"the archive's dataset is invalid: {str(error)[:300]!r}") from None
    if made.warm:
        queries.check(made.warm)
    plain = _texts(made)
    if exported(made) != _encoded(made) or not all(map(_is_name, plain)):
        raise InvalidSpec("the archive's dataset is invalid: it has more than tables and columns")
    return made


def _texts(made: Provenance) -> Iterator[str]:
    """All short texts of a version."""
    yield made.blueprint
    for table in made.tables:
        yield from (table.database, table.name, table.engine)
    for column in made.columns:
        yield from (column.database, column.table, column.name, column.type, column.charset)
        yield from column.references or ()


def _is_name(text: str) -> bool:
    return len(text) <= _NAME_LIMIT and text.isprintable()


def _encoded(made: Provenance) -> bytes:
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"
