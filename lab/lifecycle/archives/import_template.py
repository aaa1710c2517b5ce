"""A received template: whether and how it fits this host, and its import."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from lab.blueprints import NodePlan, blueprint
from lab.config.profile import Profile
from lab.errors import HostUnfit, InvalidSpec
from lab.exchange.header import Content, Header, NodeFacts, TemplateFacts, strings
from lab.exchange.stage import Stage
from lab.lifecycle.archives import describe, import_image
from lab.lifecycle.captures import template as templates
from lab.lifecycle.captures.capture import Capture, CapturedNode, FileFacts
from lab.lifecycle.captures.freeze import captured
from lab.lifecycle.captures.template_record import finish, making, vacant
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import Order, resolve
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.form import let_read
from lab.lifecycle.nodes.nodes import Node, volumes_of
from lab.lifecycle.nodes.nodes import plan as plan_nodes
from lab.names import FORMED, template_ref
from lab.requests.archives import ImportOptions
from lab.spec import LabSpec
from lab.state.records import ResourceKind
from lab.storage import VolumeSnapshot
from lab.storage.overwrite import overwrite
from lab.values import dataclass

SAVED_ELSEWHERE = "its RAM was saved by another hypervisor"
"""With what the reason begins for which labs of a template boot."""


@dataclass(frozen=True)
class Fit:
    """How a template is to be ours: what lab it is for, under which key, and if it stays warm.

    ``key``: of one that was captured from a lab in use, it is of what is imported of the archive.
    """

    order: Order
    key: str
    why_cold: str = ""

    @property
    def warm(self) -> bool:
        """True if its RAM can be restored here."""
        return not self.why_cold

    def wanted(self, template: TemplateFacts) -> list[str]:
        """The parts that are needed of it."""
        found = []
        for node in template.nodes:
            found += [f"{node.name}/{name}" for name in ("seed", *node.disks)]
            found += [f"{node.name}/state", f"{node.name}/ram"] if self.warm else []
        return found


def fit(ctx: Context, header: Header, template: TemplateFacts, how: ImportOptions) -> Fit:
    """How a template fits this host; raises InvalidSpec if it does not fit this program.

    Raises HostUnfit where its RAM does not fit, and only a warm template will do.
    """
    plan = blueprint(template.blueprint)
    if plan.version != template.version:
        raise InvalidSpec(
            f"the template was formed by version {template.version} of the blueprint {plan.name},"
            f" and this program has version {plan.version}",
            hint="use the same version of lab on both hosts",
        )
    size, profile = template.size, _profile(ctx, template)
    requested = template.requested_nodes or len(template.nodes)
    spec = LabSpec(
        plan.name,
        nodes=requested,
        memory=size.memory,
        cpus=size.cpus,
        disk=size.disk,
        profile=profile.name,
        options=dict(template.options),
    )
    order = resolve(ctx, spec)
    plans = order.nodes
    if [node.role for node in template.nodes] != [node.role for node in plans]:
        raise InvalidSpec(f"the template's nodes have other roles than those of {plan.name}")
    if [node.size or size for node in template.nodes] != [node.size for node in plans]:
        raise InvalidSpec(f"the template's nodes have other sizes than those of {plan.name}")
    wanted = [node.recipe or header.image.recipe for node in plans]
    if [found and found.recipe for found in map(header.image_of, template.nodes)] != wanted:
        raise InvalidSpec(f"the template's nodes have other images than those of {plan.name}")
    images_ = _described(ctx, header)
    why_cold = _why_cold(ctx, template, images_, plans)
    if not how.ram and not why_cold:
        why_cold = "its RAM was left out at its import"
    if why_cold and how.warm_only:
        raise HostUnfit(
            f"the template's RAM cannot be restored here: {why_cold}",
            hint="without --warm-only its disks are imported: labs boot from them",
        )
    if template.source:
        return Fit(order, _key_of_content(ctx, template, warm=not why_cold), why_cold)
    return Fit(order, templates.key_of(ctx, order, images_), why_cold)


def _key_of_content(ctx: Context, template: TemplateFacts, *, warm: bool) -> str:
    """The key of a template captured from a lab in use, which is found by its content alone."""
    content = msgspec.json.encode([ctx.home.id, warm, template.key, template.nodes])
    return hashlib.sha256(content).hexdigest()[:14]


def publish(
    ctx: Context, header: Header, template: TemplateFacts, stage: Stage, target: Fit
) -> str:
    """Make a template of its parts on the stage; its name, or that of one that is here by now.

    Raises InvalidSpec if they are not what the header says, Conflict if the image is gone or
    became another one.
    """
    with ExitStack() as held:
        engine, *others = [
            held.enter_context(images.using_key(ctx, one.key)) for one in header.images.values()
        ]
        held.enter_context(build_lock(ctx, "template", target.key))
        for one in header.images.values():
            import_image.here(ctx, one)
        all_ = Images(engine, {image.recipe: image for image in others})
        name = templates.recorded(ctx, target.key, target.order, all_)
        if name is not None:
            return name
        name = vacant(ctx, target.key)
        text = f"importing the template {name}" + ("" if target.warm else ", disks only")
        with (
            ctx.progress.step("template", text),
            making(ctx, name, target.order, all_, warm=target.warm, source=template.source),
        ):
            capture = _assemble(ctx, name, all_, template, stage, target)
            finish(ctx, capture, template.form_seconds)
        return name


def _assemble(
    ctx: Context, name: str, all_: Images, template: TemplateFacts, stage: Stage, target: Fit
) -> Capture:
    ref = template_ref(name)
    nodes = plan_nodes(ref.owner, target.order.nodes, all_)
    snapshots = _disks(ctx, nodes, all_, template, stage, target.order.profile)
    for node in nodes:
        files = {"seed": ctx.home.seed(ref, node.name)}
        if target.warm:
            files["state"] = ctx.home.device_state(ref, node.name)
            files["ram"] = ctx.home.ram(ref, node.name)
        for what, path in files.items():
            source = stage.path(f"{node.name}/{what}")
            source.chmod(0o600)
            shutil.move(source, path)
        let_read(ctx, files["seed"])
    capture = captured(ctx, ref, nodes, snapshots, warm=target.warm, why_cold=target.why_cold)
    for facts, made in zip(template.nodes, capture.nodes, strict=True):
        _check(facts, made)
    if not template.source:
        return capture
    found = [
        replace(made, fingerprint=facts.fingerprint or template.fingerprint)
        for facts, made in zip(template.nodes, capture.nodes, strict=True)
    ]
    return replace(capture, nodes=tuple(found), source=template.source)


def _disks(
    ctx: Context,
    nodes: Sequence[Node],
    all_: Images,
    template: TemplateFacts,
    stage: Stage,
    profile: Profile,
) -> list[VolumeSnapshot]:
    """The disks of all nodes: clones of their images', with what the cluster wrote to them."""
    owner = nodes[0].owner
    names = [volume for node in nodes for volume in volumes_of(node, all_)]
    things: list[tuple[ResourceKind, str]] = [("volume", str(volume)) for volume in names]
    intent = ctx.store.resources.intend_all(owner, things)
    ctx.home.create_directory(owner)
    for image in all_.all:
        images.check_disks(ctx, image)
    for node, facts in zip(nodes, template.nodes, strict=True):
        bases = images.snapshots(ctx, all_[node.image])
        for disk, size in facts.disks.items():
            volume = ctx.storage.clone(
                bases[disk],
                node.volume(disk),
                {"owner": str(owner), "node": node.name},
                size=size if size > bases[disk].size else 0,
                profile=profile.volume(disk),
            )
            overwrite(volume, stage.chunks(f"{node.name}/{disk}"))
    snapshots = ctx.storage.snapshot(names, FORMED)
    ctx.storage.persist(snapshots)
    ctx.store.resources.made(*intent)
    return snapshots


