"""``lab image|template|snapshot|dataset export``: to a file, a pipe, or another host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.errors import CommandFailed, Conflict
from lab.exchange import content, files, sending, talk
from lab.exchange.frames import FrameWriter
from lab.exchange.header import Header, ImageFacts, Part, TemplateFacts, image_name
from lab.exchange.sending import Outgoing
from lab.lifecycle.archives import describe
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures import template as templates
from lab.lifecycle.captures.capture import Capture, disk_snapshots
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.provenance import exported, read_provenance
from lab.lifecycle.images.ready import Image, Images
from lab.names import ArchiveKind
from lab.requests.archives import Destination, ExportArchive
from lab.state.records import ImageRecord, LabRecord
from lab.storage import VolumeSnapshot, sparse
from lab.units import MIB
from lab.values import dataclass
from lab.views.archives import ExportView


@dataclass(frozen=True)
class Contents:
    """The content to export; it is not changed during the export."""

    images: list[ImageFacts]
    template: TemplateFacts | None
    image_parts: Callable[[bool], list[Outgoing]]
    node_parts: Callable[[], list[Outgoing]]
    with_image: bool = True

    def archive(self, storage: str) -> tuple[Header, list[Outgoing]]:
        """The archive; ``storage``: whose own streams may be in it, empty for plain ones."""
        parts = self.image_parts(bool(storage)) if self.with_image else []
        parts += self.node_parts()
        image, *others = self.images
        header = Header(image, [out.part for out in parts], self.template, storage, others)
        return header, parts


@contextmanager
def image_contents(ctx: Context, record: ImageRecord) -> Iterator[Contents]:
    """An image, kept from removal in the block; raises NotFound."""
    with images.using_key(ctx, record.key) as image:
        yield Contents(
            [describe.image_facts(ctx, image)], None, partial(_image_parts, ctx, [image]), list
        )


@contextmanager
def template_contents(
    ctx: Context, key: str, *, with_image: bool = True, ram: bool = True
) -> Iterator[Contents]:
    """A template, kept from removal in the block, as its images are.

    Raises NotFound, and Conflict for a template that is incomplete, damaged or outdated.
    """
    record = templates.named(ctx, key)
    with (
        templates.images_kept(ctx, record) as all_,
        templates.kept(ctx, record.key, all_) as capture,
    ):
        if capture is None:
            raise Conflict(
                f"the template {record.key} is incomplete or damaged",
                hint="`lab template ls` shows its state",
            )
        whole = capture if ram else capture.without_ram("it is left out")
        seeds = {node.name: ctx.home.seed(capture.ref, node.name) for node in capture.nodes}
        yield Contents(
            [describe.image_facts(ctx, image) for image in all_.all],
            describe.template_facts(ctx, record, whole, all_),
            partial(_image_parts, ctx, all_.all),
            partial(_node_parts, ctx, whole, all_, seeds),
            with_image,
        )


def snapshot_contents(
    ctx: Context,
    record: LabRecord,
    capture: Capture,
    all_: Images,
    seeds: Mapping[str, Path],
    *,
    with_image: bool,
) -> Contents:
    """A snapshot of a lab, which the caller keeps from removal; ``seeds``: of its nodes.

    Raises Conflict if its files are damaged.
    """
    try:
        manifests.check(ctx, capture, all_)
    except Damaged as error:
        raise Conflict(
            f"the files of {record.name}@{capture.label} are damaged: {error}",
            hint="`--cold` exports its disks alone"
            if capture.warm
            else f"`lab snapshot ls {record.name}` lists others",
        ) from None
    found = tuple(replace(n, seed=manifests.facts(seeds[n.name])) for n in capture.nodes)
    return Contents(
        [describe.image_facts(ctx, image) for image in all_.all],
        describe.snapshot_facts(ctx, record, replace(capture, nodes=found), all_),
        partial(_image_parts, ctx, all_.all),
        partial(_node_parts, ctx, capture, all_, seeds),
        with_image,
    )


def export(ctx: Context, asked: ExportArchive) -> ExportView:
    """Write an image, a template or a dataset as an archive, or let another host import it.

    Raises NotFound, Conflict, InvalidSpec, HostUnfit; what goes wrong on the host as what it is.
    """
    if asked.kind == "dataset":
        opened = image_contents(ctx, images.version_named(ctx, asked.which))
    elif asked.kind == "image":
        record = images.named(ctx, asked.which)
        if record.dataset:
            raise Conflict(
                f"the image {record.key} is a dataset's",
                hint=f"`lab dataset export {record.dataset}@{record.version}`",
            )
        opened = image_contents(ctx, record)
    else:
        opened = template_contents(ctx, asked.which, with_image=asked.image, ram=asked.ram)
    with opened as contents:
        return deliver(ctx, contents, asked)


def deliver(ctx: Context, contents: Contents, asked: ExportArchive) -> ExportView:
    """Write ``contents``, which the caller keeps from removal, as ``export`` does."""
    began, kind, to = time.time(), asked.kind, asked.to
    if to.host:
        header, done, size = _send(ctx, contents, kind, to)
    else:
        header, size = _write(ctx, contents, to)
        done = talk.Done("written")
    name = header.template.source if header.template and header.template.source else header.key
    if kind == "dataset" and header.image.dataset:
        name = f"{header.image.dataset.name}@{header.image.dataset.version}"
    took = time.time() - began
    return ExportView(kind, name, to.host or to.where, done.outcome, size, took, done.lab)


_Sent = tuple[Header, talk.Done, int]
"""What was sent, what became of it, and how many bytes it took."""


def _write(ctx: Context, contents: Contents, to: Destination) -> tuple[Header, int]:
    header, parts = contents.archive(ctx.storage.name if to.native else "")
    target = nullcontext(to.sink) if to.sink else files.target(to.where, resume=to.resume)
    with target as sink:
        writer = FrameWriter(sink, header.version)
        sending.begin(writer, header)
        sending.send(writer, parts, {out.part.name: 0 for out in parts}, ctx.progress)
    return header, writer.written


def _send(ctx: Context, contents: Contents, kind: ArchiveKind, to: Destination) -> _Sent:
    verb = ["-q", kind, "import", "-", "--talk", "--resume"]
    argv = talk.ssh_argv(to.host, verb, command=to.command)
    with talk.conversation(argv) as conversation:
        remote = talk.Remote(conversation, to.host, ctx.progress)
        try:
            return converse(ctx, contents, remote)
        except CommandFailed as error:
            if error.argv != tuple(argv):
                raise  # a command of this host
            raise talk.failure(to.host, error, begun=remote.begun) from None


def converse(ctx: Context, contents: Contents, remote: talk.Remote) -> _Sent:
    """Send what the other side wants of ``contents``, which the caller keeps from removal."""
    hello = remote.greet()
    same = hello.get("storage") == ctx.storage.name and ctx.storage.native
    header, parts = contents.archive(ctx.storage.name if same else "")
    writer = FrameWriter(remote.to, header.version)
    sending.begin(writer, header)
    word, what = remote.hear("wanted", "done")
    if word == "wanted":
        sending.send(writer, parts, remote.wanted(what, header), ctx.progress)
        remote.to.close()
        word, what = remote.hear("done")
    return header, remote.done(what), writer.written


def _image_parts(ctx: Context, which: Sequence[Image], native: bool) -> list[Outgoing]:
    return [
        part
        for number, image in enumerate(which, 1)
        for part in _parts_of(ctx, image, image_name(number), native=native)
    ]


def _parts_of(ctx: Context, image: Image, first: str, *, native: bool) -> list[Outgoing]:
    built = images.built(ctx, image.key)
    found = []
    for disk, snapshot in images.snapshots(ctx, image).items():
        name, data = f"{first}/{disk}", _used(ctx, snapshot)
        if native:
            part = Part(name, "stream", 0, data)
            stream = partial(content.of_stream, partial(ctx.storage.send, snapshot))
            found.append(Outgoing(part, stream))
        else:
            part = Part(name, "sparse", snapshot.size, data)
            read = partial(ctx.storage.read, snapshot)
            found.append(Outgoing(part, partial(content.of_volume, read)))
    found.append(_file(f"{first}/kernel", built.kernel))
    found.append(_file(f"{first}/initrd", built.initrd))
    record = ctx.store.images.get(image.key)
    if record.dataset:
        info = exported(read_provenance(ctx, record))
        part = Part(f"{first}/dataset", "sparse", len(info), len(info))
        found.append(Outgoing(part, partial(content.of_bytes, info)))
    return found


def _node_parts(
    ctx: Context, capture: Capture, all_: Images, seeds: Mapping[str, Path]
) -> list[Outgoing]:
    found = []
    for node in capture.nodes:
        image = all_[node.image]
        bases = images.snapshots(ctx, image)
        found.append(_file(f"{node.name}/seed", seeds[node.name]))
        for origin in disk_snapshots(ctx, capture, node.name, image.volumes):
            disk = origin.volume.volume
            part = Part(f"{node.name}/{disk}", "changes", origin.size, _used(ctx, origin))
            below, above = (partial(ctx.storage.read, one) for one in (bases[disk], origin))
            found.append(Outgoing(part, partial(content.of_changes, below, above)))
        if capture.warm:
            state = ctx.home.device_state(capture.ref, node.name)
            found.append(_file(f"{node.name}/state", state))
            base = node.base or capture.ref
            found.append(_file(f"{node.name}/ram", ctx.home.ram(base, node.name)))
    return found


def _file(name: str, path: Path) -> Outgoing:
    part = Part(name, "sparse", path.stat().st_size, sparse.allocated(path))
    return Outgoing(part, partial(content.of_file, path))


def _used(ctx: Context, snapshot: VolumeSnapshot) -> int:
    """About the bytes that it takes, in whole MiB: a pool's own count varies a little."""
    return -(-ctx.storage.used(snapshot.volume) // MIB) * MIB
