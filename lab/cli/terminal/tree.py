"""The snapshots of a lab as a tree: what descends from what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from lab.cli.terminal.show import left
from lab.cli.terminal.table import has_unicode
from lab.lifecycle.core.views import SnapshotView, descent
from lab.units import format_size

_Line = tuple[int, str]
"""Depth and text of a line."""


def tree_text(views: Sequence[SnapshotView], now: float, stream: TextIO) -> str:
    """A line for each snapshot below what it descends from; branches are below theirs."""
    lines: list[_Line] = []
    found = descent(views)
    below = 0
    if found and (source := _source(found[0][1].parent)):
        lines.append((0, source))
        below = 1
    for depth, view in found:
        lines.append((below + depth, _text(view, now)))
        lines += [(below + depth + 1, f"-> lab {name}") for name in view.branches]
    return _drawn(lines, unicode=has_unicode(stream))


def _source(parent: str) -> str:
    """What a lab was cloned from, as ``template KEY`` or ``shop@LABEL``."""
    owner, _, label = parent.partition("@")
    kind, _, name = owner.partition(":")
    return f"template {name}" if kind == "template" else name and f"{name}@{label}"


def _text(view: SnapshotView, now: float) -> str:
    facts = [
        view.label,
        format_size(view.ram) if view.warm else "",
        "protected" if view.protected else "",
        f"expires in {left(view.expires_at, now)}" if view.expires_at is not None else "",
        "* you are here" if view.current else "",
    ]
    return "  ".join(filter(None, facts))


def _drawn(lines: Sequence[_Line], *, unicode: bool) -> str:
    """The lines, joined to the ones that they are below."""
    branch, corner, rail = ("├─ ", "└─ ", "│  ") if unicode else ("|- ", "`- ", "|  ")
    drawn: list[str] = []
    continues: set[int] = set()  # depths at which another line follows, read from below
    for depth, text in reversed(lines):
        continues = {one for one in continues if one <= depth}
        rails = "".join(rail if one in continues else "   " for one in range(1, depth))
        joint = (branch if depth in continues else corner) if depth else ""
        drawn.append(f"{rails}{joint}{text}\n")
        continues.add(depth)
    return "".join(reversed(drawn))
