"""Views of labs: what is recorded, what exists, and the states of nodes now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lab import options
from lab.blueprints import Known, Link, Release, Service
from lab.config.profile import risks
from lab.config.settings import Settings
from lab.errors import Conflict, InvalidSpec, NotFound
from lab.hypervisor import Guest
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.connection import (
    account_of,
    addresses_of,
    beyond,
    dsn_of,
    elects,
    endpoints_of,
    entry_of,
    links_of,
    published_at,
    unencrypted,
)
from lab.lifecycle.nodes.standing import remember, roles_of
from lab.locks.named import held
from lab.names import LOOPBACK, GuestName, Owner
from lab.observe.round import Observation, Observed, Subject, lab_state, observe
from lab.observe.states import NodeState
from lab.progress import Step
from lab.state.records import LabRecord, LabWithNodes, NodeRecord
from lab.views.labs import FIRST_USE, LabStatus, LabView, NodeView, Unmet

if TYPE_CHECKING:
    from lab.lifecycle.images.ready import Images
    from lab.lifecycle.nodes.nodes import Node

_ROLE_SECONDS = 5.0
"""How long nodes that were found ready just now may take to say which role they have."""
_FOUND = 200
"""Characters that are kept of what a node said instead of what is required."""
_ASKED = ("ready", "stopped")
"""Recorded states of labs whose nodes are queried: those that may accept statements."""


def labs(ctx: Context) -> list[LabView]:
    """All labs, by name, also those of which only guests or volumes with our tags are left.

    Their nodes are asked in one round.
    """
    guests = known_guests(ctx)
    # Before the record is read: it is the first of a lab to come and the last to go.
    owners = tagged(ctx, guests)
    recorded = ctx.store.labs_with_nodes()
    names = {found.lab.name for found in recorded}
    observed = observed_of(ctx, recorded, guests)
    for one in recorded:
        remember(ctx.store, one, observed[one.lab.name])
    views = [view_of(ctx.settings, one, observed[one.lab.name]) for one in recorded]
    views += [unrecorded(name, guests) for name in owners - names]
    return sorted(views, key=lambda view: view.name)


def lost(ctx: Context) -> dict[str, LabView]:
    """Labs that are not recorded: only guests, volumes or directories with our tags are left."""
    guests = known_guests(ctx)
    owners = tagged(ctx, guests)  # before the record is read
    names = {record.name for record in ctx.store.labs.all()}
    return {name: unrecorded(name, guests) for name in sorted(owners - names)}


def lab(
    ctx: Context,
    name: str,
    *,
    steps: Sequence[Step] = (),
    proved: bool = False,
    guests: Mapping[GuestName, Guest] | None = None,
) -> LabView:
    """One lab; ``steps``: what was done to make it just now. Raises NotFound.

    ``proved``: all nodes that run were found ready just now, so they are not asked again, except
    for the roles that they elect and whom they follow. ``guests``: those that there are, if that is
    known.
    """
    guests = known_guests(ctx) if guests is None else guests
    unknown = ctx.store.labs.find(name) is None and name in tagged(ctx, guests)
    if unknown and ctx.store.labs.find(name) is None:  # nor since then
        return unrecorded(name, guests)
    found = ctx.store.lab_with_nodes(name)
    if not proved:
        observed = observed_of(ctx, [found], guests)[name]
    else:
        observed = _proved(found, guests)
        if elects(found.lab) or links_of(found.lab, found.nodes):
            seen = observed_of(ctx, [found], guests, within=_ROLE_SECONDS)[name].nodes
            nodes = {
                node: replace(one, role=seen[node].role, sources=seen[node].sources)
                for node, one in observed.nodes.items()
            }
            observed = replace(observed, nodes=nodes)
    remember(ctx.store, found, observed)
    return replace(view_of(ctx.settings, found, observed), **_times(steps))


def _times(steps: Sequence[Step]) -> dict[str, Any]:
    first = sum((one.seconds for one in steps if one.step in FIRST_USE), 0.0)
    return {"first_use_seconds": first, "steps": tuple(steps)}


def status(ctx: Context, name: str) -> LabStatus:
    """One lab, and every requirement of every node, looked at now; raises NotFound."""
    guests = known_guests(ctx)
    if ctx.store.labs.find(name) is None:
        return LabStatus(lab(ctx, name), ())
    found = ctx.store.lab_with_nodes(name)
    observed = observed_of(ctx, [found], guests, always=bool(found.lab.user))[name]
    remember(ctx.store, found, observed)
    requirements = [one for seen in observed.nodes.values() for one in seen.requirements]
    order = {node.name: number for number, node in enumerate(found.nodes)}
    return LabStatus(
        view_of(ctx.settings, found, observed),
        tuple(sorted(requirements, key=lambda one: order[one.node])),
    )


def observed_of(
    ctx: Context,
    labs: Sequence[LabWithNodes],
    guests: Mapping[GuestName, Guest],
    *,
    within: float | None = None,
    always: bool = False,
) -> dict[str, Observation]:
    """What the nodes of ``labs`` answer now, by the names of labs, in one round.

    ``within``: seconds; default is the setting ``answer_timeout``. ``always``: also nodes of a lab
    that is not made, or failed; of others only the guests are looked at.
    """
    subjects = [subject(ctx.settings, found, always=always) for found in labs]
    return observe(ctx.ways, subjects, guests, within=within or ctx.settings.answer_timeout)


def subject(settings: Settings, found: LabWithNodes, *, always: bool = False) -> Subject:
    """A lab for a round of questions; ``always``: see ``observed_of``."""
    record, nodes = found.lab, _nodes(found)
    asked = always or record.state in _ASKED
    # Whether it is being started is only of interest where it is recorded as stopped.
    working = record.state == "stopped" and held(settings.home, "lab", record.name)
    known = Subject(record.name, nodes, None, None, asked=asked, working=working)
    try:
        plan = record.plan
    except InvalidSpec:  # of another version of lab
        return replace(known, why=f"unknown blueprint {record.blueprint}")
    if not record.user:
        return replace(known, plan=plan, why="it has no account yet")
    return replace(known, plan=plan, account=account_of(settings.home, record))


def record_of(ctx: Context, name: str) -> LabRecord:
    """The record of a lab; raises NotFound, which says if tagged resources of it exist."""
    found = ctx.store.labs.find(name)
    if found is not None:
        return found
    if name in tagged(ctx, known_guests(ctx)) and ctx.store.labs.find(name) is None:
        raise NotFound(
            f"the lab {name} is missing from the state database: only its guests and volumes exist",
            hint=f"`lab status {name}` shows its guests, `lab exec --agent`, `lab logs` and"
            f" `lab console` work, `lab down {name}` removes it",
        )
    return ctx.store.labs.get(name)


def check_usable(record: LabRecord) -> None:
    """Raise Conflict unless the nodes of a lab are complete."""
    if not record.usable:
        raise Conflict(f"the lab {record.name} is {record.state}")


def nodes_of(ctx: Context, name: str) -> tuple[Node, ...]:
    """The recorded nodes of a lab; raises NotFound."""
    record_of(ctx, name)
    return _nodes(ctx.store.lab_with_nodes(name))


def _nodes(found: LabWithNodes) -> tuple[Node, ...]:
    from lab.lifecycle.nodes.nodes import Node

    owner, at = Owner("lab", found.lab.name), (found.lab.address, found.lab.host)
    return tuple(
        Node(
            owner, n.name, n.idx, n.role, n.all_ports,
            *(at if n.redirect or not n.guest_address else (n.guest_address, n.guest_address)),
            n.guest_address, n.redirect, size=n.size, image=n.image,
            services=tuple(Service(name, port) for name, port in n.services.items()),
            release=_release(found, n), known_as=GuestName(n.guest),
        )
        for n in found.nodes
    )  # fmt: skip


def _release(found: LabWithNodes, node: NodeRecord) -> Release:
    return Release(*found.engine_of(node))


def node_of(ctx: Context, name: str, node: str) -> Node:
    """One node of a lab, without ports if only its tagged guest exists; raises NotFound."""
    nodes = _tagged_nodes(ctx, name) if ctx.store.labs.find(name) is None else ()
    nodes = nodes or nodes_of(ctx, name)
    for found in nodes:
        if found.name == node:
            return found
    raise NotFound(
        f"the lab {name} has no node {node}",
        hint=f"its nodes: {', '.join(n.name for n in nodes)}",
    )


def _tagged_nodes(ctx: Context, name: str) -> tuple[Node, ...]:
    from lab.lifecycle.nodes.nodes import Node

    owner = Owner("lab", name)
    ours = [g for g in known_guests(ctx).values() if g.tags.get("owner") == str(owner)]
    # Of a node and its standby, which is paused, the node.
    ours.sort(key=lambda guest: guest.state != "paused")
    found = {guest.tags.get("node", ""): guest.name for guest in ours}
    return tuple(
        Node(owner, node, number, "", known_as=found[node])
        for number, node in enumerate(sorted(found), 1)
    )


def tagged(ctx: Context, guests: Mapping[GuestName, Guest]) -> set[str]:
    """The labs that the tags of ``guests`` and of our volumes, or directories name."""
    owners = {guest.tags.get("owner", "") for guest in guests.values()}
    owners |= {str(volume.name.owner) for volume in ctx.storage.volumes()}
    owners |= {f"lab:{path.name}" for path in ctx.home.labs.iterdir()}
    return {owner.removeprefix("lab:") for owner in owners if owner.startswith("lab:")}


def view_of(settings: Settings, found: LabWithNodes, observed: Observation | None) -> LabView:
    """The view of a lab as it was ``observed``; None: its nodes are not known."""
    record = found.lab
    standing = roles_of(found, observed)
    recorded = [replace(node, role=standing.roles[node.name][0]) for node in found.nodes]
    links = standing.links
    nodes = tuple(
        _node(found, node, observed, links, standing.roles[node.name][1]) for node in recorded
    )
    state = lab_state(
        record.state,
        [node.state for node in nodes],
        working=bool(observed and observed.working),
        pooled=bool(record.pool),
        asleep=record.asleep_at is not None,
    )
    runs = state != "stopped"  # else the last start is over, also if the host ended it
    endpoints = endpoints_of(record, recorded)
    running = {node.guest for node in nodes if node.state != "stopped"}
    dsn = dsn_of(record, entry_of(record, recorded, running)) if nodes and record.user else ""
    return LabView(
        name=record.name,
        blueprint=record.blueprint,
        engine=record.engine,
        engine_version=record.engine_version,
        state=state,
        nodes=nodes,
        requested_nodes=record.node_count,
        options=options.shown(record.options),
        user=record.user,
        password=record.password,
        dsn=dsn,
        links=links,
        endpoints={endpoint.name: endpoint.nodes for endpoint in endpoints},
        addresses={one.name: addresses_of(record, found.nodes, one) for one in endpoints},
        ssl_ca=str(settings.home.ca) if beyond(record) else "",
        unencrypted=next(filter(None, (unencrypted(_release(found, n)) for n in found.nodes)), ""),
        image=record.image,
        template=record.template or "",
        parent=record.parent,
        owner=record.owner,
        started=(runs and record.started) or "",
        why_cold=record.why_cold if runs else "",
        memory=record.memory,
        cpus=record.cpus,
        disk=record.disk or None,
        profile=record.profile,
        snapshots=record.snapshots,
        risks=_risks(settings, record.profile),
        created_at=record.created_at,
        expires_at=record.expires_at,
        seconds=(runs and record.ready_seconds) or 0.0,
        observed_at=observed.at if observed else None,
        interrupted=interrupted.described(settings.home, record.name),
        at=record.at,
        standby=found.standby,
        asleep_at=record.asleep_at if state == "asleep" else None,
    )


def _seen(observed: Observation | None, node: str) -> Observed | None:
    return observed.nodes.get(node) if observed else None


def _risks(settings: Settings, profile: str) -> tuple[str, ...]:
    try:
        return tuple(risks(settings.profile_of(profile)))
    except InvalidSpec:
        return (f"the profile {profile} is no longer in the config file: not known",)


def _node(
    found: LabWithNodes,
    node: NodeRecord,
    observed: Observation | None,
    links: Sequence[Link],
    known: Known,
) -> NodeView:
    record, seen = found.lab, _seen(observed, node.name)
    engine, version = found.engine_of(node)
    host, port = published_at(record, node)
    places = {name: published_at(record, node, name) for name in node.all_ports}
    return NodeView(
        name=node.name,
        role=node.role,
        state=seen.state if seen else "unknown",
        host=host,
        sql_port=port,
        ssh_port=node.ssh_port,
        guest=node.guest,
        why=seen.why if seen else "",
        image=node.image,
        memory=node.memory,
        cpus=node.cpus,
        disk=node.disk or None,
        services=node.services,
        ports={name: place[1] for name, place in places.items()},
        addresses={name: "{}:{}".format(*place) for name, place in places.items()},
        position=(seen and seen.position) or "",
        behind=_behind(node.name, observed, links),
        observed_at=observed.at if observed else None,
        role_known=known,
        engine=engine,
        engine_version=version,
        answered=bool(seen and seen.answered),
        unmet=_unmet(seen),
    )


def _unmet(seen: Observed | None) -> tuple[Unmet, ...]:
    requirements = seen.requirements if seen else ()
    # What was found is what a guest said.
    return tuple(
        Unmet(one.name, one.what, one.found[:_FOUND])
        for one in requirements
        if not one.met and one.found
    )


def _behind(node: str, observed: Observation | None, links: Sequence[Link]) -> int | None:
    """Transactions of a node's sources that it has not executed; None if that is not known."""
    sources = [link.source for link in links if link.replica == node and not link.known]
    return observed.behind(node, sources) if observed else None


