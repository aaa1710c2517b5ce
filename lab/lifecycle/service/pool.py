"""Warm pools: labs that are created ahead of requests.

A member is a whole lab whose record names its pool; it belongs to nobody, and its guests are paused
while it waits, unless the pool wants it to run. It is known by its name
from its making on, as guests, volumes and files are named after that; so who claims one gets the
name too. Its password is unknown to all users, and stays.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from msgspec import structs

from lab.blueprints import blueprint_of, planned
from lab.config.settings import Settings
from lab.errors import Conflict, NotReady
from lab.hypervisor import Guest, memory_of
from lab.imagebuild import added
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context, Origin
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import choose, find, recipe_of, required, resolve
from lab.lifecycle.labs import configuration
from lab.lifecycle.nodes.inspect import nodes_of, observed_of
from lab.lifecycle.nodes.personalise import set_clocks
from lab.locks.named import lock
from lab.names import GuestName
from lab.requests.labs import CreateLab
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.state.store import Store
from lab.values import dataclass
from lab.wait import Deadline

_PATIENCE = 1.0
"""Seconds within which a node must answer before its lab is claimed."""


@dataclass(frozen=True)
class MemberKeys:
    """What a member must be made of: the keys of its image and, of its template, the first part."""

    image: str
    template: str


def new_name(blueprint: str) -> str:
    """A name for a member; the blueprint's own is for labs without a requested name."""
    return f"{blueprint}-{secrets.token_hex(3)}"


def check(settings: Settings, spec: LabSpec) -> None:
    """Raise InvalidSpec if there can be no lab as ``spec``: its blueprint, profile or engine."""
    spec.check()
    planned(spec, added.families(settings.home.engines))
    settings.profile_of(spec.profile)
    if spec.engine:
        required(settings.home, blueprint_of(spec), spec.engine)


def serves(settings: Settings, kept: LabSpec, asked: CreateLab) -> bool:
    """Whether a lab as ``kept`` is what ``asked`` asks for; raises InvalidSpec."""
    if not may_be_member(asked):
        return False
    if (kept.blueprint, kept.dataset) != (asked.blueprint, asked.dataset):
        return False
    one, other = (
        configuration.requested(s, profile=settings.profile_of(s.profile).name, recipe=_recipe(s))
        for s in (kept, asked)
    )
    return not configuration.differs(one, other, exact=True)


def may_be_member(asked: CreateLab) -> bool:
    """Whether a lab as ``asked`` may be one that was made before.

    Not one with a name of its choice, of an image of its choice, or with further accounts.
    """
    chosen = asked.name and not asked.accept_pooled_name
    return not (chosen or asked.chosen.user or asked.image)


def keys(ctx: Context, spec: LabSpec) -> MemberKeys:
    """What a lab as ``spec`` is made of now; raises NotFound if the image is not there.

    Where no engine is required, that is what is there, image and template: the preferred engine
    may fail when it is built, and members of the next one are kept until then.
    """
    order = resolve(ctx, spec)
    first, _ = choose(ctx, order)
    for key in dict.fromkeys(one.key for one in (first, *order.choices)):
        if all(images.ready(ctx, one) for one in (key, *order.other_keys.values())):
            template_key = template.key_of(ctx, order, find(ctx, order, key))
            if template.current(ctx, template_key):
                return MemberKeys(key, template_key)
    return MemberKeys(first.key, template.key_of(ctx, order, find(ctx, order, first.key)))


def fits(settings: Settings, record: LabRecord, spec: LabSpec, wanted: MemberKeys) -> bool:
    """Whether a member is what a lab as ``spec``, made now, would be."""
    profile = settings.profile_of(spec.profile).name
    there = replace(configuration.of_record(record), recipe="", pool="")
    requested = configuration.requested(
        structs.replace(spec, engine=""), profile=profile, image=wanted.image
    )
    return (
        not configuration.differs(there, requested, exact=True)
        and (record.address, record.host) == (settings.publish, settings.published_as)
        and template.is_for(record.template or "", wanted.template)
    )


