"""``lab up --dry-run``: the image and template that a lab would be made of; makes nothing."""

from __future__ import annotations

from lab.blueprints import Blueprint, blueprint_of
from lab.errors import Conflict
from lab.imagebuild.recipe import load
from lab.lifecycle.captures import template, template_record
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.views import PlannedNode, Preview
from lab.lifecycle.images.engine import choose, find, key_for, other_keys
from lab.lifecycle.images.versions import with_image
from lab.lifecycle.nodes.preflight import preflight
from lab.spec import LabSpec
from lab.state.records import TemplateRecord


def preview(ctx: Context, spec: LabSpec, *, cold: bool = False) -> Preview:
    """What ``up`` would do for ``spec`` now.

    Raises what ``up`` would raise before it makes anything: InvalidSpec, Conflict, HostUnfit.
    """
    spec = with_image(ctx, spec)
    plan = blueprint_of(spec)
    preflight(ctx, spec)
    plans = plan.plan(spec)
    if spec.name and ctx.store.labs.find(spec.name) is not None:
        raise Conflict(f"lab {spec.name} exists already", hint=f"`lab status {spec.name}` shows it")
    profile, key = ctx.settings.profile_of(spec.profile), key_for(ctx, plan, spec)
    record = ctx.store.images.find(key)
    others = other_keys(ctx, plan, spec)
    images = [record, *map(ctx.store.images.find, others.values())]
    there, *others_there = [one is not None and one.state == "ready" for one in images]
    built = there and all(others_there)
    if not there and not spec.image and (why := choose(ctx, plan, spec).why):
        ctx.progress.note("engine", why)
    found = _template(ctx, key, plan, spec) if built else None
    why_cold = "requested" if cold else _why_cold(ctx, found)
    makes_one = not cold and found is None
    return Preview(
        name=spec.name or ctx.store.free_name(spec.blueprint),
        blueprint=plan.name,
        engine=load(key.rpartition("-")[0]).engine if record is None else record.engine,
        nodes=len(plans),
        memory=spec.size.memory,
        cpus=spec.size.cpus,
        disk=spec.size.disk or None,
        profile=profile.name,
        image=key,
        image_exists=built,
        template=None if cold else found.key if found else "",
        start="cold" if why_cold else "warm",
        why_cold=why_cold,
        displaces=tuple(one.key for one in template_record.displaced(ctx)) if makes_one else (),
        each=tuple(
            PlannedNode(
                node.name,
                others.get(node.recipe, key),
                node.size.memory,
                node.size.cpus,
                node.size.disk or None,
            )
            for node in plans
        ),
    )


def _why_cold(ctx: Context, found: TemplateRecord | None) -> str:
    """Why a lab would boot; empty if it would not."""
    capabilities = ctx.hypervisor.capabilities()
    if capabilities.why_cold:
        return capabilities.why_cold
    return "" if found is None or found.warm else found.why or "the template has no RAM"


def _template(ctx: Context, key: str, plan: Blueprint, spec: LabSpec) -> TemplateRecord | None:
    """The template that would be cloned, None if there is none yet."""
    name = template.current(ctx, template.key_of(ctx, find(ctx, plan, spec, key), plan, spec))
    return ctx.store.templates.find(name) if name else None
