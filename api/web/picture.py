"""A lab as a picture: its nodes as boxes, who replicates from whom as arrows."""

from __future__ import annotations

from lab.blueprints import Link, gtid
from lab.values import dataclass
from lab.views.labs import Lab, NodeView
from lab.views.tree import topology

WIDE, HIGH = 190, 62
"""Of a box, in the units of the picture."""
_ACROSS, _DOWN, _EDGE = 110, 22, 14
_ROOM = 27
"""Characters of a line in a box."""
_CLUSTERED = ("member", "primary", "secondary")
"""Roles of nodes that are one cluster."""


@dataclass(frozen=True)
class Box:
    """A node; ``x`` and ``y`` of its upper left corner."""

    x: int
    y: int
    node: NodeView

    @property
    def role(self) -> str:
        """Its role, and how that is known where it was not observed."""
        return self.node.shown_role

    @property
    def position(self) -> str:
        """What it has executed, in as many characters as a box has room for."""
        return gtid.shown(self.node.position, _ROOM)


@dataclass(frozen=True)
class Arrow:
    """A link between two nodes, with its text."""

    path: str
    """The attribute ``d`` of SVG."""
    x: int
    """Where the text is, with ``y``."""
    y: int
    text: str
    known: str = ""
    """How it is known where it was not observed; else empty."""


@dataclass(frozen=True)
class Picture:
    """The nodes and links of a lab, as they are drawn."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    cluster: tuple[int, int, int, int] | None = None
    """x, y, width and height of the frame around its members, if there is one."""


def picture(lab: Lab) -> Picture:
    """The picture of a lab with nodes."""
    links = lab.links
    nodes = {node.name: node for node in lab.nodes}
    places = [place for place in topology(list(nodes), links) if not place.again]
    boxes: dict[str, Box] = {}
    row, before = 0, -1
    for place in places:
        row += place.depth <= before  # what is the first below another is beside it
        before = place.depth
        x = _EDGE + place.depth * (WIDE + _ACROSS)
        boxes[place.name] = Box(x, _EDGE + row * (HIGH + _DOWN), nodes[place.name])
    arrows = tuple(
        _arrow(boxes[link.source], boxes[link.replica], link)
        for link in links
        if link.source in boxes and link.replica in boxes
    )
    width = max(box.x for box in boxes.values()) + WIDE + _EDGE
    height = max(box.y for box in boxes.values()) + HIGH + _EDGE
    below = any(box.x <= boxes[link.source].x for link in links for box in [boxes[link.replica]])
    return Picture(
        width, height + (_DOWN + _EDGE) * below, tuple(boxes.values()), arrows, _frame(boxes)
    )


def _frame(boxes: dict[str, Box]) -> tuple[int, int, int, int] | None:
    inside = [box for box in boxes.values() if box.node.role in _CLUSTERED]
    if len(inside) < 2:
        return None
    half = _EDGE // 2
    left, top = min(box.x for box in inside) - half, min(box.y for box in inside) - half
    right, bottom = max(box.x for box in inside) + WIDE, max(box.y for box in inside) + HIGH
    return left, top, right + half - left, bottom + half - top


def _arrow(source: Box, replica: Box, link: Link) -> Arrow:
    behind = replica.node.behind
    text = ", ".join(filter(None, (link.kind, link.known, f"{behind} behind" if behind else "")))
    if replica.x > source.x:  # from the right side to the left
        x, y = source.x + WIDE, source.y + HIGH // 2
        to_x, to_y = replica.x, replica.y + HIGH // 2
        return Arrow(
            f"M{x} {y} L{to_x - 8} {to_y}", to_x - _ACROSS // 2, to_y - 8, text, link.known
        )
    # Back, as in a ring: from below one box to below the other.
    x, y = source.x + WIDE // 2, source.y + HIGH
    to_x, to_y = replica.x + WIDE // 2, replica.y + HIGH
    low = max(y, to_y) + _DOWN
    path = f"M{x} {y} L{x} {low} L{to_x} {low} L{to_x} {to_y + 8}"
    return Arrow(path, (x + to_x) // 2, low - 6, text, link.known)
