"""What is in a dump: the program and server that wrote it, its databases, whether it is complete.

The lines are those that mysqldump, mariadb-dump (client/mysqldump.c, ``write_header`` and
``write_footer``) and mydumper write::

    -- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)
    -- MariaDB dump 10.19-11.4.2-MariaDB, for Linux (x86_64)
    -- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
    -- Host: localhost    Database: shop
    -- Server version	10.11.6-MariaDB-0+deb12u1
    -- Dump completed on 2026-11-20 12:00:00

Users put lines of their own before and after that, such as ``COMMIT``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import Literal

from lab.config.enginefile import DialectName, family_of, numbers
from lab.datasets.collations import LANGUAGES, NAMED, OTHERS, UCA1400, nearest
from lab.datasets.dump import STATEMENT_LIMIT, Statement, statements
from lab.errors import InvalidSpec
from lab.units import counted
from lab.values import dataclass

HEAD = 64 << 10
"""Bytes at a dump's start in which its header is, and of a statement in which signs are sought."""
_HEADER_LINE = 4096
"""Bytes of a line of the header, at most."""


@dataclass(frozen=True)
class Found:
    """What a dump, or the part of it that was read, says about itself."""

    program: str = ""
    """``mariadb-dump``, ``mysqldump``; empty: unknown."""
    dialect: DialectName | Literal[""] = ""
    """Whose SQL it is; empty: unknown. Percona's servers are of MySQL's."""
    version: str = ""
    """Of the server that it was dumped from, else of the program: ``10.11.6-MariaDB``."""
    databases: tuple[str, ...] = ()
    """The databases that it creates or uses, in order."""
    named: str = ""
    """The database in its header, which a dump of one database does not create."""
    complete: bool | None = None
    """Whether its program's last line is there; None: it writes none, or it was not read."""
    tables: int = 0
    """CREATE TABLE statements, without the stand-ins for views."""
    statements: int = 0
    size: int = 0
    """Bytes, decompressed."""
    signs: Mapping[str, int] = field(default_factory=dict)
    """The keys of what ``suits`` knows that its schema has, and in how many statements."""
    long: frozenset[str] = frozenset()
    """Those that statements have which are too long to be changed: ``HEAD`` bytes and more."""
    functions: tuple[str, ...] = ()
    """Loadable functions that it creates, or inserts into mysql.func: of libraries, not of SQL."""
    notes: tuple[str, ...] = ()
    """What of it is not loaded as it is."""
    rest: bytes = b""
    """What must follow before other SQL does: it ends a statement, or restores the delimiter."""


_PROGRAM = re.compile(
    rb"^(?:/\*M!999999[^\n]*\n)?-- (MariaDB|MySQL) dump [\d.]+(?:-|[ \t]+Distrib )([^,\s]+)",
    re.MULTILINE,
)
_SERVER = re.compile(rb"^-- Server version[ \t]+(\S+)", re.MULTILINE)
_HOST, _DATABASE = b"-- Host: ", b"Database: "
_BEGINS = (b"\n-- MySQL dump ", b"\n-- MariaDB dump ")
_COMPLETED = b"\n-- Dump completed"
_MESSAGE = re.compile(rb"(mysqldump|mariadb-dump|mysqlpump|mydumper): [^\r\n]{1,500}")


def header(head: bytes) -> Found:
    """What the first ``HEAD`` bytes of a dump, decompressed, say about the rest."""
    head = head[:HEAD]
    program, server = _PROGRAM.search(head), _SERVER.search(head)
    written = (server[1] if server else program[2] if program else b"").decode(errors="replace")
    dialect: DialectName | Literal[""] = ""
    if program or server:
        is_mariadb = b"mariadb" in (server[1] if server else program[1] if program else b"").lower()
        dialect = "mariadb" if is_mariadb else "mysql"
    return Found(
        program={b"MariaDB": "mariadb-dump", b"MySQL": "mysqldump"}[program[1]] if program else "",
        dialect=dialect,
        version=written,
        named=_named(head),
    )


def _named(head: bytes) -> str:
    for line in head.split(b"\n"):
        if line.startswith(_HOST) and len(line) <= _HEADER_LINE:
            before, _, named = line.partition(_DATABASE)
            if before.endswith((b" ", b"\t")):
                return named.strip().decode(errors="replace")
    return ""


