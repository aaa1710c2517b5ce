"""Bars as SVG, and pages with them, written by hand: readable without a program of ours."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _BAR, _GAP, _TOP = 760, 240, 22, 10, 64
_STYLE = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}"
_PLACE = _WIDTH - _LEFT - 110


def bars(
    title: str, unit: str, values: Sequence[tuple[str, float]], notes: Sequence[str] = ()
) -> str:
    """Horizontal bars, a line each, with their values; ``notes`` are lines below.

    ``values``: names with figures of ``unit``, none of them negative.
    """
    most = max((value for _, value in values), default=0.0) or 1.0
    bottom = _TOP + len(values) * (_BAR + _GAP)
    height = bottom + 20 + 16 * len(notes)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="26" font-size="16">{escape(title)}</text>',
        f'<text x="16" y="46" fill="#555">{escape(unit)}</text>',
    ]
    for number, (name, value) in enumerate(values):
        y = _TOP + number * (_BAR + _GAP)
        width = round(_PLACE * max(value, 0.0) / most, 1)
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" fill="#4878a8"/>',
            f'<text x="{_LEFT + width + 6}" y="{y + 16}">{value:.2f}</text>',
        ]
    for number, note in enumerate(notes):
        lines.append(
            f'<text x="16" y="{bottom + 16 + 16 * number}" fill="#555">{escape(note)}</text>'
        )
    return "".join(f"{line}\n" for line in [*lines, "</svg>"])


def page(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    plot: str,
    notes: Sequence[str] = (),
) -> str:
    """A page in one file: a table, a plot as SVG, and notes."""

    def row(kind: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"

    lines = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<table><thead>{row('th', head)}</thead><tbody>",
        *(row("td", cells) for cells in rows),
        "</tbody></table>",
        plot.rstrip("\n"),
        *(f"<p>{escape(note)}</p>" for note in notes),
        "</body></html>",
    ]
    return "".join(f"{line}\n" for line in lines)
