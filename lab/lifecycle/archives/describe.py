"""Images and templates as archives describe them, and the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from lab.errors import Conflict
from lab.exchange.header import (
    Content,
    DatasetFacts,
    ImageFacts,
    NodeFacts,
    TemplateFacts,
    strings,
)
from lab.imagebuild.manifest import BuiltImage, digest_extents
from lab.lifecycle.captures import template as templates
from lab.lifecycle.captures.capture import Capture, FileFacts, disk_snapshots
from lab.lifecycle.captures.template_record import base
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import Order, of_existing, resolve
from lab.lifecycle.images.provenance import exported, read_provenance
from lab.lifecycle.images.ready import Image, Images
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
        dataset=_dataset_facts(ctx, image),
    )


def _dataset_facts(ctx: Context, image: Image) -> DatasetFacts | None:
    record = ctx.store.images.get(image.key)
    if not record.dataset:
        return None
    info = exported(read_provenance(ctx, record))
    content = Content(len(info), digest_extents(len(info), [(0, info)]))
    return DatasetFacts(record.dataset, record.version, content)


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
    ctx: Context, record: TemplateRecord, capture: Capture, images: Images
) -> TemplateFacts:
    """The description of a template in an archive, with the RAM that ``capture`` has.

    Raises Conflict for one that `lab up` would not use either: what its RAM fits is not known.
    """
    if record.source:
        raise Conflict(
            f"the template {record.key} was captured from {record.source}, a lab in use",
            hint="`lab snapshot take` in a lab that is a clone of it, then `lab snapshot export`",
        )
    order = resolve(ctx, record.spec)
    if templates.key_of(ctx, order, images) != base(record.key):
        raise Conflict(
            f"the template {record.key} is outdated: QEMU, the profile"
            f" {record.profile} or the rules of {record.blueprint} have changed since",
            hint="`lab up` does not use it either: form a new one with `lab template build`",
        )
    return _facts(
        ctx, order, capture, images, _fingerprints(ctx, order, capture, images),
        key=record.key, host=strings(ctx.hypervisor.capabilities().facts),
        form_seconds=record.form_seconds,
    )  # fmt: skip


def snapshot_facts(
    ctx: Context, record: LabRecord, capture: Capture, images: Images
) -> TemplateFacts:
    """The description of a lab's snapshot as the template that it becomes elsewhere.

    ``capture``: with facts of its seeds. Its key is of its content: no request has that.
    """
    order, source = of_existing(ctx, record.spec), f"{record.name}@{capture.label}"
    fingerprints = [node.fingerprint for node in capture.nodes]
    # Disks are not read for this: a snapshot never changes, and this one has these names.
    content = [
        source,
        ctx.home.id,
        record.created_at,
        [[*node.seals, *(f.digest for f in (node.ram, node.state) if f)] for node in capture.nodes],
    ]
    # Of the hypervisor that is here now nothing is said if RAM was saved by another one.
    same = fingerprints == _fingerprints(ctx, order, capture, images)
    return _facts(
        ctx, order, capture, images, fingerprints,
        key=hashlib.sha256(json.dumps(content).encode()).hexdigest()[:14],
        host=strings(ctx.hypervisor.capabilities().facts) if same else {},
        source=source,
    )  # fmt: skip


def _fingerprints(ctx: Context, order: Order, capture: Capture, images: Images) -> list[str]:
    """Of the hypervisor as it is now, for each node."""
    size = order.spec.size
    shapes = [templates.shape_of(images[node.image], node.size or size) for node in capture.nodes]
    return [ctx.hypervisor.fingerprint(shape) for shape in shapes]


def _facts(
    ctx: Context,
    order: Order,
    capture: Capture,
    images: Images,
    fingerprints: Sequence[str],
    *,
    key: str,
    host: dict[str, str],
    form_seconds: float = 0.0,
    source: str = "",
) -> TemplateFacts:
    spec, nodes = order.spec, []
    for node, fingerprint in zip(capture.nodes, fingerprints, strict=True):
        if node.seed is None:
            raise Conflict(f"{capture.ref} has no seed of {node.name}: it cannot be exported")
        image = images[node.image]
        origins = disk_snapshots(ctx, capture, node.name, image.volumes)
        nodes.append(
            NodeFacts(
                name=node.name,
                role=node.role,
                seed=_content(node.seed),
                disks={origin.volume.volume: origin.size for origin in origins},
                ram=_content(node.ram) if capture.warm and node.ram else None,
                state=_content(node.state) if capture.warm and node.state else None,
                image=image.key,
                size=node.size or spec.size,
                fingerprint=fingerprint,
            )
        )
    return TemplateFacts(
        key=key,
        blueprint=spec.blueprint,
        version=order.blueprint.version,
        memory=spec.memory,
        cpus=spec.cpus,
        disk=spec.disk,
        profile=order.profile.name,
        settings=order.profile.content(),
        nodes=nodes,
        fingerprint=ctx.hypervisor.fingerprint(templates.shape_of(images.engine, spec.size)),
        host=host,
        form_seconds=form_seconds,
        requested_nodes=spec.node_count,
        source=source,
        options=spec.chosen.of_template.said,
    )


def _content(facts: FileFacts) -> Content:
    return Content(facts.size, facts.digest)
