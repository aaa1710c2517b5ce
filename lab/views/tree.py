"""Nodes and snapshots as trees: who replicates from whom, what descends from what."""

from __future__ import annotations

from collections.abc import Sequence

from lab.schedule import ORIGIN
from lab.values import dataclass
from lab.views.labs import Link
from lab.views.snapshots import SnapshotView


@dataclass(frozen=True)
class Place:
    """Where the node ``name`` is drawn. ``depth``: of what it replicates from, plus one.

    ``link``: to that, None if it replicates from none; ``again``: it has an earlier place, too.
    """

    depth: int
    name: str
    link: Link | None = None
    again: bool = False


def topology(nodes: Sequence[str], links: Sequence[Link]) -> list[Place]:
    """The nodes of a lab as a tree: each after what it replicates from; each link is there once.

    Nodes that replicate from none come at depth 0, of a ring the first node.
    """
    links = [link for link in links if link.source in nodes and link.replica in nodes]
    replicas = {link.replica for link in links}
    found: list[Place] = []
    seen: set[str] = set()

    def add(name: str, depth: int, link: Link | None) -> None:
        again = name in seen
        seen.add(name)
        found.append(Place(depth, name, link, again))
        for below in links if not again else ():
            if below.source == name:
                add(below.replica, depth + 1, below)

    for name in (*(name for name in nodes if name not in replicas), *nodes):
        if name not in seen:
            add(name, 0, None)
    return found


def descent(views: Sequence[SnapshotView]) -> list[tuple[int, SnapshotView]]:
    """The snapshots of a lab as a tree: each with its depth, after the one it descends from.

    All descend from the origin, also one whose parent was removed. Siblings stay in order.
    """
    known = {view.label: view for view in views}
    origin = known.get(ORIGIN)
    children: dict[str, list[SnapshotView]] = {}
    for view in views:
        label = view.parent.partition("@")[2]
        beyond = view is origin or (origin is not None and view.parent == origin.parent)
        if beyond or label not in known or label == view.label:
            label = ORIGIN if origin is not None and view is not origin else ""
        children.setdefault(label, []).append(view)
    found: list[tuple[int, SnapshotView]] = []

    def add(label: str, depth: int) -> None:
        for view in children.get(label, ()):
            found.append((depth, view))
            add(view.label, depth + 1)

    add("", 0)
    return found
