"""What is in a dump: the program and server that wrote it, its databases, whether it is complete.

The lines are those that mysqldump, mariadb-dump (client/mysqldump.c, ``write_header`` and
``write_footer``) and mydumper write::

    -- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)
    -- MariaDB dump 10.19-11.4.2-MariaDB, for Linux (x86_64)
    -- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
    -- Host: localhost    Database: shop
    -- Server version	10.11.6-MariaDB-0+deb12u1
    -- Dump completed on 2026-11-20 12:00:00
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lab.datasets.dump import Statement, statements
from lab.errors import InvalidSpec
from lab.units import MIB

Family = Literal["", "mariadb", "mysql"]
"""Whose SQL it is; empty: unknown. Percona's servers are of MySQL's."""

HEAD = 64 << 10
"""Bytes at a dump's start in which its header is."""
TAIL = 4 << 10
"""Bytes at its end in which its last line is."""


@dataclass(frozen=True)
class Found:
    """What a dump, or the part of it that was read, says about itself."""

    program: str = ""
    """``mariadb-dump``, ``mysqldump``; empty: unknown."""
    family: Family = ""
    version: str = ""
    """Of the server that it was dumped from, else of the program: ``10.11.6-MariaDB``."""
    databases: tuple[str, ...] = ()
    """Those that it creates or uses, in order."""
    named: str = ""
    """The database in its header, which a dump of one database does not create."""
    complete: bool | None = None
    """Whether its last line is there; None: its program writes none, or it was not read."""
    tables: int = 0
    """CREATE TABLE statements, without the stand-ins for views."""
    statements: int = 0
    size: int = 0
    """Bytes, decompressed."""
    signs: frozenset[str] = frozenset()
    """The keys of what ``suits`` knows that its schema has."""


_PROGRAM = re.compile(
    rb"^(?:/\*M!999999[^\n]*\n)?-- (MariaDB|MySQL) dump [\d.]+(?:-|\s+Distrib )([^,\s]+)",
    re.MULTILINE,
)
_SERVER = re.compile(rb"^-- Server version[ \t]+(\S+)", re.MULTILINE)
_DATABASE = re.compile(rb"^-- Host: .*?[ \t]+Database: ([^\r\n]*)", re.MULTILINE)
_COMPLETED = re.compile(rb"^-- Dump completed(?: on [^\n]*)?\s*\Z", re.MULTILINE)


def header(head: bytes) -> Found:
    """What the first ``HEAD`` bytes of a dump, decompressed, say about the rest."""
    head = head[:HEAD]
    program, server = _PROGRAM.search(head), _SERVER.search(head)
    written = (server[1] if server else program[2] if program else b"").decode(errors="replace")
    family: Family = ""
    if program or server:
        is_mariadb = b"mariadb" in (server[1] if server else program[1] if program else b"").lower()
        family = "mariadb" if is_mariadb else "mysql"
    named = _DATABASE.search(head)
    return Found(
        program={b"MariaDB": "mariadb-dump", b"MySQL": "mysqldump"}[program[1]] if program else "",
        family=family,
        version=written,
        named=named[1].strip().decode(errors="replace") if named else "",
    )


def completed(tail: bytes) -> bool:
    """Whether a dump whose last bytes (``TAIL`` are enough) these are has its last line."""
    return bool(_COMPLETED.search(tail[-TAIL:]))


def truncated(found: Found, name: str) -> InvalidSpec | None:
    """The error about a dump that lacks its last line; None if it is whole as far as is known."""
    if found.complete is not False:
        return None
    return InvalidSpec(
        f"{name} is truncated: the last line of {found.program}, `-- Dump completed`, is missing",
        hint="copy the file again, or repeat the dump",
    )


_COMMENT = rb"(?:/\*M?!\d*\s*)?"
_NAME = rb"(?:`((?:[^`]|``)+)`|([\w$]+))"
_CREATE_DATABASE = re.compile(
    _COMMENT + rb"CREATE\s+(?:DATABASE|SCHEMA)\s+" + rb"(?:/\*M?!\d*\s*)?(?:IF\s+NOT\s+EXISTS\s*)?"
    rb"(?:\*/\s*)?" + _NAME,
    re.IGNORECASE,
)
_USE = re.compile(rb"USE\s+" + _NAME, re.IGNORECASE)
_CREATE_TABLE = re.compile(rb"CREATE\s+TABLE\b", re.IGNORECASE)
_DATA = re.compile(rb"(?:INSERT|REPLACE)\b", re.IGNORECASE)
_SCHEMA_PART = 4 * MIB
"""Bytes of a statement in which signs are looked for."""


def survey(data: Iterable[bytes], name: str = "the dump") -> Found:
    """All that can be known of a dump: reads ``data``, decompressed, to its end, at full speed.

    Raises InvalidSpec as ``statements`` does.
    """
    head, tail, size = bytearray(), b"", 0

    def passing() -> Iterator[bytes]:
        nonlocal tail, size
        for chunk in data:
            if len(head) < HEAD:
                head.extend(chunk[: HEAD - len(head)])
            tail = (tail + chunk[-TAIL:])[-TAIL:]
            size += len(chunk)
            yield chunk

    number, tables = 0, 0
    databases: dict[str, None] = {}
    signs: set[str] = set()
    for statement in statements(passing(), name):
        number = statement.number
        if _DATA.match(statement.text):
            continue
        if database := database_of(statement):
            databases[database] = None
        tables += bool(_CREATE_TABLE.match(statement.text))
        signs |= signs_of(statement.text)
    found = header(bytes(head))
    return Found(
        program=found.program,
        family=found.family,
        version=found.version,
        databases=tuple(databases),
        named=found.named,
        complete=completed(tail) if found.program else None,
        tables=tables,
        statements=number,
        size=size,
        signs=frozenset(signs),
    )