class _Marks:
    """Where the first and the last lines of dumps are in what is read; a file may have several."""

    _longest = max(map(len, (*_BEGINS, _COMPLETED)))

    def __init__(self) -> None:
        self._held = b"\n"
        self._at = -1  # the offset of what is held
        self.begun = self.completed = -1

    def read(self, chunk: bytes) -> None:
        """Look at the next bytes."""
        data = self._held + chunk
        self.begun = max(self.begun, *(self._last(data, mark) for mark in _BEGINS))
        self.completed = max(self.completed, self._last(data, _COMPLETED))
        self._held = data[-self._longest :]
        self._at += len(data) - len(self._held)

    def _last(self, data: bytes, mark: bytes) -> int:
        found = data.rfind(mark)
        return -1 if found < 0 else self._at + found + 1


def truncated(found: Found, name: str) -> InvalidSpec | None:
    """The error about a dump that lacks its last line; None if it is whole as far as is known."""
    if found.complete is not False:
        return None
    return InvalidSpec(
        f"{name} is truncated: the last line of {found.program}, `-- Dump completed`, is missing",
        hint="copy the file again, or repeat the dump",
    )


def leaves_collations_out(found: Found, target: DialectName) -> bool:
    """Whether a dump may leave out collations that a server would choose otherwise."""
    same = bool(found.dialect) and found.dialect == target
    return bool(found.dialect) and not (same and numbers(found.version) >= NAMED[target])


_COMMENT = rb"(?:/\*M?!\d*\s*)?"
_NAME = rb"(?:`((?:[^`]|``){1,300})`|([\w$]{1,300}))"
_CREATE_DATABASE = re.compile(
    _COMMENT + rb"CREATE\s+(?:DATABASE|SCHEMA)\s+" + rb"(?:/\*M?!\d*\s*)?(?:IF\s+NOT\s+EXISTS\s*)?"
    rb"(?:\*/\s*)?" + _NAME,
    re.IGNORECASE,
)
_USE = re.compile(rb"USE\s+" + _NAME, re.IGNORECASE)
_TABLE_NAME = re.compile(rb"CREATE\s+TABLE\s+(`(?:[^`]|``){1,300}`)", re.IGNORECASE)
_INTO = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?INTO\s+(`(?:[^`]|``){1,300}`)", re.IGNORECASE
)
_GENERATED = re.compile(rb"\bGENERATED\s+ALWAYS\s+AS\b", re.IGNORECASE)
_MARIADB_DUMP = re.compile(rb"^-- (?:MariaDB dump |MySQL dump [^\n]{1,100}-MariaDB)", re.MULTILINE)
"""mariadb-dump, also by its former name: it has values of generated columns."""
_CREATE_TABLE = re.compile(rb"CREATE\s+TABLE\b", re.IGNORECASE)
_TABLE = re.compile(
    _COMMENT + rb"(?:CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?|ALTER\s+)TABLE\b", re.IGNORECASE
)
_DATA = re.compile(rb"(?:INSERT|REPLACE)\b", re.IGNORECASE)
_TRUNCATABLE = re.compile(rb"(?:INSERT|REPLACE|CREATE|/\*)", re.IGNORECASE)
_CREATE_FUNCTION = re.compile(
    _COMMENT + rb"CREATE\s+(?:OR\s+REPLACE\s+)?(?:AGGREGATE\s+)?FUNCTION\s+"
    rb"(?:IF\s+NOT\s+EXISTS\s+)?" + _NAME + rb"\s+RETURNS\s+\w{1,20}\s+SONAME\b",
    re.IGNORECASE,
)
_FUNC = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?(?:INTO\s+)?`?mysql`?\.`?func`?[\s(]", re.IGNORECASE
)
_ROW = re.compile(rb"\('([\w$]{1,64})'")
_DATABASES_LIMIT = 10_000
_USUAL = b";"
FUNCTIONS_LIMIT = 100
"""Names of functions that are kept."""


def _pass_over(sign: str, statement: Statement) -> None:
    """Nothing that anybody waits for."""


def survey(
    data: Iterable[bytes],
    name: str = "the dump",
    *,
    limit: int = STATEMENT_LIMIT,
    seen: Callable[[str, Statement], None] = _pass_over,
) -> Found:
    """All that can be known of a dump: reads ``data``, decompressed, to its end, at full speed.

    ``limit``: bytes of one statement, at most; ``seen`` is called with each sign that a statement
    has, and with its head. Raises InvalidSpec as ``statements`` does.
    """
    head, size, marks = bytearray(), 0, _Marks()

    def passing() -> Iterator[bytes]:
        nonlocal size
        for chunk in data:
            if len(head) < HEAD:
                head.extend(chunk[: HEAD - len(head)])
            marks.read(chunk)
            size += len(chunk)
            yield chunk

    number, tables = 0, 0
    databases: dict[str, None] = {}
    signs, functions = _Seen(seen), dict[str, None]()
    torn, computing, is_open = False, _Computing(head), False
    delimiters: list[bytes] = []
    read = statements(passing(), name, limit=limit, head=HEAD, ended=delimiters.append)
    for statement in read:
        number = statement.number
        if number == 1 and (message := _MESSAGE.match(statement.text)):
            raise InvalidSpec(
                f"{name} begins with a message of {message[1].decode()}, which is no SQL",
                hint="dump without 2>&1; `sed -i 1d` removes the first line",
                details=[message[0].decode(errors="replace")],
            )
        is_open = not statement.terminated
        torn = is_open and bool(_TRUNCATABLE.match(statement.text))
        if len(functions) < FUNCTIONS_LIMIT:
            functions |= dict.fromkeys(functions_of(statement.text))
        if _DATA.match(statement.text):
            signs.counts.update([_COMPUTED] * computing.fills(statement.text))
            continue
        computing.defined(statement.text)
        if (database := database_of(statement)) and len(databases) < _DATABASES_LIMIT:
            databases[database] = None
        tables += bool(_CREATE_TABLE.match(statement.text))
        signs.of(statement)
    rest = delimiters[0] + b"\n" if is_open else b""
    if delimiters[0] != _USUAL:
        rest += b"DELIMITER %s\n" % _USUAL
    found = header(bytes(head))
    return Found(
        program=found.program,
        dialect=found.dialect,
        version=found.version,
        databases=tuple(databases),
        named=found.named,
        complete=marks.completed > marks.begun and not torn if found.program else None,
        tables=tables,
        statements=number,
        size=size,
        signs=dict(signs.counts),
        long=frozenset(signs.long),
        functions=tuple(functions)[:FUNCTIONS_LIMIT],
        rest=rest,
    )


class _Seen:
    """The signs of statements. ``long``: of those that are too long to be changed."""

    def __init__(self, seen: Callable[[str, Statement], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.long: set[str] = set()
        self._seen = seen

    def of(self, statement: Statement) -> None:
        """Look at a statement of a schema."""
        for sign in signs_of(statement.text):
            self.counts[sign] += 1
            if len(statement.text) >= HEAD:
                self.long.add(sign)
            else:
                self._seen(sign, statement)


class _Computing:
    """Tables of a dump with generated columns, for which mariadb-dump writes values."""

    def __init__(self, head: bytearray) -> None:
        self._head = head
        self._names: set[bytes] = set()

    def defined(self, statement: bytes) -> None:
        """Look at a statement that may define a table."""
        found = _TABLE_NAME.match(statement)
        if found and _GENERATED.search(code(statement[:HEAD])):
            self._names.add(found[1])

    def fills(self, statement: bytes) -> bool:
        """Whether a statement has rows of such a table."""
        if not self._names:
            return False
        found = _INTO.match(statement)
        return bool(found and found[1] in self._names and _MARIADB_DUMP.search(self._head))


def database_of(statement: Statement) -> str:
    """The database that a statement creates or uses; empty if it does neither."""
    match = _CREATE_DATABASE.match(statement.text) or _USE.match(statement.text)
    if not match:
        return ""
    return (match[1] or match[2]).replace(b"``", b"`").decode(errors="replace")