def _proved(found: LabWithNodes, guests: Mapping[GuestName, Guest]) -> Observation:
    """The states of nodes that were found ready just now, without a query."""
    present = [node.name for node in found.nodes if GuestName(node.guest) in guests]
    whole: NodeState = "ready" if len(present) == len(found.nodes) else "degraded"
    nodes = {
        node.name: Observed(whole, answered=True) if node.name in present else Observed("stopped")
        for node in found.nodes
    }
    return Observation(found.lab.name, time.time(), nodes)


def unrecorded(name: str, guests: Mapping[GuestName, Guest]) -> LabView:
    """A lab whose record was lost, known by its tags. It can be inspected and removed."""
    ours = sorted(g.name for g in guests.values() if g.tags.get("owner") == f"lab:{name}")
    nodes = tuple(
        NodeView(found.tags.get("node", ""), "", found.state, LOOPBACK, 0, 0, found.name, found.why)
        for found in (guests[name] for name in ours)
    )
    return LabView(name, "", "", "unrecorded", nodes, blueprint="")


def images_of(ctx: Context, record: LabRecord, nodes: Sequence[Node]) -> Images:
    """The images of a lab and of its ``nodes``; raises NotFound."""
    from lab.lifecycle.images.image import find as find_image
    from lab.lifecycle.images.ready import Images

    engine = find_image(ctx, record.image)
    keys = {node.image for node in nodes} - {"", record.image}
    others = [find_image(ctx, key) for key in sorted(keys)]
    return Images(engine, {image.key: image for image in others})  # a recipe may have several


def running_nodes(ctx: Context, name: str) -> list[Node]:
    """The nodes of a lab that have a guest."""
    running_guests = ctx.hypervisor.guests()
    return [node for node in nodes_of(ctx, name) if node.guest in running_guests]


def known_guests(ctx: Context) -> Mapping[GuestName, Guest]:
    """All guests, for verbs that only read: the recorded ones if the hypervisor is silent."""
    if ctx.unanswered is None:
        return ctx.hypervisor.guests()
    return unknown_guests(ctx.store.labs_with_nodes())


def unknown_guests(labs: Iterable[LabWithNodes]) -> dict[GuestName, Guest]:
    """The recorded guests of ``labs``; whether they run is not known."""
    names = [GuestName(node.guest) for found in labs for node in found.nodes]
    return {name: Guest(name, "unknown", {}) for name in names}