def database_of(statement: Statement) -> str:
    """The database that a statement creates or uses; empty if it does neither."""
    match = _CREATE_DATABASE.match(statement.text) or _USE.match(statement.text)
    if not match:
        return ""
    return (match[1] or match[2]).replace(b"``", b"`").decode(errors="replace")


@dataclass(frozen=True)
class _Sign:
    """Something in a schema that not every server understands.

    ``mariadb``, ``mysql``: the first version that does; None: no version.
    """

    pattern: re.Pattern[bytes]
    mariadb: tuple[int, ...] | None
    mysql: tuple[int, ...] | None
    breaks: str
    hint: str
    fatal: bool = True


_ANY = (0,)


def _code(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.IGNORECASE)


SIGNS: dict[str, _Sign] = {
    # MariaDB knows the names as aliases of its own from 11.4.5 on (MDEV-20912).
    "utf8mb4_0900": _Sign(
        _code(rb"\butf8mb4_[a-z_]*0900_\w+"), (11, 4, 5), (8, 0, 1),
        "collations utf8mb4_0900_*: unknown collation",
        "sed 's/utf8mb4_0900_ai_ci/utf8mb4_unicode_ci/g' changes the dump",
    ),
    "uca1400": _Sign(
        _code(rb"\b(?:\w+_)?uca1400_\w+"), (10, 10), None,
        "collations uca1400_*: unknown collation",
        "sed 's/utf8mb4_uca1400_ai_ci/utf8mb4_unicode_ci/g' changes the dump",
    ),
    "system versioning": _Sign(
        _code(rb"\bWITH\s+SYSTEM\s+VERSIONING\b"), (10, 3), None,
        "tables WITH SYSTEM VERSIONING: a syntax error",
        "drop the versioning of these tables in a copy, and dump that",
    ),
    "sequences": _Sign(
        _code(rb"\ACREATE\s+(?:OR\s+REPLACE\s+)?SEQUENCE\b"), (10, 3), None,
        "sequences: a syntax error",
        "replace them by AUTO_INCREMENT, and leave them out of the dump",
    ),
    "gtid_purged": _Sign(
        _code(rb"@@GLOBAL\.GTID_PURGED"), None, (5, 6),
        "SET @@GLOBAL.GTID_PURGED: unknown system variable",
        "dump with --set-gtid-purged=OFF",
    ),
    "expression index": _Sign(
        _code(rb"\bKEY\s+`[^`]+`\s*\(\s*\("), None, (8, 0, 13),
        "indexes on expressions: a syntax error",
        "replace them by indexes on generated columns",
    ),
    "uuid or inet types": _Sign(
        _code(rb"(?m:^)\s*`[^`]+`\s+(?:uuid|inet4|inet6)\b"), (10, 7), None,
        "columns of the types uuid, inet4 and inet6: a syntax error",
        "convert them to binary(16) or char(36) in a copy, and dump that",
    ),
    "Aria": _Sign(
        _code(rb"\bENGINE\s*=\s*Aria\b"), _ANY, None,
        "tables of the engine Aria: unknown storage engine",
        "convert them to InnoDB: ALTER TABLE ... ENGINE=InnoDB",
    ),
    "JSON": _Sign(
        _code(rb"(?m:^)\s*`[^`]+`\s+json\b"), None, (5, 7, 8),
        "columns of the type JSON become LONGTEXT: they keep the text as it was written,"
        " compare as texts, and the operators -> and ->> are syntax errors",
        "test the queries that read them",
        fatal=False,
    ),
}  # fmt: skip
"""What ``suits`` looks for, by name."""


def signs_of(schema: bytes) -> set[str]:
    """The keys of ``SIGNS`` that a statement of a schema has."""
    part = schema[:_SCHEMA_PART]
    return {key for key, sign in SIGNS.items() if sign.pattern.search(part)}


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
    target: Family = "mariadb" if "mariadb" in engine.lower() else "mysql"
    ours, theirs = numbers(version), numbers(found.version)
    named = f"{_FAMILIES[target]} {short(version)}".strip()
    reasons = []
    for key in sorted(found.signs):
        sign = SIGNS[key]
        since = sign.mariadb if target == "mariadb" else sign.mysql
        if since is None or (ours and ours < since):
            what = f"the dump has {sign.breaks} in {named}"
            reasons.append(Misfit(what, sign.hint, sign.fatal))
    if found.family and found.family != target:
        reasons.append(
            Misfit(
                f"the dump is of {_FAMILIES[found.family]} {short(found.version)},"
                f" the server is {named}",
                "accounts, and SQL in views, routines and triggers may differ",
            )
        )
    elif found.family and ours and theirs[:2] > ours[:2]:
        reasons.append(
            Misfit(
                f"the dump is of {_FAMILIES[found.family]} {short(found.version)},"
                f" which is newer than the server, {named}",
                "choose an image of that version, or a later one",
            )
        )
    return tuple(sorted(reasons, key=lambda one: not one.fatal))


_FAMILIES: dict[Family, str] = {"": "an unknown server", "mariadb": "MariaDB", "mysql": "MySQL"}


def numbers(version: str) -> tuple[int, ...]:
    """``10.11.6-MariaDB`` as (10, 11, 6); empty if it does not begin so."""
    # Replicas of old clients have 5.5.5- before MariaDB's own version.
    match = re.match(r"(?:5\.5\.5-)?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", version)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def short(version: str) -> str:
    """``10.11.6`` of ``10.11.6-MariaDB``."""
    return ".".join(map(str, numbers(version)))