def functions_of(statement: bytes) -> list[str]:
    """The loadable functions that a statement creates, by name."""
    if match := _CREATE_FUNCTION.match(statement):
        return [(match[1] or match[2]).replace(b"``", b"`").decode(errors="replace")]
    if _FUNC.match(statement):
        names = [row[1].decode() for row in _ROW.finditer(statement)]
        return names[:FUNCTIONS_LIMIT] or ["mysql.func"]
    return []


@dataclass(frozen=True)
class _Sign:
    """Something in a schema that not every server understands."""

    pattern: re.Pattern[bytes]
    mariadb: tuple[int, ...] | None
    """The first version of MariaDB that understands it; None: no version."""
    mysql: tuple[int, ...] | None
    """The first version of MySQL that understands it; None: no version."""
    what: str
    """What it is, in a word or two."""
    hint: str
    effect: str = ""
    """What another server makes of it; empty: it refuses the statement."""
    refusal: str = "which {named} does not know"
    """Why another server refuses it."""
    commented: bool = False
    """Whether it is in a string, or in a comment that MySQL executes and MariaDB does not."""
    named: bool = True
    """Whether a name in backticks is a part of it."""
    where: Literal["", "table", "options"] = "table"
    """Only in a definition of a table, or in that behind its columns; empty: in any statement."""
    left_out: bool = False
    """Whether its statement is left out for another server; ``effect`` says so."""
    part: re.Pattern[bytes] | None = None
    """What ``instead`` changes, if that is not what is found. A group ``it`` is a part of it."""
    instead: Callable[[str, DialectName, tuple[int, ...]], str] | None = None
    """What takes its place, in a server of a dialect and version."""
    example: str = ""
    """Something that is found, if what takes its place differs; else ``effect`` says it."""
    gaps: Mapping[DialectName, tuple[tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=dict
    )
    """Versions after the first one that do not understand it: the first, and the next that does."""

    def is_unknown(self, dialect: DialectName, version: tuple[int, ...]) -> bool:
        """Whether that dialect's servers of a version do not understand it; (): the newest."""
        versions: dict[DialectName, tuple[int, ...] | None]
        versions = {"mariadb": self.mariadb, "mysql": self.mysql}
        since = versions[dialect]
        if since is None or (version and version < since):
            return True
        begin, end = self.gaps.get(dialect, (version, version))
        return begin <= version < end

    def becomes(self, text: bytes, dialect: DialectName, version: tuple[int, ...]) -> bytes | None:
        """A statement for a server that does not understand it; None: it is left out.

        It is ``text`` itself where it stays.
        """
        if self.instead is None:
            return None if self.left_out else text
        sought, made, at = self.part or self.pattern, bytearray(), 0
        group = "it" if "it" in sought.groupindex else 0
        for match in sought.finditer(self.read(text)):
            begin, end = match.span(group)
            old = text[begin:end].decode("latin-1")  # each byte is a character
            made += text[at:begin] + self.instead(old, dialect, version).encode("latin-1")
            at = end
        return bytes(made + text[at:])

    def read(self, text: bytes, seen: Callable[[bytes, bool], bytes] | None = None) -> bytes:
        """What of a statement is looked at; the rest is blank. ``seen``: ``code``, remembered."""
        if self.where and not _TABLE.match(text):
            return b""
        found = text if self.commented else (seen or code)(text, self.named)
        if self.where == "options":
            begin = _columns_end((seen or code)(text, False))
            return found[:0].ljust(begin) + found[begin:]
        return found

    def consequence(self, named: str, dialect: DialectName, version: tuple[int, ...]) -> str:
        """What becomes of it in a server that is ``named`` so."""
        if self.instead and self.example:
            new = self.instead(self.example, dialect, version)
            return f"in {named} they become the nearest ones, such as {new} for {self.example}"
        return f"in {named} {self.effect}" if self.effect else self.refusal.format(named=named)

    @property
    def is_changed(self) -> bool:
        """Whether a server that does not understand it gets the statement in other words."""
        return self.left_out or self.instead is not None

    @property
    def is_refused(self) -> bool:
        """Whether a server that does not understand it refuses the statement."""
        return not (self.effect or self.instead)


_ANY = (0,)
_NAMED = 10
"""Functions that a message names."""


def _code(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.IGNORECASE)


def _words(languages: Iterable[str]) -> bytes:
    return "|".join(sorted(filter(None, languages))).encode()


def _mode(names: bytes) -> re.Pattern[bytes]:
    return _code(rb"\A(?:/\*!\d+\s+)?SET\s[^;']{0,200}\bsql_mode\s*=\s*'[^']*\b(?:%s)\b" % names)


def _without(names: bytes) -> re.Pattern[bytes]:
    return _code(rb",(?:%s)\b|\b(?:%s)\b,?" % (names, names))


_GONE = (
    rb"EMPTY_STRING_IS_NULL|SIMULTANEOUS_ASSIGNMENT|TIME_ROUND_FRACTIONAL|IGNORE_BAD_TABLE_OPTIONS"
    rb"|NO_(?:FIELD|KEY|TABLE)_OPTIONS|POSTGRESQL|MSSQL|DB2|MAXDB|MYSQL323|MYSQL40"
)
"""Modes of MariaDB that MySQL does not have, or has no more."""
_IGNORED: Mapping[DialectName, str] = {"mariadb": "", "mysql": "INVISIBLE"}
"""What ignored indexes are in servers that do not know the word."""
_COMPUTED = "values of generated columns"
"""Found by two statements: of the table, and of its rows."""

SIGNS: dict[str, _Sign] = {
    # MariaDB knows the names as aliases of its own from 11.4.5 on (MDEV-20912), and from 11.7.2 on.
    "utf8mb4_0900": _Sign(
        _code(rb"\butf8mb4_(?:(?:%s)_)?0900_\w+" % _words(LANGUAGES)), (11, 4, 5), (8, 0, 1),
        "collations utf8mb4_0900_*", "test the order of texts, and what is equal",
        instead=nearest, example="utf8mb4_0900_ai_ci", gaps={"mariadb": ((11, 5), (11, 7, 2))},
        named=False, where="",
    ),
    "utf8mb4_0900 of others": _Sign(
        _code(rb"\butf8mb4_(?:%s)_0900_\w+" % _words(OTHERS)), None, (8, 0, 1),
        "collations utf8mb4_0900_* of languages that MariaDB lacks",
        "test the order of texts, and what is equal",
        instead=nearest, example="utf8mb4_ja_0900_as_cs",
        named=False, where="",
    ),
    "uca1400": _Sign(
        _code(rb"\b[a-z0-9]+_uca1400_\w+"), UCA1400, None,
        "collations uca1400_*", "test the order of texts, and what is equal",
        instead=nearest, example="utf8mb4_uca1400_ai_ci",
        named=False, where="",
    ),
    "uca1400 of any set": _Sign(
        _code(rb"\buca1400_\w+"), UCA1400, None,
        "collations uca1400_* without a character set",
        "sed 's/ uca1400_ai_ci/ utf8mb4_uca1400_ai_ci/g' changes the dump",
        named=False, where="",
    ),
    "nopad": _Sign(
        _code(rb"\b[a-z0-9]+_(?!uca1400)(?:[a-z0-9]+_)*nopad_(?:ci|bin)\b"), (10, 2), None,
        "collations that do not pad", "values that differ in spaces at their ends become equal",
        instead=nearest, example="utf8mb4_general_nopad_ci",
        named=False, where="",
    ),
    "periods": _Sign(
        _code(rb"\bPERIOD\s+FOR\s+\W?\w"), (10, 3), None,
        "periods of tables (PERIOD FOR)",
        "drop them in a copy, and dump that",
    ),
    "ignored indexes": _Sign(
        _code(rb"(?<=\) )IGNORED(?=,?(?:\n|\Z))"), (10, 6), None,
        "ignored indexes",
        "labs have them as they are",
        "they are INVISIBLE, before MariaDB 10.6 used like others",
        instead=lambda _, dialect, __: _IGNORED[dialect],
    ),
    "defaults": _Sign(
        _code(
            rb"(?<= DEFAULT )(?!(?:current_timestamp|now|localtime(?:stamp)?|nextval)\b)[a-z_]\w*"
            rb"\((?:[^()']|'(?:[^'\\]|\\.){0,300}'|\([^()]{0,300}\)){0,300}\)"
        ), _ANY, None,
        "defaults that are functions",
        "test what inserts without these columns",
        "they are in parentheses",
        instead=lambda text, _, __: f"({text})",
    ),
    "defaults of texts": _Sign(
        _code(
            rb"(?m:^)[^\S\n]*`[^`\n]+`\s+(?:(?:tiny|medium|long)?(?:text|blob)|json)\b[^\n',]{0,300}?"
            rb"\bDEFAULT\s+(?P<it>(?:'[^'\n]*')+|-?\d[\d.]*)"
        ), _ANY, None,
        "defaults of columns of the types TEXT, BLOB and JSON",
        "test what inserts without these columns",
        "they are in parentheses",
        instead=lambda text, _, __: f"({text})",
    ),
    "times in defaults": _Sign(
        _code(
            rb"(?m:^)[^\S\n]*`[^`\n]+`\s+(?!datetime|timestamp)[a-z][^\n',]{0,300}?"
            rb"\bDEFAULT\s+(?P<it>current_timestamp\(\d?\))"
        ), _ANY, None,
        "defaults CURRENT_TIMESTAMP of columns of other types than DATETIME and TIMESTAMP",
        "test what inserts without these columns",
        "they are in parentheses",
        instead=lambda text, _, __: f"({text})",
    ),
    "parsers": _Sign(
        _code(rb"\s/\*!50100 WITH PARSER `(?:ngram|mecab)` \*/"), None, (5, 7, 6),
        "full-text indexes with a parser (ngram, mecab)",
        "test the searches",
        "the parsers are left out: a word ends at a space or a punctuation mark",
        instead=lambda *_: "",
    ),
    "generated columns that are not null": _Sign(
        _code(
            rb"\bGENERATED ALWAYS AS \([^\n]{0,2000}\) (?:VIRTUAL|STORED)(?P<it> NOT NULL)"
        ), None, (5, 7, 6),
        "generated columns that are NOT NULL",
        "test what reads them",
        "they may be NULL",
        instead=lambda *_: "",
    ),
    "options of MySQL": _Sign(
        _code(rb"\s(?:COMPRESSION\s*=\s*'[^']*'|SECONDARY_ENGINE\s*=\s*\w+)"), None, (5, 7, 8),
        "options of tables of MySQL (COMPRESSION, SECONDARY_ENGINE)",
        "labs have these tables without them",
        "they are left out", where="options",
        instead=lambda *_: "",
    ),
    "reference systems": _Sign(
        _code(rb"(?m:^)[^\S\n]*`[^`\n]+`[^\n]*/\*!80003 SRID \d+ \*/"), None, (8, 0, 3),
        "columns with a spatial reference system (SRID)",
        "test what computes with their values: MariaDB computes in a plane",
        "they take values of any system", commented=True,
    ),
    "modes of MySQL": _Sign(
        _mode(b"TIME_TRUNCATE_FRACTIONAL"), None, (8, 0),
        "the mode TIME_TRUNCATE_FRACTIONAL (sql_mode) of routines, triggers and events",
        "MariaDB truncates fractions of seconds in any case",
        "it is left out", commented=True, where="",
        part=_without(b"TIME_TRUNCATE_FRACTIONAL"), instead=lambda *_: "",
    ),
    "modes of MariaDB": _Sign(
        _mode(_GONE), _ANY, None,
        "modes that MySQL does not have (sql_mode) of routines, triggers and events",
        "test these routines",
        "they are left out", commented=True, where="",
        part=_without(_GONE), instead=lambda *_: "",
    ),
    "the mode ORACLE": _Sign(
        _mode(b"ORACLE"), _ANY, None,
        "routines, triggers or events in the mode ORACLE (sql_mode)",
        "leave them out of the dump, or write them in SQL/PSM",
        commented=True, where="",
    ),
    "options of tables": _Sign(
        _code(rb"\s`?(?:PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|ENCRYPTED|ENCRYPTION_KEY_ID)`?"
              rb"\s*=\s*(?:\w+|'[^']*')"), _ANY, None,
        "options of tables of MariaDB (PAGE_COMPRESSED, ENCRYPTED and others)",
        "labs have these tables without them",
        "they are left out",
        instead=lambda *_: "",
        where="options",
    ),
    "unique texts": _Sign(
        _code(rb"\bUNIQUE\s+KEY\s+`[^`]+`\s+\([^\n]{0,2000}\)\s+USING\s+HASH\b"
              rb"(?!(?s:.*)\bENGINE=MEMORY)"), (10, 4), None,
        "unique indexes of whole texts (USING HASH)",
        "give them the length of a prefix, `a`(190), in a copy, and dump that",
    ),
    "collections of geometries": _Sign(
        _code(rb"(?<![`\w])geomcollection(?![`\w])"), None, (8, 0, 11),
        "columns of the type geomcollection",
        "it is the same type",
        "it is called geometrycollection",
        instead=lambda *_: "geometrycollection",
        named=False, where="",
    ),
    "vectors": _Sign(
        _code(rb"(?m:^)[^\S\n]*`[^`]+`\s+vector\b"), (11, 7), (9, 0),
        "columns of the type VECTOR",
        "convert them to VARBINARY in a copy, and dump that",
    ),
    "checks": _Sign(
        _code(rb"\bCHECK\s*\([^\n]{0,2000}/\*!80016 NOT ENFORCED \*/"), None, (8, 0, 16),
        "checks that are not enforced",
        "drop the checks in a copy if rows violate them: MariaDB refuses these rows (error 4025)",
        "they are enforced", commented=True,
    ),
    "system versioning": _Sign(
        _code(rb"\bWITH\s+SYSTEM\s+VERSIONING\b"), (10, 3), None,
        "tables WITH SYSTEM VERSIONING",
        "drop the versioning of these tables in a copy, and dump that",
    ),
    "sequences": _Sign(
        _code(rb"\ACREATE\s+(?:OR\s+REPLACE\s+)?SEQUENCE\b"), (10, 3), None,
        "sequences",
        "replace them by AUTO_INCREMENT, and leave them out of the dump",
        where="",
    ),
    "gtid_purged": _Sign(
        _code(rb"\A(?:/\*!\d+\s+)?SET\s+@@GLOBAL\.GTID_PURGED\b"), None, (5, 6),
        "the variable @@GLOBAL.GTID_PURGED",
        "labs begin without a history in any case",
        "its statement is left out", left_out=True,
        where="",
    ),
    "removed mode": _Sign(
        _mode(b"NO_AUTO_CREATE_USER"), _ANY, None,
        "the mode NO_AUTO_CREATE_USER (sql_mode) of routines, triggers and events",
        "no account is created by GRANT since MySQL 8.0",
        "it is left out", commented=True, where="",
        part=_without(b"NO_AUTO_CREATE_USER"), instead=lambda *_: "",
    ),
    "expression index": _Sign(
        _code(rb"\bKEY\s+`[^`]+`\s*\((?:[^\n]{0,2000}?,)?\s*\("), None, (8, 0, 13),
        "indexes on expressions",
        "replace them by indexes on generated columns",
    ),
    "uuid or inet types": _Sign(
        _code(rb"(?m:^)[^\S\n]*`[^`]+`\s+(?:uuid|inet4|inet6)\b"), (10, 7), None,
        "columns of the types uuid, inet4 and inet6",
        "convert them to binary(16) or char(36) in a copy, and dump that",
    ),
    "Aria": _Sign(
        _code(rb"\bENGINE\s*=\s*Aria\b"), _ANY, None,
        "tables of the engine Aria",
        "convert them to InnoDB: ALTER TABLE ... ENGINE=InnoDB",
    ),
    "JSON": _Sign(
        _code(rb"(?m:^)[^\S\n]*`[^`]+`\s+json\b"), None, (5, 7, 8),
        "columns of the type JSON",
        "test the queries that read them",
        "they are LONGTEXT: they keep the text as it was written, compare as texts, and the"
        " operators -> and ->> are syntax errors",
    ),
    "invisible columns": _Sign(
        _code(rb"(?m:^)[^\S\n]*`[^`]+`[^\n]*/\*!80023 INVISIBLE \*/"), None, (8, 0, 23),
        "invisible columns",
        "ALTER TABLE ... MODIFY ... INVISIBLE in a file of --sql hides them",
        "they are visible, also to SELECT * and INSERT without a list of columns", commented=True,
    ),
    "invisible indexes": _Sign(
        _code(rb"\bKEY\s+`[^`]+`\s*\([^\n]{0,3000}/\*!80000 INVISIBLE \*/"), None, (8, 0, 1),
        "invisible indexes",
        "ALTER TABLE ... ALTER INDEX ... IGNORED in a file of --sql hides them",
        "they are used like others", commented=True,
    ),
    _COMPUTED: _Sign(
        _code(rb"\A(?!)"), _ANY, None,
        "values of generated columns, as mariadb-dump writes them",
        "dump with mysqldump, and create the dataset from the dump",
        refusal="which {named} refuses (error 3105)",
        where="",
    ),
    "encryption": _Sign(
        _code(rb"\A(?:CREATE|ALTER)\s[^;]*\bENCRYPTION\s*=\s*'Y'"), _ANY, None,
        "encrypted tables (ENCRYPTION='Y')",
        "sed \"s/ENCRYPTION='Y'/ENCRYPTION='N'/g\" changes the dump",
        refusal="which need a keyring that no image has", commented=True,
        where="",
    ),
    "plugins of MySQL": _Sign(
        _code(rb"\A(?:CREATE|ALTER)\s+USER\b[^;]*\bIDENTIFIED\s+WITH\s+'?(?:caching_sha2_password"
              rb"|sha256_password|auth_socket|authentication_\w+)\b"), None, (5, 7),
        "accounts with plugins of MySQL",
        "dump without accounts; create them in a file of --sql",
        commented=True,
        where="",
    ),
    # As the dump programs write them, in backticks: --users of mysqldump since 9, --system=users.
    "accounts of images": _Sign(
        _code(rb"\A(?:CREATE\s+USER|GRANT)\s(?s:.{0,60000})`(?:root`@`localhost"
              rb"|mysql(?:\.[a-z]{1,20})?`@`localhost|mariadb\.sys`@`localhost|lab`@`[^`]{1,255})`"),
        None, None,
        "accounts that images have (root@localhost, lab, and the server's own)",
        "others are loaded",
        "they stay as they are: these statements are left out", left_out=True, commented=True,
        where="",
    ),
    "native passwords": _Sign(
        _code(rb"\A(?:CREATE|ALTER)\s+USER\b[^;]*\bIDENTIFIED\s+WITH\s+'?mysql_native_password\b"),
        _ANY, _ANY,
        "accounts with mysql_native_password",
        "dump without accounts; create them in a file of --sql",
        refusal="which {named} does not have",
        commented=True, gaps={"mysql": ((8, 4), (1000,))},
        where="",
    ),
    "plugins of MariaDB": _Sign(
        _code(rb"\A(?:CREATE|ALTER)\s+(?:OR\s+REPLACE\s+)?USER\b[^;]*\bIDENTIFIED\s+VIA\b"),
        _ANY, None,
        "accounts with IDENTIFIED VIA",
        "dump without accounts; create them in a file of --sql",
        where="",
    ),
}  # fmt: skip
"""What ``suits`` looks for, by name."""

_PARENTHESIS = re.compile(rb"[()]")
_UNREAD = re.compile(
    rb"'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|`[^`]*(?:`|\Z)"
    rb"|--(?=[\x00-\x20]|\Z)[^\n]*|#[^\n]*"
    rb"|/\*(?!M?!)(?:[^*]|\*(?!/))*(?:\*/|\*?\Z)"
    rb"|/\*!(?:507\d\d|50[89]\d\d|5[1-9]\d{3}|[6-9]\d{4})(?!\d)(?:[^*]|\*(?!/))*(?:\*/|\*?\Z)",
    re.DOTALL,
)
"""Strings, names, comments, and what MariaDB takes for comments: of MySQL 5.7 and later."""


def code(text: bytes, names: bool = True) -> bytes:
    """``text`` with blanks for what is in strings and comments, and, without ``names``, in those.

    What remains is where it was.
    """

    def blank(match: re.Match[bytes]) -> bytes:
        found = match[0]
        if found[:1] not in b"'\"`":
            return b" " * len(found)
        if found[:1] == b"`" and names:
            return found
        return found[:1] + b" " * (len(found) - 2) + found[:1] * (len(found) > 1)

    return _UNREAD.sub(blank, text)


def _columns_end(text: bytes) -> int:
    """Where the list of the columns of a table ends, in ``code`` without names."""
    depth = 0
    for match in _PARENTHESIS.finditer(text):
        depth += 1 if match[0] == b"(" else -1
        if depth <= 0:
            return match.end()
    return len(text)


def signs_of(schema: bytes) -> set[str]:
    """The keys of ``SIGNS`` that a statement of a schema has, outside of strings and comments."""
    seen = cache(code)
    text = schema[:HEAD]
    return {key for key, one in SIGNS.items() if one.pattern.search(one.read(text, seen))}


@dataclass(frozen=True)
class Misfit:
    """A reason why a dump may not load as it is."""

    what: str
    hint: str = ""
    fatal: bool = False
    """Whether the load fails at it for certain."""


def suits(found: Found, engine: str, version: str) -> tuple[Misfit, ...]:
    """Why a dump may not load into a server, what fails for certain first; empty if it suits.

    ``engine``: of an image, such as ``mariadb`` or ``percona-xtradb-cluster``; ``version``:
    the server's, such as ``10.11.6``.
    """
    target = family_of(engine).dialect
    ours, theirs = numbers(version), numbers(found.version)
    named = f"{_title(target)} {short(version)}".strip()
    reasons = []
    for key in sorted(found.signs):
        sign = SIGNS[key]
        if sign.is_unknown(target, ours):
            how = sign.consequence(named, target, ours)
            what = f"the dump has {sign.what}, {how} ({counted(found.signs[key], 'statement')})"
            reasons.append(Misfit(what, sign.hint, fatal=sign.is_refused))
            if key in found.long and sign.is_changed:
                reasons.append(
                    Misfit(
                        f"the dump has {sign.what} in a statement of {HEAD >> 10} KiB or more,"
                        " which is not changed",
                        "change it in a copy of the dump, or leave its table out and create it in"
                        " a file of --sql",
                        fatal=True,
                    )
                )
    if found.functions:
        reasons.append(
            Misfit(
                f"the dump has loadable functions: {', '.join(found.functions[:_NAMED])}"
                f"{' and more' if len(found.functions) > _NAMED else ''}; no image has their"
                " libraries: the server refuses CREATE FUNCTION ... SONAME (error 1126), and"
                " ignores rows of mysql.func. Leave them out of the dump, or replace them by"
                " stored functions",
            )
        )
    if found.dialect and found.dialect != target:
        reasons.append(
            Misfit(
                f"the dump is of {f'{_title(found.dialect)} {short(found.version)}'.strip()},"
                f" the server is {named}",
                "accounts, and SQL in views, routines and triggers may differ",
            )
        )
    elif found.dialect and ours and theirs[:2] > ours[:2]:
        reasons.append(
            Misfit(
                f"the dump is of {_title(found.dialect)} {short(found.version)},"
                f" which is newer than the server, {named}",
                "choose an image of that version, or a later one",
            )
        )
    return tuple(sorted(reasons, key=lambda one: not one.fatal))


def _title(dialect: DialectName) -> str:
    return family_of(dialect).title


def short(version: str) -> str:
    """``10.11.6`` of ``10.11.6-MariaDB``."""
    return ".".join(map(str, numbers(version)))
