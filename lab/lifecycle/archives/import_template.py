"""A received template: whether and how it fits this host, and its import."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.blueprints import Blueprint, blueprint
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
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.nodes import plan as plan_nodes
from lab.names import FORMED, template_ref
from lab.spec import LabSpec, NodeSize
from lab.state.records import ResourceKind
from lab.storage import VolumeSnapshot
from lab.storage.overwrite import overwrite


@dataclass(frozen=True)
class Fit:
    """How a template is to be ours: what lab it is for, under which key, and if it stays warm."""

    spec: LabSpec
    plan: Blueprint
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


def fit(ctx: Context, header: Header, template: TemplateFacts, *, warm_only: bool) -> Fit:
    """How a template fits this host; raises InvalidSpec if it does not fit this program.

    ``warm_only``: raises HostUnfit, too, where its RAM does not fit.
    """
    plan = blueprint(template.blueprint)
    if plan.version != template.version:
        raise InvalidSpec(
            f"the template was formed by version {template.version} of the blueprint {plan.name},"
            f" and this program has version {plan.version}",
            hint="use the same version of lab on both hosts",
        )
    size = NodeSize(template.memory, template.cpus, template.disk)
    profile = _profile(ctx, template)
    spec = LabSpec(plan.name, nodes=len(template.nodes), size=size, profile=profile.name)
    if [node.role for node in template.nodes] != [node.role for node in plan.plan(spec)]:
        raise InvalidSpec(f"the template's nodes have other roles than those of {plan.name}")
    image = _image(ctx, header)
    why_cold = _why_cold(ctx, template, image, spec)
    if why_cold and warm_only:
        raise HostUnfit(
            f"the template's RAM cannot be restored here: {why_cold}",
            hint="without --warm-only its disks are imported: labs boot from them",
        )
    return Fit(spec, plan, templates.key_of(ctx, image, plan, spec), why_cold)


def publish(
    ctx: Context, header: Header, template: TemplateFacts, stage: Stage, target: Fit
) -> str:
    """Make a template of its parts on the stage; its name, or that of one that is here by now.

    Raises InvalidSpec if they are not what the header says, Conflict if the image is gone or
    became another one.
    """
    with images.using_key(ctx, header.image.key) as image, build_lock(ctx, "template", target.key):
        import_image.here(ctx, header.image)
        name = templates.recorded(ctx, target.key, image, target.spec)
        if name is not None:
            return name
        name = vacant(ctx, target.key)
        text = f"importing the template {name}" + ("" if target.warm else ", disks only")
        with (
            ctx.progress.step("template", text),
            making(ctx, name, image, target.spec, warm=target.warm),
        ):
            capture = _assemble(ctx, name, image, template, stage, target)
            finish(ctx, capture, template.form_seconds)
        return name


def _assemble(
    ctx: Context, name: str, image: Image, template: TemplateFacts, stage: Stage, target: Fit
) -> Capture:
    ref = template_ref(name)
    nodes = plan_nodes(ref.owner, target.plan.plan(target.spec), image=image.key)
    snapshots = _disks(ctx, nodes, image, template, stage, target.spec)
    for node in nodes:
        files = {"seed": ctx.home.seed(ref, node.name)}
        if target.warm:
            files["state"] = ctx.home.device_state(ref, node.name)
            files["ram"] = ctx.home.ram(ref, node.name)
        for what, path in files.items():
            source = stage.path(f"{node.name}/{what}")
            source.chmod(0o644 if what == "seed" else 0o600)
            shutil.move(source, path)
    capture = captured(ctx, ref, nodes, snapshots, warm=target.warm, why_cold=target.why_cold)
    for facts, made in zip(template.nodes, capture.nodes, strict=True):
        _check(facts, made)
    return capture


def _disks(
    ctx: Context,
    nodes: Sequence[Node],
    image: Image,
    template: TemplateFacts,
    stage: Stage,
    spec: LabSpec,
) -> list[VolumeSnapshot]:
    """The disks of all nodes: clones of the image's, with what the cluster wrote to them."""
    owner, profile = nodes[0].owner, ctx.settings.profile_of(spec.profile)
    names = [node.volume(disk) for node in nodes for disk in image.volumes]
    things: list[tuple[ResourceKind, str]] = [("volume", str(volume)) for volume in names]
    intent = ctx.store.resources.intend_all(owner, things)
    ctx.home.create_directory(owner)
    bases = images.snapshots(ctx, image)
    images.check_disks(ctx, image)
    for node, facts in zip(nodes, template.nodes, strict=True):
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


def _why_cold(ctx: Context, template: TemplateFacts, image: Image, spec: LabSpec) -> str:
    """Why the template's RAM cannot be restored here; empty if it can."""
    capabilities = ctx.hypervisor.capabilities()
    if not template.warm:
        return "the template was exported without RAM"
    if not capabilities.warm:
        return capabilities.why_cold or "this hypervisor restores no RAM"
    if ctx.hypervisor.fingerprint(templates.shape_of(image, spec)) == template.fingerprint:
        return ""
    ours, theirs = strings(capabilities.facts), template.host
    other = [
        f"{name} {ours.get(name, 'unknown')} here, {theirs.get(name, 'unknown')} there"
        for name in {**theirs, **ours}
        if ours.get(name) != theirs.get(name)
    ]
    return "its RAM was saved by another hypervisor" + (f" ({'; '.join(other)})" if other else "")


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


def _image(ctx: Context, header: Header) -> Image:
    """The template's image, as far as a template's key depends on it."""
    return images.described(ctx, header.image.key, describe.built_image(header.image, Path("/")))
