"""Dumps of many files, as pieces of SQL in the order in which they can be executed.

================================  ==================================================================
``mariadb-dump --dir``            ``DB/TABLE.sql``: the table and its triggers; ``DB/TABLE.txt``:
                                  its rows; ``DB/VIEW.sql``. Nothing else: no routines, events,
                                  sequences and settings of databases
mydumper                          ``DB-schema-create.sql``, ``DB.TABLE-schema.sql``, rows in
                                  ``DB.TABLE.sql`` or ``DB.TABLE.00000.sql``, and
                                  ``-schema-sequence``, ``-schema-view`` (after a stand-in of the
                                  same name), ``-schema-triggers``, ``DB-schema-post`` (routines
                                  and events); all of them also .gz and .zst; ``metadata``
MySQL Shell                       see ``shell``
files of SQL and nothing else     see ``scripts``
================================  ==================================================================

Views come last, as they may use routines; triggers come after all rows, which they do not see.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lab.config.enginefile import DialectName
from lab.datasets import scripts, shell, tabbed
from lab.datasets.dump import statements
from lab.datasets.kinds import sql
from lab.datasets.pieces import Piece, Signature, changed, content, quoted, signature, small
from lab.datasets.source import PACKINGS, DumpDirectory
from lab.datasets.survey import HEAD, database_of, header
from lab.errors import InvalidSpec
from lab.units import counted
from lab.values import dataclass

_SESSION = (
    "SET NAMES utf8mb4;"
    " SET SESSION SQL_MODE=DEFAULT, TIME_ZONE=DEFAULT, FOREIGN_KEY_CHECKS=0, UNIQUE_CHECKS=0;\n"
)
_OLD = (
    "SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT,"
    " @OLD_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS,"
    " @OLD_COLLATION_CONNECTION=@@COLLATION_CONNECTION,"
    " @OLD_TIME_ZONE=@@TIME_ZONE, @OLD_SQL_MODE=@@SQL_MODE, @OLD_SQL_NOTES=@@SQL_NOTES;\n"
)
_MODE = "SET SESSION SQL_MODE='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
_REPEAT = "copy the directory again, or repeat the dump"


def pieces(source: DumpDirectory, dialect: DialectName, version: str = "") -> Iterator[Piece]:
    """The SQL of a directory, in order, each piece to be read before the next.

    ``dialect``, ``version``: of the server that is to have it. Raises InvalidSpec for files that
    are missing, damaged, truncated, unknown, or that change while they are read; HostUnfit as
    ``unpacked`` does.
    """
    before = _files(source)
    files = sorted(before)
    if source.layout == "mysqlsh":
        yield from shell.pieces(source.path, files, dialect, version)
    elif source.layout == "mydumper":
        yield from _of_mydumper(source.path, files)
    elif source.layout == "scripts":
        yield from scripts.pieces(source.path, files, _SESSION.encode())
    else:
        yield from _of_mariadb_dump(source.path, files)
    after = _files(source)
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            raise changed(path)


def size(source: DumpDirectory) -> int:
    """Bytes of its files; 0 if some are compressed, so that nobody knows how much SQL it is."""
    files = _files(source)
    if any(path.suffix[1:] in PACKINGS for path in files):
        return 0
    return sum(length for _, length, _ in files.values())


def _files(source: DumpDirectory) -> dict[Path, Signature]:
    try:
        if source.layout != "mariadb-dump":
            return _listed(source.path)
        found: dict[Path, Signature] = {}
        with os.scandir(source.path) as entries:
            for entry in entries:
                if entry.is_dir():
                    found |= _listed(Path(entry))
        return found
    except OSError as error:
        raise InvalidSpec(f"{source} cannot be read: {error.strerror}") from error


def _listed(path: Path) -> dict[Path, Signature]:
    with os.scandir(path) as entries:
        return {Path(one): signature(one.stat()) for one in entries if one.is_file()}


# mariadb-dump --dir

_TRIGGERS = b"/*!50003 SET @saved_cs_client"
"""How what precedes the triggers of a table begins; a view has another version in its place."""
_TRIGGER = re.compile(rb"(?:/\*!\d+\s*)?CREATE\b[^;]{0,400}?\bTRIGGER\b", re.IGNORECASE)
_VIEW = re.compile(rb"(?:/\*!\d+\s*)?CREATE\b[^;]{0,1000}?\bVIEW\b", re.IGNORECASE)
_VIEW_NAME = re.compile(rb"\bVIEW `((?:[^`]|``){1,300})` AS\b")
_NAMES = re.compile(rb"SET NAMES (\w+)")
_IDENTIFIER = re.compile(rb"`((?:[^`]|``){1,300})`")


@dataclass(frozen=True)
class _Schema:
    """A file TABLE.sql: what precedes its triggers, and these; or a view."""

    path: Path
    database: str
    text: bytes
    table: tabbed.Table | None
    cut: int
    """Where the triggers begin."""
    statements: int
    """How many statements come before the triggers."""

    @property
    def names(self) -> bytes:
        """The character set of the session that it sets."""
        match = _NAMES.search(self.text)
        return match[1] if match else b"utf8mb4"


def _of_mariadb_dump(top: Path, files: list[Path]) -> Iterator[Piece]:
    _check_pairs(files)
    views: list[_Schema] = []
    triggers: list[Path] = []
    for path in files:
        if path.suffix != ".sql":
            continue
        schema = _schema(path, top)
        if schema.table is None:
            views.append(schema)
            continue
        rows = path.with_name(f"{path.stem}.txt")
        yield _piece(schema, schema.text[: schema.cut], top)
        yield _rows(schema, schema.table, rows, top)
        if schema.cut < len(schema.text):
            triggers.append(path)
    for path in triggers:
        schema = _schema(path, top)
        text, lines = schema.text[schema.cut :], schema.text.count(b"\n", 0, schema.cut)
        _whole(text, path)
        yield _piece(schema, text, top, lines, schema.statements)
    for view in _in_order(views):
        yield _piece(view, view.text, top)


def _check_pairs(files: list[Path]) -> None:
    there = set(files)
    for path in files:
        other = path.with_name(f"{path.stem}.sql")
        if path.suffix == ".txt" and other not in there:
            raise InvalidSpec(f"{other} is missing: there are rows in {path.name}", hint=_REPEAT)
        if path.suffix not in (".sql", ".txt"):
            raise InvalidSpec(
                f"{path} is not a file of mariadb-dump --dir", hint="remove it, or decompress it"
            )


def _schema(path: Path, top: Path) -> _Schema:
    text = small(path, sql)
    name = str(path.relative_to(top))
    database = header(text[:HEAD]).named or path.parent.name
    table: tabbed.Table | None = None
    cut, count, is_view = len(text), 0, False
    for one in statements([text], name):
        if table is not None and (one.text.startswith(_TRIGGERS) or _TRIGGER.match(one.text)):
            cut = one.offset
            break
        table = table or tabbed.table(one.text)
        is_view = is_view or bool(_VIEW.match(one.text))
        count = one.number
    if table is None and not is_view:
        raise InvalidSpec(f"{path} is truncated: it creates no table and no view", hint=_REPEAT)
    return _Schema(path, database, text, table, cut, count)


def _piece(schema: _Schema, text: bytes, top: Path, lines: int = 0, before: int = 0) -> Piece:
    name = quoted(schema.database)
    first = f"CREATE DATABASE IF NOT EXISTS {name}; USE {name};\n{_SESSION}{_OLD}".encode()
    place = str(schema.path.relative_to(top.parent))
    return Piece(place, iter([text]), first, schema.database, lines, before)


def _rows(schema: _Schema, table: tabbed.Table, path: Path, top: Path) -> Piece:
    name = str(path.relative_to(top.parent))
    if not path.is_file():
        raise InvalidSpec(f"{path} is missing: there is a table in {path.stem}.sql", hint=_REPEAT)
    tabbed.check(table, name)
    if schema.names not in tabbed.SAFE_NAMES:
        raise InvalidSpec(
            f"{schema.path}: its names are in the character set {schema.names.decode()}",
            hint="dump with --default-character-set=utf8mb4",
        )
    first = f"USE {quoted(schema.database)};\n{_SESSION}SET NAMES ".encode() + schema.names + b";\n"
    first += tabbed.session(table, utc=b"SET TIME_ZONE='+00:00'" in schema.text)
    rows = tabbed.inserts(content(path), table, name)
    return Piece(name, rows, first, schema.database)


def _in_order(views: Iterable[_Schema]) -> Iterator[_Schema]:
    """Views after those that they use, as far as their text tells."""
    left = {view.path: view for view in views}
    # A file's name is the view's, encoded; what it uses may be the name of a column as well.
    named = {path: _created(view.text) for path, view in left.items()}
    uses = {path: set(_IDENTIFIER.findall(view.text)) for path, view in left.items()}
    while left:
        waiting = {named[path] for path in left}
        ready = [one for one in left if not (uses[one] & waiting) - {named[one]}]
        for path in ready or [next(iter(left))]:
            yield left.pop(path)


def _created(text: bytes) -> bytes:
    match = _VIEW_NAME.search(text)
    return match[1] if match else b""


def _whole(text: bytes, path: Path) -> None:
    if text.strip() and not text.rstrip().endswith(b";"):
        raise InvalidSpec(f"{path} is truncated: its last statement has no end", hint=_REPEAT)


# mydumper

_KINDS = ("create", "sequence", "", "rows", "post", "triggers", "view")
"""Of files, in the order in which they are executed; the empty one is of tables."""
_FILE = re.compile(r"(.+)-schema(?:-(create|sequence|post|triggers|view))?\.sql(?:\.(gz|zst))?")
_BINARY = b"SET NAMES binary"
_FIXED = frozenset([b"uuid", b"inet4", b"inet6"])
_DATA = re.compile(r"(.+)\.sql(?:\.(gz|zst))?")
_CHARACTER_SETS = re.compile(
    rb"(?<=\nSET @PREV_COLLATION_CONNECTION=@@COLLATION_CONNECTION;\n)"
    rb"SET character_set_client = (?P<client>(?:(?!\nSET @PREV_).){0,65535}?);\n"
    rb"SET character_set_results = (?P=client);\n"
    rb"SET collation_connection = (?P<collation>\w*);\n",
    re.DOTALL,
)
"""What mydumper writes before each routine, event and trigger: values of columns of SHOW.