def _check(facts: NodeFacts, made: CapturedNode) -> None:
    pairs: list[tuple[str, Content | None, FileFacts | None]] = [("seed", facts.seed, made.seed)]
    if made.ram and made.state:
        pairs += [("RAM", facts.ram, made.ram), ("device state", facts.state, made.state)]
    for what, wanted, found in pairs:
        if not wanted or not found or (wanted.size, wanted.digest) != (found.size, found.digest):
            raise InvalidSpec(
                f"the {what} of {facts.name} in the archive does not match its header:"
                " digest mismatch",
                hint="export it again",
            )


def _why_cold(
    ctx: Context, template: TemplateFacts, all_: Images, plans: Sequence[NodePlan]
) -> str:
    """Why the template's RAM cannot be restored here; empty if it can."""
    capabilities = ctx.hypervisor.capabilities()
    if not template.warm:
        return "the template was exported without RAM"
    if capabilities.why_cold:
        return capabilities.why_cold
    shapes = [templates.shape_of(all_.planned(node), node.size) for node in plans]
    saved_by = [node.fingerprint or template.fingerprint for node in template.nodes]
    if [ctx.hypervisor.fingerprint(shape) for shape in shapes] == saved_by:
        return ""
    ours, theirs = strings(capabilities.facts), template.host
    other = [
        f"{name} {ours.get(name, 'unknown')} here, {theirs.get(name, 'unknown')} there"
        for name in {**theirs, **ours}
        if ours.get(name) != theirs.get(name)
    ]
    return SAVED_ELSEWHERE + (f" ({'; '.join(other)})" if other else "")


def _profile(ctx: Context, template: TemplateFacts) -> Profile:
    """The profile here that has the template's settings, of the same name if there is one."""
    known = ctx.settings.all_profiles()
    fitting = [p for p in known.values() if p.content() == template.settings]
    for profile in sorted(fitting, key=lambda p: p.name != template.profile):
        return profile
    raise InvalidSpec(
        f"no profile here has the settings of the template's, {template.profile}",
        hint=f"give a profile {template.profile} to this host's config file as on the other host",
    )


def _described(ctx: Context, header: Header) -> Images:
    """The template's images, as far as a template's key depends on them."""
    engine, *others = [
        images.described(ctx, facts.key, describe.built_image(facts, Path("/")))
        for facts in header.images.values()
    ]
    return Images(engine, {image.recipe: image for image in others})
