"""Trees: what the snapshots of a lab descend from, and who replicates from whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from lab.blueprints import gtid
from lab.cli.terminal.show import left
from lab.cli.terminal.table import has_unicode
from lab.units import counted, format_size
from lab.views.labs import LabView, NodeView
from lab.views.snapshots import SnapshotView
from lab.views.tree import Place, descent, topology

_POSITION = 80
"""Characters of a node's position that a line has."""
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


def topology_text(view: LabView, stream: TextIO) -> str:
    """A line for each node, below what it replicates from, with what it has executed.

    Empty if there is nothing of that: one node, or nodes whose servers cannot be asked.
    """
    if len(view.nodes) < 2 or not (view.links or any(node.position for node in view.nodes)):
        return ""
    nodes = {node.name: node for node in view.nodes}
    proxies = {name for name, node in nodes.items() if node.is_proxy}
    lines = [(0, view.blueprint)]
    lines += [(1, _place_text(Place(0, name), nodes[name])) for name in sorted(proxies)]
    below = 2 if proxies else 1  # what a proxy is in front of
    lines += [
        (place.depth + below, _place_text(place, nodes[place.name]))
        for place in topology([name for name in nodes if name not in proxies], view.links)
    ]
    return _drawn(lines, unicode=has_unicode(stream))


def _place_text(place: Place, node: NodeView) -> str:
    link = place.link
    kinds = (link.kind, link.known and f"its source is {link.known}") if link else ()
    facts = [node.name, ", ".join(filter(None, (node.shown_role, *kinds)))]
    facts.append(node.state if node.is_silent else "")
    if not place.again:
        facts.append(gtid.shown(node.position, _POSITION))
        facts.append(_behind_text(node.behind))
    return "  ".join(filter(None, facts))


def _behind_text(behind: int | None) -> str:
    if not behind:
        return ""
    return f"{counted(behind, 'transaction')} behind"


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
