r"""Tab-separated data, as ``mariadb-dump --dir`` and ``--tab`` have the server write, as SQL.

The server wrote them by ``SELECT ... INTO OUTFILE ... CHARACTER SET binary``: a line for each row,
``\N`` for NULL, a backslash before what is a tab, an end of line or a backslash in a value, and
``\0``. Values of a text are bytes of its column's character set, so they become binary strings,
which a column takes as they are.

Characters whose second byte can be a backslash, a tab or an end of line are written without a
backslash before it, so nobody can tell where a value ends: tables with such columns are refused.

A row is a line of the SQL as well.

``mariadb-import`` is no substitute: that of 10.11 knows no ``--dir``; with ``--local`` it succeeds
on rows that lack a value, or have one that is too long or a key twice, and changes or omits them;
where the server reads the files, its errors name a table, and a row at best, but no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lab.datasets.dump import STATEMENT_LIMIT
from lab.errors import InvalidSpec
from lab.units import format_size
from lab.values import dataclass

_NAME = rb"`(?:[^`\n]|``){1,300}`"
_TABLE = re.compile(
    rb"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(`(?:[^`]|``){1,300}`)", re.IGNORECASE
)
_COLUMN = re.compile(rb"^  (" + _NAME + rb") ([a-z0-9]+)([^\n]*)", re.MULTILINE)
_CHARSET = re.compile(rb"CHARACTER SET (\w+)")
_DEFAULT = re.compile(rb"\n\).*\bCHARSET=(\w+)")
_STRING = re.compile(rb"'(?:[^'\\]|''|\\.)*(?:'|\\?\Z)", re.DOTALL)

_TEXTS = frozenset(
    [b"char", b"varchar", b"tinytext", b"text", b"mediumtext", b"longtext", b"enum", b"set"]
)
_BYTES = frozenset(
    b"binary varbinary tinyblob blob mediumblob longblob bit geometry point linestring polygon"
    b" multipoint multilinestring multipolygon geometrycollection vector".split()
)
SAFE_NAMES = frozenset([b"utf8mb4", b"utf8mb3", b"utf8", b"latin1", b"ascii", b"binary"])
"""Character sets of a session in which a backslash or a quote is never a part of a character."""
_AMBIGUOUS = frozenset(
    [b"big5", b"cp932", b"gb18030", b"gbk", b"sjis", b"ucs2", b"utf16", b"utf16le", b"utf32"]
)


@dataclass(frozen=True)
class FileColumn:
    """A column of a table."""

    name: bytes
    """In backticks."""
    prefix: bytes
    """With what a literal of its values begins."""
    kind: bytes
    """Its type, such as ``varchar``."""
    charset: bytes = b""
    is_generated: bool = False
    end: bytes = b""
    """With what a literal of its values ends."""


@dataclass(frozen=True)
class Table:
    """What is known of a table by its CREATE TABLE; ``name`` in backticks."""

    name: bytes
    columns: tuple[FileColumn, ...]


def table(create: bytes) -> Table | None:
    """The table that a statement, as SHOW CREATE TABLE writes it, creates; None: it does not."""
    match = _TABLE.match(create)
    if match is None:
        return None
    default = _DEFAULT.search(create)
    columns = []
    for name, kind, rest in _COLUMN.findall(create):
        plain = _STRING.sub(b"", rest)  # without defaults and comments
        given = _CHARSET.search(plain)
        text = kind in _TEXTS
        columns.append(
            FileColumn(
                name,
                b"_binary" if text or kind in _BYTES else b"",
                kind,
                (given or default or [b"", b""])[1] if text else b"",
                is_generated=b" GENERATED ALWAYS AS (" in plain,
            )
        )
    return Table(match[1], tuple(columns))


def check(found: Table, name: str) -> None:
    """Raise InvalidSpec unless rows of the table can be read; ``name``: of the file with them."""
    if not found.columns:
        raise InvalidSpec(f"{name}: the columns of its table are not known", hint=_QUOTED)
    wrong = next((one for one in found.columns if one.charset in _AMBIGUOUS), None)
    if wrong is not None:
        column = wrong.name[1:-1].decode(errors="replace")
        raise InvalidSpec(
            f"{name}: the column {column} is in the character set {wrong.charset.decode()}, in"
            " which tabs and ends of lines are ambiguous",
            hint="dump with mydumper, or with mariadb-dump without --dir",
        )


def session(found: Table, *, utc: bool) -> bytes:
    """SQL that prepares a session for the rows, so that no value is changed."""
    # An invalid value of an ENUM is one that a strict server refuses.
    is_strict = not any(one.kind in (b"enum", b"set") for one in found.columns)
    mode = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
    mode += ",STRICT_ALL_TABLES" if is_strict else ""
    zone = "'+00:00'" if utc else "DEFAULT"
    return f"SET SESSION SQL_MODE='{mode}', TIME_ZONE={zone};\n".encode()


def inserts(data: Iterable[bytes], found: Table, name: str) -> Iterator[bytes]:
    """Rows as INSERT statements; raises InvalidSpec with the line of a row that is not one."""
    reader = _Reader(found, name)
    for block in _blocks(data, name):
        yield reader.statement(block)


_QUOTED = "CREATE TABLE must be as mariadb-dump writes it, with names in backticks"


def _blocks(data: Iterable[bytes], name: str) -> Iterator[bytes]:
    """``data`` in pieces of whole rows."""
    held = bytearray()
    for chunk in data:
        begin = len(held)
        held += chunk
        if (end := _rows_end(held, begin)) > 0:
            yield bytes(held[:end])
            del held[:end]
        elif len(held) > STATEMENT_LIMIT:
            raise InvalidSpec(f"{name}: a line is longer than {format_size(STATEMENT_LIMIT)}")
    if held:
        raise InvalidSpec(
            f"{name} is truncated: its last line has no end",
            hint="copy the file again, or repeat the dump",
        )


def _rows_end(held: bytearray, begin: int) -> int:
    """Behind the last end of a row from ``begin`` on; 0 if there is none."""
    at = held.rfind(b"\n", begin)
    while at >= 0:
        start = at
        while start and held[start - 1] == 0x5C:
            start -= 1
        if not (at - start) & 1:
            return at + 1
        at = held.rfind(b"\n", begin, at)
    return 0


_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_OTHER = re.compile(rb"\\[^0bnrtZN\t\n]")
"""An escape that SQL does not know, or understands in another way."""
_NULL = rb"\N"


def _as_sql(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] in b"0bnrtZN\\\t\n" else match[1]


class _Reader:
    """Rows of one table."""

    def __init__(self, found: Table, name: str) -> None:
        self._name = name
        self._line = 1
        self._count = len(found.columns)
        columns = found.columns
        self._kept = [at for at, one in enumerate(columns) if not one.is_generated]
        self._ends = [(columns[at].prefix, columns[at].end) for at in self._kept]
        self._row = b"(%s)" % b",".join(b"%s'%%b'%s" % ends for ends in self._ends)
        names = b",".join(columns[at].name for at in self._kept)
        self._insert = b"INSERT INTO %s (%s) VALUES " % (found.name, names)

    def statement(self, block: bytes) -> bytes:
        """The statement that inserts ``block``, which has whole rows."""
        is_cut = False
        if b"\\" in block:
            if _OTHER.search(block.replace(b"\\\\", b"")):
                block = _ESCAPE.sub(_as_sql, block)
            block = block.replace(b"\0", b"\\0")
            if is_cut := b"\\\t" in block or b"\\\n" in block:
                # These are no ends of values; no NUL is left that could be taken for one of ours.
                block = block.replace(b"\\\\", b"\0\0")
                block = block.replace(b"\\\t", b"\0t").replace(b"\\\n", b"\0n")
        else:
            block = block.replace(b"\0", b"\\0")
        rows = block.replace(b"'", b"''").split(b"\n")
        del rows[-1]
        text = self._insert + b",\n".join(map(self._values, rows)) + b";\n"
        if is_cut:
            text = text.replace(b"\0\0", b"\\\\").replace(b"\0t", b"\\t").replace(b"\0n", b"\\n")
        return text

    def _values(self, row: bytes) -> bytes:
        values = row.split(b"\t")
        if len(values) != self._count:
            if len(values) != len(self._kept):
                raise self._wrong(len(values))
        elif len(self._kept) != self._count:
            values = [values[at] for at in self._kept]
        self._line += 1 + row.count(b"\0n")
        if _NULL not in row:
            return self._row % tuple(values)
        pairs = zip(self._ends, values, strict=True)
        some = (
            b"NULL" if one == _NULL else b"%s'%s'%s" % (prefix, one, end)
            for (prefix, end), one in pairs
        )
        return b"(%s)" % b",".join(some)

    def _wrong(self, count: int) -> InvalidSpec:
        return InvalidSpec(
            f"{self._name}: line {self._line} has {count} values, its table {self._count} columns",
            hint="the file must be as its program writes it without options of the format, such as"
            " --fields-* and --lines-*",
        )
