"""Statements that read: a file of them says which data labs of a dataset have in memory."""

from __future__ import annotations

import re
from pathlib import Path

from lab import texts
from lab.datasets.dump import Statement, statements
from lab.errors import InvalidSpec
from lab.values import dataclass

NAME = "the queries of the dataset"
SIZE_LIMIT = 64 << 10
"""Bytes of such a file, at most."""
_READS = re.compile(rb"\(*\s*(SELECT|WITH|TABLE|VALUES|CHECKSUM|USE)\b", re.IGNORECASE)
_WRITES = re.compile(rb"\bINTO\s+(OUTFILE|DUMPFILE)\b", re.IGNORECASE)
_SELECTS = re.compile(rb"\(*\s*(SELECT|WITH)\b", re.IGNORECASE)
_USES = re.compile(rb"USE\b", re.IGNORECASE)
_ERROR = re.compile(r"^ERROR (\d+ \(\w+\)) at line (\d{1,9})(.*)", re.MULTILINE)


def read(path: Path) -> str:
    """The content of a file of queries; raises InvalidSpec unless all of it reads."""
    return check(texts.read(path, SIZE_LIMIT), str(path))


def check(content: str, name: str = NAME) -> str:
    """Return ``content``; raises InvalidSpec unless it has statements, all of which only read."""
    text = content.encode()
    if len(text) > SIZE_LIMIT:
        raise InvalidSpec(f"{name} has more than {SIZE_LIMIT >> 10} KiB")
    found = list(statements(iter([text]), name))
    if not found:
        raise InvalidSpec(f"{name} has no statement")
    for one in found:
        if not _READS.match(one.text) or _WRITES.search(one.text):
            raise InvalidSpec(
                f"{name}: {_place(text, one)} does not only read",
                hint="accepted: SELECT, WITH, TABLE, VALUES, CHECKSUM TABLE and USE",
            )
    return content


@dataclass(frozen=True)
class Query:
    """A statement of a file that selects."""

    number: int
    """Of the statements of the file, from 1."""
    text: str
    using: tuple[str, ...]
    """The statement that chooses its default database, if one does."""


def selects(content: str, name: str, *, most: int) -> list[Query]:
    """What a file selects; raises InvalidSpec unless it has SELECT and USE only, ``most`` of all.

    WITH may begin a statement that writes: a server executes these in a read-only transaction.
    """
    text = check(content, name).encode()
    found, using = list[Query](), tuple[str, ...]()
    for one in statements(iter([text]), name):
        if _USES.match(one.text):
            using = (one.text.decode(),)
        elif _SELECTS.match(one.text):
            found.append(Query(one.number, one.text.decode(), using))
        else:
            raise InvalidSpec(
                f"{name}: {_place(text, one)} is no SELECT", hint="accepted: SELECT, WITH and USE"
            )
    if not 0 < len(found) <= most:
        raise InvalidSpec(f"{name} has {len(found)} statements that select, not 1 to {most}")
    return found


def refused(text: str, message: str, name: str = NAME) -> InvalidSpec:
    """The error for queries of which the server refused one, by the ``message`` of the client."""
    match = _ERROR.search(message)
    if match is None:
        return InvalidSpec(f"{name}: the server refused it", details=message.splitlines()[-5:])
    data, line = text.encode(), int(match[2])
    found = list(statements(iter([data]), name))
    here = [one for one in found if _line(data, one) <= line] or found[:1]
    return InvalidSpec(
        f"{name}: {_place(data, here[-1])}: the server refused it",
        details=[f"ERROR {match[1]}{match[3]}"],
    )


def _place(text: bytes, one: Statement) -> str:
    return f"statement {one.number}, at line {_line(text, one)}"


def _line(text: bytes, one: Statement) -> int:
    return text.count(b"\n", 0, one.offset) + 1