def whole(ctx: Context, name: str, guests: dict[GuestName, Guest]) -> bool:
    """Whether all guests of a lab run or are paused, by what the hypervisor said."""
    found = [guests.get(GuestName(node.guest)) for node in ctx.store.nodes.of(name)]
    return bool(found) and all(one and one.state in ("running", "paused") for one in found)


def rest(ctx: Context, name: str, *, awake: bool) -> None:
    """Pause a member while it waits, or have it run (``awake``); it takes no processor then.

    Raises Conflict if somebody works on it, and as the hypervisor does.
    """
    with lock(ctx.home, "lab", name, wait=False):
        record = ctx.store.labs.find(name)
        if ctx.hypervisor.memory is None or record is None or not record.pool:
            return
        if awake:
            _wake(ctx, name)
        else:
            ctx.hypervisor.memory.pause([node.guest for node in nodes_of(ctx, name)])


def _wake(ctx: Context, name: str) -> None:
    """Resume the nodes of a member that are paused, all at the same time, and set their clocks."""
    guests, nodes = ctx.hypervisor.guests(), nodes_of(ctx, name)
    paused = [n for n in nodes if n.guest in guests and guests[n.guest].state == "paused"]
    if paused:
        memory_of(ctx.hypervisor).resume([node.guest for node in nodes])
        set_clocks(ctx, nodes)


def claim(
    ctx: Context,
    name: str,
    pool: str,
    fields: Callable[[], dict[str, Any]],
    also: Callable[[Store], None] = lambda _: None,
) -> None:
    """Claim a member of ``pool``: its record gets ``fields``, all or nothing; it runs then.

    ``fields`` are asked for when it is ready, as times count from then. ``also`` is called in the
    same transaction, and may raise. Raises Conflict if it is no member any more or somebody works
    on it, NotReady if not every node can be used at once.
    """
    # The service may be pausing or resuming it.
    with lock(ctx.home, "lab", name, deadline=Deadline.after(_PATIENCE)):
        record = ctx.store.labs.find(name)
        if record is None or record.pool != pool:
            raise _no_member(name, pool)
        _wake(ctx, name)
        check_member(ctx, name)
        with ctx.store.transaction():
            record = ctx.store.labs.find(name)
            if record is None or record.pool != pool or record.state != "ready":
                raise _no_member(name, pool)
            ctx.store.labs.update(name, pool="", **fields())
            also(ctx.store)


def _no_member(name: str, pool: str) -> Conflict:
    return Conflict(f"the lab {name} is not in the pool {pool} any more")


def given_to(
    origin: Origin, owner: str, ttl: float | None, snapshots: str, since: float
) -> dict[str, Any]:
    """What the record of a lab says that was claimed now, having been asked for at ``since``.

    ``ttl``: seconds of its lease; None: it has none.
    """
    now = time.time()
    return {
        "project": origin.project,
        "job": origin.job,
        "protected": origin.protected,
        "heartbeat": origin.heartbeat,
        "idle": origin.idle,
        "asleep_after": origin.asleep_after,
        "owner": owner,
        "snapshots": snapshots,
        "created_at": now,
        "expires_at": None if ttl is None else now + ttl,
        "ready_seconds": now - since,
    }


def ready(records: Collection[LabRecord], pool: str) -> list[LabRecord]:
    """The members of ``pool`` that are ready."""
    return [record for record in records if (record.pool, record.state) == (pool, "ready")]


def check_member(ctx: Context, name: str) -> None:
    """Raise NotReady unless each node answers now, as it must before a lab is handed out."""
    guests = ctx.hypervisor.guests()
    if not whole(ctx, name, guests):
        raise NotReady(f"not all guests of {name} run")
    observed = observed_of(ctx, [ctx.store.lab_with_nodes(name)], guests, within=_PATIENCE)[name]
    missing = [one for seen in observed.nodes.values() for one in seen.requirements if not one.met]
    if missing:
        raise NotReady(f"{missing[0].node} of {name} is not ready: {missing[0].found}")


def _recipe(spec: LabSpec) -> str:
    """The recipe of the image that a lab has; empty if that depends on what can be had."""
    if spec.engine:
        return recipe_of(spec.blueprint, spec.engine)
    engines = blueprint_of(spec).engines
    return next(iter(engines)) if len(engines) == 1 else ""
