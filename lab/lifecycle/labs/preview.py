"""``lab up --dry-run``: the image and template that a lab would be made of; makes nothing."""

from __future__ import annotations

from lab.errors import Conflict
from lab.lifecycle.captures import template, template_record
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.order import Order, choose, find, is_there, resolve
from lab.lifecycle.nodes.preflight import preflight
from lab.requests.labs import CreateLab
from lab.state.records import TemplateRecord
from lab.views.labs import PlannedNode, Preview


def preview(ctx: Context, asked: CreateLab) -> Preview:
    """What ``up`` would do for ``asked`` now.

    Raises what ``up`` would raise before it makes anything: InvalidSpec, Conflict, HostUnfit.
    """
    order = resolve(ctx, asked)
    preflight(ctx, order.nodes)
    if (name := asked.name) and ctx.store.labs.find(name) is not None:
        raise Conflict(f"lab {name} exists already", hint=f"`lab status {name}` shows it")
    choice, why = choose(ctx, order)
    there, *others_there = [is_there(ctx, one) for one in (choice, *order.others)]
    built = there and all(others_there)
    if why and not there:
        ctx.progress.note("engine", why)
    found = _template(ctx, order, choice.key) if built else None
    why_cold = "requested" if asked.cold else _why_cold(ctx, found)
    makes_one = not asked.cold and found is None
    return Preview(
        name=name or ctx.store.free_name(asked.blueprint),
        blueprint=order.blueprint.name,
        engine=choice.recipe.engine,
        nodes=len(order.nodes),
        memory=asked.memory,
        cpus=asked.cpus,
        disk=asked.disk or None,
        profile=order.profile.name,
        image=choice.key,
        image_exists=built,
        template=None if asked.cold else found.key if found else "",
        start="cold" if why_cold else "warm",
        why_cold=why_cold,
        displaces=tuple(one.key for one in template_record.displaced(ctx)) if makes_one else (),
        each=tuple(
            PlannedNode(
                node.name,
                order.other_keys.get(node.recipe, choice.key),
                node.size.memory,
                node.size.cpus,
                node.size.disk or None,
            )
            for node in order.nodes
        ),
    )


def _why_cold(ctx: Context, found: TemplateRecord | None) -> str:
    """Why a lab would boot; empty if it would not."""
    capabilities = ctx.hypervisor.capabilities()
    if capabilities.why_cold:
        return capabilities.why_cold
    return "" if found is None or found.warm else found.why or "the template has no RAM"


def _template(ctx: Context, order: Order, key: str) -> TemplateRecord | None:
    """The template that would be cloned, None if there is none yet; ``key``: of the image."""
    name = template.current(ctx, template.key_of(ctx, order, find(ctx, order, key)))
    return ctx.store.templates.find(name) if name else None
