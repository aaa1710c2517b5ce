"""Pieces: the files, or outputs of a program, whose SQL one after the other is a source's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from lab.datasets.dump import chunks
from lab.errors import InvalidSpec
from lab.units import MIB
from lab.values import dataclass

SMALL = 64 * MIB
"""Bytes of a file without rows, at most: it is read at once."""


@dataclass(frozen=True)
class Piece:
    """SQL of a file."""

    name: str
    data: Iterator[bytes]
    before: bytes = b""
    """Lines of SQL that are not of the file, and not blamed on it."""
    database: str = ""
    """The one that these create or use."""
    lines: int = 0
    """Lines of the file that precede the piece."""
    statements: int = 0
    """Statements of the file that precede the piece."""
    notes: tuple[str, ...] = ()
    """What of the file is not loaded as it is."""


Signature = tuple[int, int, int]
"""By which a file is known to be as it was: its number, its size, the time of its last change."""


def signature(found: os.stat_result) -> Signature:
    """Of a file."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> InvalidSpec:
    """The error about a file that is not what it was."""
    return InvalidSpec(
        f"{path} changed while it was read", hint="wait until it is written, then repeat this"
    )


Read = Callable[[Iterable[bytes], str], Iterator[bytes]]
"""How the bytes of a file are read: ``plain``, ``sql`` or ``as_it_is``; the text is its name."""


def as_it_is(data: Iterable[bytes], name: str) -> Iterator[bytes]:  # noqa: ARG001  # a Read
    """Pass on ``data``, whatever it begins with."""
    return iter(data)


def content(path: Path, read: Read = as_it_is) -> Generator[bytes, None, None]:
    """What is in a file; raises InvalidSpec, also if it changed meanwhile.

    Who may stop before its end closes it, and with it the file.
    """
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            yield from read(chunks(file), str(path))
            if stat.S_ISREG(before.st_mode) and signature(path.stat()) != signature(before):
                raise changed(path)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error


def small(path: Path, read: Read = as_it_is) -> bytes:
    """The whole content of a file without rows; raises InvalidSpec."""
    found = bytearray()
    with closing(content(path, read)) as data:
        for chunk in data:
            found += chunk
            if len(found) > SMALL:
                raise InvalidSpec(f"{path} has no rows, and yet more than {SMALL // MIB} MiB")
    return bytes(found)


def quoted(name: str) -> str:
    """A name in backticks."""
    return f"`{name.replace('`', '``')}`"
