"""The roles of nodes and whom they follow: as they say now, said once, or were made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lab.blueprints import Known, Link, has_server
from lab.errors import LabError
from lab.lifecycle.nodes.connection import elects, follows, links_of
from lab.observe.round import Observation, Observed
from lab.state.records import LabWithNodes, NodeRecord
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.state.store import Store

LAST_KNOWN: Known = "last known"


@dataclass(frozen=True)
class Standing:
    """How the nodes of a lab stand to each other."""

    roles: Mapping[str, tuple[str, Known]]
    """The roles of nodes by name, each with how it is known."""
    links: tuple[Link, ...]
    seen: Mapping[str, Mapping[str, Any]]
    """What to note of each node, by name."""


def roles_of(found: LabWithNodes, observed: Observation | None) -> Standing:
    """How the nodes of a lab stand; ``observed``: what was seen of it just now."""
    seen_now = observed.nodes if observed else {}
    roles = _roles(found, seen_now)
    nodes = [replace(node, role=roles[node.name][0]) for node in found.nodes]
    links: list[Link] = []
    planned = links_of(found.lab, nodes)
    kinds = {link.replica: link.kind for link in planned}
    for node in found.nodes:
        if not follows(found.lab, node):
            continue
        sources = seen_now[node.name].sources if node.name in seen_now else None
        noted = node.seen.get("sources")
        if sources is not None:
            links += [Link(one, node.name, kinds.get(node.name, "")) for one in sources]
        elif noted is not None:
            kind = kinds.get(node.name, "")
            links += [Link(one, node.name, kind, LAST_KNOWN) for one in noted]
        else:
            links += [replace(one, known="planned") for one in planned if one.replica == node.name]
    return Standing(roles, tuple(links), _to_note(found, seen_now, roles))


def remember(store: Store, found: LabWithNodes, observed: Observation) -> None:
    """Note what was observed, for views of when nodes do not answer any more.

    Views are shown also if that cannot be noted: the disk may be full. Nothing is noted if the lab
    was removed meanwhile: another one may have its name.
    """
    lab, standing = found.lab, roles_of(found, observed)
    new = {
        node.name: note
        for node in found.nodes
        if (note := standing.seen.get(node.name)) and note != node.seen
    }
    if not new:
        return
    with suppress(LabError), store.transaction():
        now = store.labs.find(lab.name)
        if now is not None and now.created_at == lab.created_at:
            for node, note in new.items():
                store.nodes.update(lab.name, node, seen=note)


def _roles(found: LabWithNodes, there: Mapping[str, Observed]) -> dict[str, tuple[str, Known]]:
    """The role of each node, and how it is known; one that is silent does not write.

    Not while another one does; else it has the role that it had when it was last asked, and the one
    that all others follow is the one that took writes.
    """
    if not elects(found.lab):
        return {node.name: (node.role, "") for node in found.nodes}
    plan = found.lab.plan
    elected = {name: seen.role for name, seen in there.items() if seen.role}
    writers = {name for name, role in elected.items() if role in plan.writers}
    followed = {one for seen in there.values() for one in seen.sources or ()}
    last = followed - set(elected) if not writers and len(followed) == 1 else set()

    def role(node: NodeRecord) -> tuple[str, Known]:
        if node.name in elected:
            return elected[node.name], ""
        if not has_server(node.services):
            return node.role, ""  # a proxy stays one
        noted = str(node.seen.get("role", ""))
        if node.name in last:
            return next(iter(plan.writers)), LAST_KNOWN
        other = plan.role(node.role, {})
        if writers or last:
            kept = noted if noted and noted not in plan.writers else other
            return kept, LAST_KNOWN
        return (noted, LAST_KNOWN) if noted else (node.role, "planned")

    return {node.name: role(node) for node in found.nodes}


def _to_note(
    found: LabWithNodes,
    there: Mapping[str, Observed],
    roles: Mapping[str, tuple[str, Known]],
) -> dict[str, Mapping[str, Any]]:
    """What is to be remembered of nodes: of one that is silent, only that it does not write."""
    if not (elects(found.lab) or any(follows(found.lab, node) for node in found.nodes)):
        return {}
    notes: dict[str, Mapping[str, Any]] = {}
    for node in found.nodes:
        role, known = roles[node.name]
        seen = there.get(node.name)
        note = dict(node.seen)
        if known != "planned" and elects(found.lab):
            note["role"] = role
        if seen is not None and seen.sources is not None:
            note["sources"] = list(seen.sources)
        if note:
            notes[node.name] = note
    return notes
