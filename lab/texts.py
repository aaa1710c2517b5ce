"""Texts: those that users write, as their editors save them, and those that a terminal shows.

Editors save UTF-8, or UTF-16 with a byte order mark.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from lab.errors import InvalidSpec
from lab.units import format_size

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def without_mark(content: bytes) -> bytes:
    """``content`` without the byte order mark of UTF-8 that some editors begin a file with."""
    return content.removeprefix(codecs.BOM_UTF8)


def decoded(content: bytes) -> str:
    """The text in ``content``, without its mark; raises UnicodeDecodeError."""
    return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig")


def read(path: Path, limit: int) -> str:
    """The text of a file of at most ``limit`` bytes; raises InvalidSpec."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise InvalidSpec(f"{path} has more than {format_size(limit)}")
    try:
        return decoded(content)
    except UnicodeDecodeError:
        raise InvalidSpec(
            f"{path} is not a text in UTF-8", hint="save it as UTF-8: iconv -t UTF-8 converts it"
        ) from None


def harmless(text: str) -> str:
    """``text`` with control characters but tabs and ends of lines as escapes.

    What guests, servers and dumps say must not control the terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def printable(cell: str) -> str:
    """Text for a terminal as one line: line breaks are shown as escapes, too."""
    if cell.isprintable():
        return cell
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in cell
    )