None reaches into the next: else each beginning in a foreign file would be read on for 64 KiB.
"""


@dataclass(frozen=True)
class _File:
    path: Path
    kind: str
    stem: str
    """``DB`` or ``DB.TABLE``, for rows also with the number of a chunk."""


def _of_mydumper(top: Path, files: list[Path]) -> Iterator[Piece]:
    _check_finished(top, files)
    found = [one for path in files if (one := _file(path))]
    databases = {one.stem: _database(one) for one in found if one.kind == "create"}
    tables = {one.stem: _spoilt(one) for one in found if one.kind in ("", "sequence")}
    for one in found:
        if one.kind == "rows" and _table_of(one.stem, tables) is None:
            raise InvalidSpec(
                f"{one.path} has rows, and there is no file with its table",
                hint=f"{one.stem}-schema.sql is missing: {_REPEAT}",
            )
    for path in files:
        if path.name.endswith((".dat", ".csv", ".json")) or ".dat." in path.name:
            raise InvalidSpec(
                f"{path}: rows of mydumper can be read as SQL only",
                hint="dump without --load-data, --csv and --format",
            )
    for one in sorted(found, key=lambda one: (_KINDS.index(one.kind), one.path)):
        table = _table_of(one.stem, tables) if one.kind == "rows" else None
        yield _of_file(one, _owner(one, databases), top, tables.get(table or "", b""))


def _check_finished(top: Path, files: Iterable[Path]) -> None:
    for path in files:
        if path.name.startswith(("metadata.partial", "metadata.header")):
            raise InvalidSpec(
                f"{path}: mydumper has not finished this dump",
                hint="wait until it has, or repeat the dump",
            )
    if b"Finished dump at" not in small(top / "metadata"):
        raise InvalidSpec(
            f"{top}/metadata is truncated: it does not say that the dump was finished",
            hint=_REPEAT,
        )


def _file(path: Path) -> _File | None:
    if match := _FILE.fullmatch(path.name):
        return _File(path, match[2] or "", match[1])
    if match := _DATA.fullmatch(path.name):
        return _File(path, "rows", match[1])
    return None


def _database(file: _File) -> str:
    """The database that a file creates: names of files are not always those of databases."""
    for one in statements([small(file.path, sql)], str(file.path)):
        if name := database_of(one):
            return name
    raise InvalidSpec(f"{file.path} is truncated: it creates no database", hint=_REPEAT)


def _spoilt(file: _File) -> bytes:
    """A column whose values are not understood as binary strings; empty: the table has none."""
    for one in statements([small(file.path, sql)], str(file.path)):
        if table := tabbed.table(one.text):
            return next((column.name for column in table.columns if column.kind in _FIXED), b"")
    return b""


def _table_of(stem: str, tables: Mapping[str, bytes]) -> str | None:
    """The table that a file of rows belongs to."""
    short = re.sub(r"(?:\.\d{5,})+$", "", stem)
    return next((one for one in (stem, short) if one in tables), None)


def _owner(file: _File, databases: dict[str, str]) -> str:
    stems = [one for one in databases if file.stem == one or file.stem.startswith(f"{one}.")]
    if not stems:
        raise InvalidSpec(
            f"{file.path}: there is no file that creates its database",
            hint=f"a file such as {file.stem.partition('.')[0]}-schema-create.sql is missing:"
            f" {_REPEAT}",
        )
    return databases[max(stems, key=len)]


def _of_file(file: _File, database: str, top: Path, spoilt: bytes) -> Piece:
    name = str(file.path.relative_to(top.parent))
    before = _SESSION if file.kind == "create" else f"USE {quoted(database)};\n{_SESSION}"
    if file.kind not in ("post", "triggers"):  # these keep the mode that they are made in
        before += _MODE
    if file.kind in ("post", "triggers", "view"):
        text = small(file.path, sql)
        _whole(text, file.path)
        text, moved = _with_character_sets(text)
        data, lines = _delimited(text)
        notes = (_moved(file.path, moved),) if moved else ()
        return Piece(name, iter([data]), before.encode(), database, -lines, notes=notes)
    rows = _ended(content(file.path, sql), file.path)
    if file.kind == "":
        # The text is what the server shows, in UTF-8, whatever the file says.
        rows = iter([b"".join(rows).replace(_BINARY, b"SET NAMES utf8mb4", 1)])
    elif spoilt:
        rows = _understood(rows, file.path, spoilt)
    return Piece(name, rows, before.encode(), database)


def _understood(data: Iterable[bytes], path: Path, spoilt: bytes) -> Iterator[bytes]:
    is_first = True
    for chunk in data:
        if is_first and _BINARY in chunk[:HEAD]:
            raise InvalidSpec(
                f"{path}: mydumper has written the values of {spoilt.decode(errors='replace')} as"
                " binary strings, which the server does not understand in a UUID or INET column",
                hint="dump with mariadb-dump",
            )
        is_first = False
        yield chunk


def _with_character_sets(text: bytes) -> tuple[bytes, int]:
    """``text`` with the character sets of its routines; how many had none that can be set.

    mydumper 0.10 takes the values from columns by their number. Newer servers of MySQL show
    routines with one column more (Language), so it writes the comment, mostly an empty one, in
    place of the character set, and that in place of the collation, which is lost.
    """
    moved = 0

    def right(match: re.Match[bytes]) -> bytes:
        nonlocal moved
        client, name = match["client"], match["collation"]
        if b"_" in name or (name == b"binary" and client):
            return match[0]
        if client and not name:
            return match[0]  # not known to be written by anybody: the server says what it is
        moved += 1
        lines = [b"SET character_set_client = %s;", b"SET character_set_results = %s;",
                 b"SET character_set_connection = %s;"]  # fmt: skip
        values = [name] * 3 if name else [b"@@" + line.split()[1] for line in lines]
        found = b"\n".join(line % value for line, value in zip(lines, values, strict=True)) + b"\n"
        return found + b"\n" * (match[0].count(b"\n") - len(lines))

    return _CHARACTER_SETS.sub(right, text), moved


def _moved(path: Path, number: int) -> str:
    return (
        f"{path}: mydumper has written no collation of the session in which"
        f" {counted(number, 'routine')} {'was' if number == 1 else 'were'} made, as mydumper 0.10"
        " does of newer servers of MySQL: it is the default one of the character set. Test"
        " comparisons of texts in these routines, or dump with a newer mydumper"
    )


def _delimited(text: bytes) -> tuple[bytes, int]:
    """Routines, whose bodies have semicolons but none at the end of a line; lines added before."""
    if b"DELIMITER" in text:
        return text, 0
    mark = b";;"
    while mark in text:
        mark = b"$" + secrets.token_hex(6).encode() + b"$"
    text = text if text.endswith(b"\n") else text + b"\n"
    body = text.replace(b";\n", mark + b"\n")
    return b"DELIMITER %s\n%sDELIMITER ;\n" % (mark, body), 1


def _ended(data: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """Pass on ``data``; raises InvalidSpec unless it ends with a statement's end."""
    last = b""
    for chunk in data:
        yield chunk
        last = (last + chunk)[-64:]
    _whole(last, path)
