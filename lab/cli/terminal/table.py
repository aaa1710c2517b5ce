"""Plain aligned text: the same on a terminal and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from lab.texts import printable


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Columns two spaces apart, no line ends in spaces; ``right``: columns of numbers."""
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            pad = " " * (width - _width(cell))
            cells.append(pad + cell if column in right else cell + pad)
        text.append("  ".join(cells).rstrip() + "\n")
    return "".join(text)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A name and a value a line, values aligned; pairs without a value are left out."""
    shown = [(name, printable(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in shown)


def tick(stream: TextIO) -> str:
    """A check mark, where ``stream`` can print one."""
    return "✓" if has_unicode(stream) else "+"


def cross(stream: TextIO) -> str:
    """The opposite of a check mark."""
    return "✗" if has_unicode(stream) else "x"


def has_unicode(stream: TextIO) -> bool:
    """Whether ``stream`` can print more than ASCII."""
    return (stream.encoding or "").lower().startswith("utf")


def _width(cell: str) -> int:
    if cell.isascii():
        return len(cell)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in cell
    )
