"""Bars as SVG and as PNG, and pages with them.

SVG and pages are written by hand: readable without a program of ours. PNG is for where neither is
shown, such as comments and chats, and needs Pillow, the extra ``plot``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import wrap
from xml.sax.saxutils import escape

from lab.distribution import extra
from lab.values import dataclass

_WIDTH, _LEFT, _BAR, _GAP, _TOP = 760, 240, 22, 10, 64
_SIZE, _GREY = 13, "#555"
_NOTE = 110
"""Characters of a line below the bars that fit into the width."""
_SCALE = 2
"""Pixels of a PNG for a unit of length, so that its text is sharp."""
_STYLE = (
    "body{font-family:sans-serif;margin:2em}table{margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left}"
)
_PLACE = _WIDTH - _LEFT - 110

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A head and rows."""


@dataclass(frozen=True)
class _Text:
    """A line of text on its baseline."""

    x: float
    y: int
    text: str
    size: int = _SIZE
    colour: str = "#000"
    left: bool = False
    """Whether it ends at ``x``; else it begins there."""


@dataclass(frozen=True)
class _Box:
    """A filled rectangle."""

    x: int
    y: int
    width: float
    height: int
    colour: str


def bars(
    title: str, unit: str, values: Sequence[tuple[str, float]], notes: Sequence[str] = ()
) -> str:
    """Horizontal bars as SVG, a line each, with their values; ``notes`` are lines below.

    ``values``: names with figures of ``unit``, none of them negative.
    """
    height, shapes = _drawn(title, unit, values, notes)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="{_SIZE}">'
        )
    ]
    for one in shapes:
        if isinstance(one, _Box):
            lines.append(
                f'<rect x="{one.x}" y="{one.y}" width="{one.width}" height="{one.height}"'
                f' fill="{one.colour}"/>'
            )
        else:
            anchor = ' text-anchor="end"' if one.left else ""
            size = f' font-size="{one.size}"' if one.size != _SIZE else ""
            lines.append(
                f'<text x="{one.x}" y="{one.y}"{anchor}{size} fill="{one.colour}">'
                f"{escape(one.text)}</text>"
            )
    return "".join(f"{line}\n" for line in [*lines, "</svg>"])


def need_png() -> None:
    """Raise HostUnfit if the package that writes PNG is not installed."""
    with extra("plot", "a plot as PNG"):
        import PIL.ImageFont  # noqa: F401


def bars_as_png(
    title: str, unit: str, values: Sequence[tuple[str, float]], notes: Sequence[str] = ()
) -> bytes:
    """The same as ``bars``, as PNG with twice the pixels; raises HostUnfit as ``need_png``.

    It is drawn rather than converted from the SVG: programs that convert leave texts out where the
    host has none of the fonts that they look for, without an error, and Pillow has one in it.
    """
    need_png()
    from PIL import Image, ImageDraw, ImageFont

    height, shapes = _drawn(title, unit, values, notes)
    image = Image.new("RGB", (_WIDTH * _SCALE, height * _SCALE))
    draw = ImageDraw.Draw(image)
    for one in shapes:
        x, y = one.x * _SCALE, one.y * _SCALE
        if isinstance(one, _Text):
            font = ImageFont.load_default(one.size * _SCALE)
            draw.text((x, y), one.text, one.colour, font, "rs" if one.left else "ls")
        elif one.width:  # Pillow draws both ends of a rectangle
            right, bottom = x + one.width * _SCALE - 1, y + one.height * _SCALE - 1
            draw.rectangle((x, y, max(x, right), bottom), one.colour)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _drawn(
    title: str, unit: str, values: Sequence[tuple[str, float]], notes: Sequence[str]
) -> tuple[int, list[_Box | _Text]]:
    """The height of a plot and what is in it, in the order of drawing."""
    most = max((value for _, value in values), default=0.0) or 1.0
    below = [line for note in notes for line in wrap(note, _NOTE)]
    bottom = _TOP + len(values) * (_BAR + _GAP)
    height = bottom + 20 + 16 * len(below)
    shapes: list[_Box | _Text] = [
        _Box(0, 0, _WIDTH, height, "#fff"),
        _Text(16, 26, title, size=16),
        _Text(16, 46, unit, colour=_GREY),
    ]
    for number, (name, value) in enumerate(values):
        y = _TOP + number * (_BAR + _GAP)
        width = round(_PLACE * max(value, 0.0) / most, 1)
        shapes += [
            _Text(_LEFT - 8, y + 16, name, left=True),
            _Box(_LEFT, y, width, _BAR, "#4878a8"),
            _Text(_LEFT + width + 6, y + 16, f"{value:.2f}"),
        ]
    for number, note in enumerate(below):
        shapes.append(_Text(16, bottom + 16 + 16 * number, note, colour=_GREY))
    return height, shapes


def page(title: str, tables: Sequence[Table], plot: str, notes: Sequence[str] = ()) -> str:
    """A page in one file: tables, a plot as SVG, and notes."""

    def row(kind: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"

    lines = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    for head, rows in tables:
        lines += [
            f"<table><thead>{row('th', head)}</thead><tbody>",
            *(row("td", cells) for cells in rows),
            "</tbody></table>",
        ]
    lines += [plot.rstrip("\n"), *(f"<p>{escape(note)}</p>" for note in notes), "</body></html>"]
    return "".join(f"{line}\n" for line in lines)
