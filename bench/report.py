"""Results as text, as docs/benchmarks.md, and as JSON. Nothing here measures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.figures import Figure, Results, Target

HEAD = ("figure", "median", "min", "max", "runs", "reach", "", "stretch", "")
TITLES = {
    "labs": "Labs",
    "captures": "Captures",
    "resets": "Resets",
    "asleep": "Labs that sleep",
    "datasets": "Datasets",
    "topologies": "Topologies",
    "engines": "Engines",
    "mysql": "Data of MySQL",
    "mysql-labs": "Labs with data of MySQL",
    "upgrades": "Upgrades",
    "growth": "Growth",
    "readers": "Readers",
    "fleet": "Fleets",
}
"""The parts of the benchmark, and their sections of the page."""
_MACHINE = "The machine"
OF_RUN = ("commit", "engine", "load average before")
PARTS_HEAD = ("part", "median", "min", "max")
START_UP = """\
`start-up` is what no step accounts for: starting Python, importing, opening the record and the
connection to libvirt, printing."""


def text(results: Results) -> str:
    """For a terminal."""
    pieces = [
        _aligned([(name, value) for name, value in results.machine.items()]),
        _aligned([HEAD, *(_row(figure) for figure in results.figures)]),
    ]
    for kind, parts in results.parts.items():
        pieces.append(f"Where the time of a {kind} `lab up` goes:")
        pieces.append(_aligned([PARTS_HEAD, *_part_rows(parts)]))
    if results.failures:
        pieces.append("\n".join(["What failed:", *results.failures]))
    if results.caution:
        pieces.append(results.caution)
    return "\n\n".join(pieces) + "\n"


def page(preface: str, measured: Mapping[str, Results], old: str) -> str:
    """docs/benchmarks.md: ``preface``, the machine, and a section for each part.

    ``measured``: by the titles of parts; the sections of others are those of the ``old`` page.
    """
    sections = {found.partition("\n")[0]: found for found in old.split("\n## ")[1:]}
    for title, results in measured.items():
        sections[_MACHINE] = f"{_MACHINE}\n\n{_table([('', ''), *_facts(results, of_run=False)])}"
        sections[title] = f"{title}\n\n{_section(results)}"
    wanted = [sections[title] for title in (_MACHINE, *TITLES.values()) if title in sections]
    return "\n\n## ".join([preface.strip(), *(one.strip() for one in wanted)]) + "\n"


def _section(results: Results) -> str:
    # The table of the machine is that of the part that was measured last.
    facts = [*_facts(results, of_run=True), *_processors(results)]
    pieces = [
        f"Measured with {', '.join(f'{n} {v}' for n, v in facts)}.",
        *([results.caution] if results.caution else []),
        _table([HEAD, *(_row(figure) for figure in results.figures)]),
    ]
    if notes := [f"- {figure.name}: {figure.note}." for figure in results.figures if figure.note]:
        pieces += ["How they were taken:", "\n".join(notes)]
    for kind, parts in results.parts.items():
        pieces.append(f"### Where the time of a {kind} `lab up` goes")
        pieces.append(_table([PARTS_HEAD, *_part_rows(parts)]))
    if results.parts:
        pieces.append(START_UP)
    if results.failures:
        pieces += ["### What failed", "\n".join(f"- {line}" for line in results.failures)]
    return "\n\n".join(pieces)


def _facts(results: Results, *, of_run: bool) -> list[tuple[str, str]]:
    """The facts of the machine, or those that differ between two runs on it."""
    return [fact for fact in results.machine.items() if (fact[0] in OF_RUN) == of_run]


def _processors(results: Results) -> list[tuple[str, str]]:
    return [fact for fact in results.machine.items() if fact[0] == "processors"]


def as_json(measured: Mapping[str, Results]) -> str:
    """All of it, by the titles of parts, for programs."""
    found = {title: _plain(results) for title, results in measured.items()}
    return json.dumps(found, indent=2) + "\n"


def _plain(results: Results) -> dict[str, Any]:
    return {
        "machine": dict(results.machine),
        "figures": [
            {
                "name": figure.name,
                "unit": figure.unit,
                "median": figure.median,
                "samples": list(figure.samples),
                "failed": figure.failed,
                "reach": figure.target.reach,
                "reached": figure.reached,
                "stretch": figure.target.stretch,
                "stretched": figure.stretched,
                "note": figure.note,
            }
            for figure in results.figures
        ],
        "parts": {
            kind: {part: list(seconds) for part, seconds in parts.items()}
            for kind, parts in results.parts.items()
        },
        "failures": list(results.failures),
        "caution": results.caution,
    }


def number(value: float, unit: str) -> str:
    """``value`` with as many digits as mean something: 1.93 s, 104 s, 271 MB, 32x, 1.07x."""
    if unit == "x":
        return f"{value:.0f}x" if value >= 10 else f"{value:.2f}x"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def _row(figure: Figure) -> tuple[str, ...]:
    unit = figure.unit
    if not figure.samples:
        figures: tuple[str, ...] = ("-", "-", "-")
    elif len(figure.samples) == 1:
        figures = (number(figure.samples[0], unit), "", "")
    else:
        values = (statistics.median(figure.samples), min(figure.samples), max(figure.samples))
        figures = tuple(number(value, unit) for value in values)
    failed = f", {figure.failed} failed" if figure.failed else ""
    return (
        figure.name,
        *figures,
        f"{len(figure.samples)}{failed}",
        "all" if figure.target.no_failure else _goal(figure.target, figure.target.reach, unit),
        figure.reached,
        _goal(figure.target, figure.target.stretch, unit),
        figure.stretched,
    )


def _goal(target: Target, goal: float | None, unit: str) -> str:
    if goal is None:
        return "-"
    sign = "≥" if target.at_least else "≤"
    return f"{sign} {goal:g}x" if unit == "x" else f"{sign} {goal:g} {unit}"


def _part_rows(parts: Mapping[str, Sequence[float]]) -> list[tuple[str, ...]]:
    return [
        (part, *(f"{value:.3f} s" for value in (statistics.median(s), min(s), max(s))))
        for part, s in parts.items()
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    line = "|" + "---|" * len(head)
    return "\n".join([_line(head), line, *(_line(row) for row in rest)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
