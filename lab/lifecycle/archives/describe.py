"""Images and templates as archives describe them, and the way back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import msgspec

from lab.blueprints import blueprint
from lab.errors import Conflict
from lab.exchange.header import Content, ImageFacts, NodeFacts, TemplateFacts, strings
from lab.imagebuild.manifest import BuiltImage
from lab.lifecycle.captures import template as templates
from lab.lifecycle.captures.capture import Capture, FileFacts, disk_snapshots
from lab.lifecycle.captures.template_record import base, spec_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.ready import Image, Images
from lab.spec import LabSpec
from lab.state.records import LabRecord, TemplateRecord


def image_facts(ctx: Context, image: Image) -> ImageFacts:
    """The description of an image in an archive; raises NotFound, and Conflict if it is too old."""
    built = images.built(ctx, image.key)
    snapshots = images.snapshots(ctx, image)
    files = {name: disk.name for name, disk in built.disks.items()}
    names = [*files.values(), built.kernel.name, built.initrd.name]
    if any(name not in built.digests for name in names):
        raise Conflict(
            f"the image {image.key} was built by an earlier version, without digests of its files",
            hint=f"`lab image build {built.recipe} --rebuild`",
        )
    return ImageFacts(
        key=image.key,
        recipe=built.recipe,
        engine=built.engine,
        engine_version=built.engine_version,
        cmdline=built.cmdline,
        user=built.user,
        uid=built.uid,
        gid=built.gid,
        service=built.service,
        config=built.config,
        option_file=images.option_file(built),
        packages=built.packages,
        disks={
            name: Content(snapshots[name].size, built.digests[file]) for name, file in files.items()
        },
        kernel=Content(built.kernel.stat().st_size, built.digests[built.kernel.name]),
        initrd=Content(built.initrd.stat().st_size, built.digests[built.initrd.name]),
        build_seconds=ctx.store.images.get(image.key).build_seconds,
    )


def built_image(facts: ImageFacts, directory: Path) -> BuiltImage:
    """The image whose files are in ``directory``, as a build leaves them."""
    kernel, initrd = directory / "kernel", directory / "initrd"
    disks = {name: directory / f"{name}.raw" for name in facts.disks}
    digests = {disks[name].name: content.digest for name, content in facts.disks.items()}
    digests |= {kernel.name: facts.kernel.digest, initrd.name: facts.initrd.digest}
    return BuiltImage(
        recipe=facts.recipe,
        disks=disks,
        kernel=kernel,
        initrd=initrd,
        cmdline=facts.cmdline,
        engine=facts.engine,
        engine_version=facts.engine_version,
        size=facts.disks["os"].size,
        user=facts.user,
        uid=facts.uid,
        gid=facts.gid,
        service=facts.service,
        config=facts.config,
        packages=facts.packages,
        digests=digests,
        option_file=facts.option_file,
    )


def template_facts(
    ctx: Context, record: TemplateRecord, capture: Capture, images: Images, *, ram: bool
) -> TemplateFacts:
    """The description of a template in an archive; ``ram``: with its RAM, if it has some.

    Raises Conflict for one that `lab up` would not use either: what its RAM fits is not known.
    """
    if record.source:
        raise Conflict(
            f"the template {record.key} was captured from {record.source}, a lab in use",
            hint="`lab snapshot take` in a lab that is a clone of it, then `lab snapshot export`",
        )
    spec, plan = spec_of(record), blueprint(record.blueprint)
    if templates.key_of(ctx, images, plan, spec) != base(record.key):
        raise Conflict(
            f"the template {record.key} is outdated: QEMU, the profile"
            f" {record.profile} or the rules of {record.blueprint} have changed since",
            hint="`lab up` does not use it either: form a new one with `lab template build`",
        )
    return _facts(ctx, record.key, spec, capture, images, ram=ram, form_seconds=record.form_seconds)


def snapshot_facts(
    ctx: Context, record: LabRecord, capture: Capture, images: Images, *, ram: bool
) -> TemplateFacts:
    """The description of a lab's snapshot as the template that it becomes elsewhere.

    ``capture``: with facts of its seeds. Its key is of its content: no request has that.
    """
    name = f"{record.name}@{capture.label}"
    facts = _facts(ctx, "", record.spec, capture, images, ram=ram, source=name)
    # Disks are not read for this: a snapshot never changes, and this one has these names.
    unique = [ctx.home.id, record.created_at, [node.seals for node in capture.nodes]]
    content = json.dumps(unique).encode() + msgspec.json.encode(facts, order="sorted")
    return replace(facts, key=hashlib.sha256(content).hexdigest()[:14])


def _facts(
    ctx: Context,
    key: str,
    spec: LabSpec,
    capture: Capture,
    images: Images,
    *,
    ram: bool,
    form_seconds: float = 0.0,
    source: str = "",
) -> TemplateFacts:
    profile, warm = ctx.settings.profile_of(spec.profile), ram and capture.warm
    nodes, elsewhere = [], False
    for node in capture.nodes:
        if node.seed is None:
            raise Conflict(f"{capture.ref} has no seed of {node.name}: it cannot be exported")
        image = images[node.image]
        size = node.size or spec.size
        fingerprint = ctx.hypervisor.fingerprint(templates.shape_of(image, size))
        elsewhere |= node.fingerprint not in ("", fingerprint)
        origins = disk_snapshots(ctx, capture, node.name, image.volumes)
        nodes.append(
            NodeFacts(
                name=node.name,
                role=node.role,
                seed=_content(node.seed),
                disks={origin.volume.volume: origin.size for origin in origins},
                ram=_content(node.ram) if warm and node.ram else None,
                state=_content(node.state) if warm and node.state else None,
                image=image.key,
                size=size,
                fingerprint=node.fingerprint or fingerprint,
            )
        )
    return TemplateFacts(
        key=key,
        blueprint=spec.blueprint,
        version=blueprint(spec.blueprint).version,
        memory=spec.size.memory,
        cpus=spec.size.cpus,
        disk=spec.size.disk,
        profile=profile.name,
        settings=profile.content(),
        nodes=nodes,
        fingerprint=ctx.hypervisor.fingerprint(templates.shape_of(images.engine, spec.size)),
        # What was another one when RAM was captured says nothing of it.
        host={} if elsewhere else strings(ctx.hypervisor.capabilities().facts),
        form_seconds=form_seconds,
        requested_nodes=spec.nodes,
        source=source,
    )


def _content(facts: FileFacts) -> Content:
    return Content(facts.size, facts.digest)
