r"""Directories of MySQL Shell, of ``util.dumpInstance``, ``dumpSchemas`` and ``dumpTables``.

What it writes (modules/util/dump/dumper.cc of mysql-shell), and reads in this order
(modules/util/load/dump_reader.cc)::

    @.json, @.done.json       the dump: its schemas; that it is finished, and bytes of each file
    @.sql, @.post.sql         what precedes and follows all; comments, until now
    @.users.sql               accounts, if it is of an instance
    SCHEMA.json, SCHEMA.sql   its tables and views; the database, its events and routines
    SCHEMA@TABLE.json, .sql   columns and format of the rows; the table
    SCHEMA@TABLE.triggers.sql its triggers
    SCHEMA@VIEW.pre.sql, .sql a stand-in of the view; the view
    SCHEMA@TABLE.tsv.zst      all rows, or those of a chunk: @0, @1, and so on, the last @@2;
                              of a partition: SCHEMA@TABLE@PARTITION in the place of SCHEMA@TABLE
    *.idx                     offsets, the last one the file's size, decompressed

Names of files are those of schemas and tables with ``%2F`` for ASCII that is no letter or digit,
cut after 225 characters: the descriptions say which is whose. Values are text in the dump's
character set; those of binary columns are in base64 or hexadecimal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from lab.config.enginefile import DialectName
from lab.datasets import tabbed
from lab.datasets.accounts import translated
from lab.datasets.dump import STATEMENT_LIMIT, Packing, statements, unpacked
from lab.datasets.kinds import sql
from lab.datasets.pieces import Piece, content, quoted, small
from lab.errors import InvalidSpec
from lab.units import MIB, format_size

DUMP, DONE, USERS = "@.json", "@.done.json", "@.users.sql"
_REPEAT = "copy the directory again, or repeat the dump"
_NAME_LIMIT = 64
"""Characters of a name."""
_COLUMNS_LIMIT = 4096
_SHOWN = 200
"""Characters of GTIDs that are shown."""
_PACKINGS: Mapping[str, Packing] = {"none": "", "gzip": "gz", "zstd": "zst"}
_DECODED = {"FROM_BASE64": b"FROM_BASE64(", "UNHEX": b"UNHEX("}
_OFFSET = struct.Struct(">Q")

_File = TypeVar("_File", bound="_Description")


class _Description(msgspec.Struct, frozen=True, rename="camel"):
    """A file of JSON; keys that are not here do not matter for a load."""


class _Dump(_Description, frozen=True):
    schemas: tuple[str, ...]
    basenames: dict[str, str]
    default_character_set: str = "utf8mb4"
    tz_utc: bool = True
    origin: str = ""
    table_only: bool = False
    gtid_executed: str = ""

    @property
    def has_schemas(self) -> bool:
        """Whether it has its databases themselves."""
        return not self.table_only and self.origin != "dumpTables"


class _Done(_Description, frozen=True):
    chunk_file_bytes: dict[str, int] = {}


class _Schema(_Description, frozen=True):
    tables: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    basenames: dict[str, str] = {}
    includes_ddl: bool = True
    includes_data: bool = True


class _Format(_Description, frozen=True):
    columns: tuple[str, ...] = ()
    decode_columns: dict[str, str] = {}
    default_character_set: str = ""
    compression: str = ""
    """Here until 8.0.21."""
    fields_terminated_by: str = "\t"
    fields_enclosed_by: str = ""
    fields_escaped_by: str = "\\"
    lines_terminated_by: str = "\n"


class _Table(_Description, frozen=True):
    options: _Format
    extension: str = "tsv"
    chunking: bool = False
    compression: str = ""
    includes_data: bool = True
    includes_ddl: bool = True
    triggers: tuple[str, ...] = ()
    basenames: dict[str, str] = {}
    """Of partitions, by their names."""


def pieces(top: Path, files: Iterable[Path], dialect: DialectName, version: str) -> Iterator[Piece]:
    """The SQL of a directory that has ``files``, in order; raises as ``directory.pieces``."""
    return _Directory(top, files).pieces(dialect, version)


class _Directory:
    """A directory; no file is read that is not one of its own."""

    def __init__(self, top: Path, files: Iterable[Path]) -> None:
        self._top = top
        self._there = {path.name for path in files if path.parent == top}
        if DONE not in self._there:
            raise InvalidSpec(
                f"{top}: MySQL Shell has not finished this dump: there is no file {DONE}",
                hint="wait until it has, or repeat the dump",
            )
        self._dump = self._described(DUMP, _Dump)
        self._sizes = self._described(DONE, _Done).chunk_file_bytes

    def pieces(self, dialect: DialectName, version: str) -> Iterator[Piece]:
        """The SQL, with accounts for a server of ``dialect`` and ``version``."""
        dump = self._dump
        schemas = {name: self._base(name, dump.basenames, name) for name in dump.schemas}
        described = {name: self._schema(schemas[name]) for name in schemas}
        gtids = dump.gtid_executed.replace("\n", "")[:_SHOWN]
        notes = (f"its GTIDs are not taken over: {gtids!r}",) if gtids else ()
        yield from self._global("@.sql", notes)
        for name, base in schemas.items():
            yield self._created(name, base)
        triggers: list[tuple[str, str]] = []
        for name, base in schemas.items():
            found = described[name]
            for table in found.tables:
                of = self._base(table, found.basenames, f"{base}@{table}")
                yield from self._of_table(name, of, has_rows=found.includes_data)
                if f"{of}.triggers.sql" in self._there:
                    triggers.append((name, f"{of}.triggers.sql"))
        for name, file in triggers:
            yield self._script(name, file)
        views = [
            (name, self._base(view, described[name].basenames, f"{base}@{view}"))
            for name, base in schemas.items()
            for view in described[name].views
        ]
        for end in ("pre.sql", "sql"):  # views of others are there, whatever their order
            for name, view in views:
                yield self._script(name, f"{view}.{end}")
        yield from self._global("@.post.sql")
        yield from self._accounts(dialect, version)

    def _accounts(self, dialect: DialectName, version: str) -> Iterator[Piece]:
        """Accounts come last: grants name tables and routines."""
        if USERS not in self._there:
            return
        script = translated(self._text(USERS), str(self._top / USERS), dialect, version)
        before = self._session().encode()
        yield Piece(self._named(USERS), iter([script.text]), before, notes=script.notes)

    def _schema(self, base: str) -> _Schema:
        found = self._described(f"{base}.json", _Schema)
        if not found.includes_ddl:
            raise InvalidSpec(
                f"{self._top / base}.json: the dump has no definitions of tables",
                hint="dump without dataOnly",
            )
        return found

    def _global(self, file: str, notes: tuple[str, ...] = ()) -> Iterator[Piece]:
        if file in self._there:
            before = self._session().encode()
            yield Piece(self._named(file), iter([self._text(file)]), before, notes=notes)

    def _created(self, name: str, base: str) -> Piece:
        """The database, with its events and routines."""
        file = f"{base}.sql"
        if file not in self._there and not self._dump.has_schemas:
            create = f"CREATE DATABASE IF NOT EXISTS {quoted(name)};\n".encode()
            return Piece(self._named(DUMP), iter(()), create, name)
        return Piece(self._named(file), iter([self._text(file)]), self._session().encode(), name)

    def _script(self, schema: str, file: str) -> Piece:
        before = f"USE {quoted(schema)};\n{self._session()}".encode()
        return Piece(self._named(file), iter([self._text(file)]), before, schema)

    def _session(self) -> str:
        """What a session begins with, as MySQL Shell's does; lines of SQL."""
        return (
            f"SET NAMES {self._names(self._dump.default_character_set, DUMP)};"
            " SET SESSION SQL_MODE='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES',"
            f" TIME_ZONE={self._zone}, FOREIGN_KEY_CHECKS=0, UNIQUE_CHECKS=0;\n"
        )

    @property
    def _zone(self) -> str:
        return "'+00:00'" if self._dump.tz_utc else "DEFAULT"

    # Tables

    def _of_table(self, schema: str, base: str, *, has_rows: bool) -> Iterator[Piece]:
        script = self._script(schema, f"{base}.sql")
        text = b"".join(script.data)
        name = f"{self._top / base}.sql"
        created = (tabbed.table(one.text) for one in statements([text], name))
        table = next((one for one in created if one is not None), None)
        if table is None:
            raise InvalidSpec(f"{name} is truncated: it creates no table", hint=_REPEAT)
        yield Piece(script.name, iter([text]), script.before, schema)
        file = f"{base}.json"
        if not has_rows and file not in self._there:
            return
        found = self._described(file, _Table)
        if found.triggers and f"{base}.triggers.sql" not in self._there:
            raise self._missing(f"{base}.triggers.sql")
        if has_rows and found.includes_data:
            yield from self._rows(schema, base, found, table)

    def _rows(self, schema: str, base: str, found: _Table, table: tabbed.Table) -> Iterator[Piece]:
        options, described = found.options, f"{base}.json"
        rows = self._columns(table, options, described)
        marks = self._marks(options, described)
        names = self._names(
            options.default_character_set or self._dump.default_character_set, described
        )
        before = f"USE {quoted(schema)};\n{self._session()}SET NAMES {names};\n".encode()
        before += tabbed.session(rows, utc=self._dump.tz_utc)
        packing = self._packing(found, described)
        read = partial(_unpacked, packing)
        for file in self._files(base, found, described):
            data = _whole(content(self._top / file, read), self._size(file), self._top / file)
            data = _joined(data) if marks is None else normal(data, marks, self._named(file))
            yield Piece(
                self._named(file), tabbed.inserts(data, rows, self._named(file)), before, schema
            )

    def _columns(self, table: tabbed.Table, options: _Format, file: str) -> tabbed.Table:
        """The table with the columns that the rows have, in their order."""
        kinds = {one.name: one.kind for one in table.columns}
        if not 1 <= len(options.columns) <= _COLUMNS_LIMIT:
            raise self._invalid(file, "the columns of its rows are not known")
        columns = []
        for name in options.columns:
            key = quoted(self._name(name, file)).encode()
            decoded = options.decode_columns.get(name, "")
            if decoded and decoded not in _DECODED:
                raise self._invalid(file, f"{name!r} is decoded by {decoded[:100]!r}")
            prefix = _DECODED.get(decoded, b"")
            end = b")" if decoded else b""
            columns.append(tabbed.FileColumn(key, prefix, kinds.get(key, b""), end=end))
        return tabbed.Table(table.name, tuple(columns))

    def _files(self, base: str, found: _Table, file: str) -> Iterator[str]:
        """The files of a table's rows, in order; raises InvalidSpec if one is missing."""
        if not re.fullmatch(r"[a-z]{1,10}(\.[a-z]{1,10})?", found.extension):
            raise self._invalid(file, f"its extension is {found.extension[:100]!r}")
        of_partitions = [self._base(name, found.basenames, "") for name in found.basenames]
        for one in of_partitions or [base]:
            whole = f"{one}.{found.extension}"
            if whole in self._there:  # an empty table's, too, until 8.0.21
                yield whole
                continue
            if not found.chunking:
                raise self._missing(whole)
            number = 0
            while (chunk := f"{one}@{number}.{found.extension}") in self._there:
                yield chunk
                number += 1
            last = f"{one}@@{number}.{found.extension}"
            if last not in self._there:
                raise self._missing(last)
            yield last

    def _size(self, file: str) -> int | None:
        """Bytes of a file of rows, decompressed; None: not known."""
        if (size := self._sizes.get(file)) is not None:
            return size
        if f"{file}.idx" not in self._there:
            return None
        last = small(self._top / f"{file}.idx")[-_OFFSET.size :]
        return int(_OFFSET.unpack(last)[0]) if len(last) == _OFFSET.size else None

    def _packing(self, found: _Table, file: str) -> Packing:
        given = (found.compression or found.options.compression).partition(";")[0]
        if not given:
            ends: Mapping[str, Packing] = {"gz": "gz", "zst": "zst"}
            return ends.get(found.extension.rpartition(".")[2], "")
        if given not in _PACKINGS:
            raise self._invalid(file, f"its rows are compressed by {given[:100]!r}")
        return _PACKINGS[given]

    def _marks(self, options: _Format, file: str) -> Marks | None:
        """How values and rows end; None: as ``tabbed`` reads them."""
        found = Marks(
            options.fields_terminated_by.encode(),
            options.fields_enclosed_by.encode(),
            options.fields_escaped_by.encode(),
            options.lines_terminated_by.encode(),
        )
        if found == Marks():
            return None
        if not found.are_clear:
            raise self._invalid(
                file,
                "values cannot be distinguished from what separates them",
                "dump without options of the dialect (fieldsTerminatedBy and others)",
            )
        return found

    # Files

    def _described(self, file: str, kind: type[_File]) -> _File:
        if file not in self._there:
            raise self._missing(file)
        try:
            return msgspec.json.decode(small(self._top / file), type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            why = "" if isinstance(error, RecursionError) else str(error)
            raise InvalidSpec(
                f"{self._top / file} is truncated, or no description of MySQL Shell",
                hint=_REPEAT,
                details=[why[:200]] if why else [],
            ) from None

    def _text(self, file: str) -> bytes:
        """A script as a whole; raises InvalidSpec if its last statement has no end."""
        if file not in self._there:
            raise self._missing(file)
        text, is_whole = small(self._top / file, sql), True
        for one in statements([text], str(self._top / file), head=0):
            is_whole = one.terminated
        if not is_whole:
            raise InvalidSpec(
                f"{self._top / file} is truncated: its last statement has no end", hint=_REPEAT
            )
        return text

    def _base(self, name: str, bases: Mapping[str, str], other: str) -> str:
        """What the files of something begin with."""
        base = bases.get(self._name(name, DUMP), other)
        if not base or "/" in base or "\0" in base:
            raise self._invalid(DUMP, f"{base[:100]!r} cannot be the name of a file")
        return base

    def _name(self, name: str, file: str) -> str:
        if not 1 <= len(name) <= _NAME_LIMIT or "\0" in name:
            raise self._invalid(file, f"{name[:100]!r} cannot be a name")
        return name

    def _names(self, charset: str, file: str) -> str:
        if charset.encode() not in tabbed.SAFE_NAMES:
            raise self._invalid(
                file,
                f"the dump is in the character set {charset[:64]!r}",
                "dump with the option defaultCharacterSet: 'utf8mb4'",
            )
        return charset

    def _named(self, file: str) -> str:
        return f"{self._top.name}/{file}"

    def _missing(self, file: str) -> InvalidSpec:
        return InvalidSpec(f"{self._top / file} is missing", hint=_REPEAT)

    def _invalid(self, file: str, why: str, hint: str = _REPEAT) -> InvalidSpec:
        return InvalidSpec(f"{self._top / file}: {why}", hint=hint)


def _unpacked(packing: Packing, data: Iterable[bytes], name: str) -> Iterator[bytes]:
    return unpacked(data, packing, name)


def _whole(data: Iterable[bytes], size: int | None, path: Path) -> Iterator[bytes]:
    """Pass on ``data``; raises InvalidSpec unless it has the size that the dump says."""
    done = 0
    for chunk in data:
        done += len(chunk)
        yield chunk
    if size is not None and done != size:
        raise InvalidSpec(
            f"{path} has {done} bytes of rows, and the dump says {size}: it is truncated, or of"
            " another dump",
            hint=_REPEAT,
        )


def _joined(data: Iterable[bytes]) -> Iterator[bytes]:
    """``data`` in larger chunks: each is a statement."""
    held = bytearray()
    for chunk in data:
        held += chunk
        if len(held) >= MIB:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


# Other formats of rows


_ESCAPES = {b"0": b"\0", b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"Z": b"\x1a"}
_WRITTEN = re.compile(rb"[\\\t\n\0]")
_BY = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\0": b"\\0"}


class Marks(msgspec.Struct, frozen=True):
    """Of a format of rows: what ends and encloses a value, escapes a byte, and ends a row."""

    value: bytes = b"\t"
    enclosing: bytes = b""
    escape: bytes = b"\\"
    row: bytes = b"\n"

    @property
    def are_clear(self) -> bool:
        """Whether values can be distinguished from marks, by what MySQL Shell escapes.

        That is the escape, what encloses, and the first byte of what ends values and rows.
        """
        firsts = [self.value[:1], self.escape, self.row[:1], *filter(None, [self.enclosing])]
        return (
            all(len(one) == 1 and one[0] < 128 and not one.isalnum() for one in firsts)
            and len(set(firsts)) == len(firsts)
            and max(len(self.value), len(self.row)) <= 8
        )


class _Values:
    """Tells values by their marks."""

    def __init__(self, marks: Marks) -> None:
        escape = re.escape(marks.escape)
        other = rb"[^%s]*" % re.escape(marks.escape + marks.value[:1] + marks.row[:1])
        ends = re.escape(marks.value) + b"|" + re.escape(marks.row)
        token = rb"(%s(?:%s.%s)*)(%s)" % (other, escape, other, ends)
        self._token = re.compile(token, re.DOTALL)
        self._escaped = re.compile(escape + rb"(.)", re.DOTALL)
        self._marks = marks

    def of(self, held: bytearray) -> bytes:
        """The values that are whole, as ``tabbed`` reads them; they are removed from ``held``."""
        out, at = bytearray(), 0
        while found := self._token.match(held, at):
            is_row = found[2] == self._marks.row
            out += self._value(found[1]) + (b"\n" if is_row else b"\t")
            at = found.end()
        del held[:at]
        return bytes(out)

    def _value(self, text: bytes) -> bytes:
        if text == self._marks.escape + b"N":
            return rb"\N"
        sign = self._marks.enclosing
        if sign and len(text) > 1 and text.startswith(sign) and text.endswith(sign):
            text = text[1:-1]
        text = self._escaped.sub(lambda match: _ESCAPES.get(match[1], match[1]), text)
        return _WRITTEN.sub(lambda match: _BY[match[0]], text)


def normal(data: Iterable[bytes], marks: Marks, name: str) -> Iterator[bytes]:
    """Rows as ``tabbed`` reads them; a row stays a line. ``name``: of the file."""
    values, held, least = _Values(marks), bytearray(), 0
    for chunk in chain(_joined(data), [b""]):
        held += chunk
        if chunk and len(held) < least:
            continue  # a long value is looked at again when there is twice as much of it
        if out := values.of(held):
            yield out
        least = 2 * len(held)
        if len(held) > STATEMENT_LIMIT:
            raise InvalidSpec(f"{name}: a line is longer than {format_size(STATEMENT_LIMIT)}")
    if held:
        raise InvalidSpec(f"{name} is truncated: its last line has no end", hint=_REPEAT)
