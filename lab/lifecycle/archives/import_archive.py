"""``lab image|template|snapshot|dataset import``: from a file, a pipe, or another host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import BinaryIO

from lab.errors import Conflict, InvalidSpec, NotFound
from lab.exchange import receiving, talk
from lab.exchange.frames import FrameReader
from lab.exchange.header import DatasetFacts, Header, TemplateFacts, image_name
from lab.exchange.stage import Stage, drop, stage
from lab.lifecycle.archives import import_image, import_template
from lab.lifecycle.archives.import_image import check_project
from lab.lifecycle.captures import template as templates
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.names import ArchiveKind, check_dataset_name, dataset_key
from lab.progress import Progress
from lab.requests.archives import WHOLE, ImportOptions
from lab.views.archives import ImportView


def import_archive(
    ctx: Context,
    kind: ArchiveKind,
    source: BinaryIO,
    how: ImportOptions = WHOLE,
    *,
    speaker: talk.Speaker | None = None,
    then: Callable[[Context, ImportView], str] | None = None,
) -> ImportView:
    """Import the content of an archive; all of it is verified before any of it is used.

    ``speaker``: reports to the exporting side which parts are needed, and the progress.
    ``then``: makes a lab of what was imported, and returns its name, which that side reports.

    Nothing is left when it fails, but for what is kept. Raises InvalidSpec for whatever is
    wrong with the archive, Conflict, NotFound, HostUnfit.
    """
    if speaker:
        progress = Progress(speaker.retell(ctx.progress.listener), ctx.progress.halt)
        ctx = replace(ctx, progress=progress)
        speaker.say("hello", {"archive": talk.PROTOCOL, "storage": ctx.storage.name})
    reader = FrameReader(source)
    header = receiving.begin(reader)
    if header.kind != kind:
        raise InvalidSpec(
            f"this is the archive of {_a(header.kind)}, not of {_a(kind)}",
            hint=f"`lab {header.kind} import`",
        )
    _check_storage(ctx, header)

    def gather(names: Collection[str], publish: Callable[[Stage], ImportView]) -> ImportView:
        floor = ctx.settings.space_floor
        with stage(ctx.home.imports, header, keep=how.resume, floor=floor) as staged:
            receiving.check_space(staged, header, names)
            _check_storage_space(ctx, header, names)
            if speaker:
                speaker.say("wanted", receiving.missing(staged, header, names))
            receiving.receive(reader, staged, header, names, ctx.progress)
            return publish(staged)

    if header.template:
        view = _template(ctx, header, header.template, gather, how)
    elif header.image.dataset:
        view = _dataset(ctx, header, header.image.dataset, how.name, gather)
    else:
        view = _image(ctx, header, gather)
    if view.outcome == "exists":
        drop(ctx.home.imports, header)
    for note in view.notes:
        ctx.progress.note("import", note)
    lab = {"lab": then(ctx, view)} if then else {}
    if speaker:
        speaker.say("done", {"key": view.key, "outcome": view.outcome, **lab})
    return view


UNCHECKED = (
    "the archive has the RAM and device states of running machines, which QEMU loads as they are:"
    " import them only from sources that you trust, others with --no-ram"
)
"""Said at each import of such an archive: digests show that it is whole, not whom it is from."""

Gather = Callable[[Collection[str], Callable[[Stage], ImportView]], ImportView]


def _image(ctx: Context, header: Header, gather: Gather) -> ImportView:
    facts = header.image
    if images.ready(ctx, facts.key):
        notes = []
        if not import_image.same(ctx, facts):
            notes.append(
                f"the image {facts.key} of this host was built separately: templates of the other"
                " host do not fit it"
            )
        return ImportView("image", facts.key, "exists", tuple(notes))

    def publish(staged: Stage) -> ImportView:
        import_image.publish(ctx, header, image_name(1), staged)
        notes = []
        if import_image.profile_of(ctx, facts) is None:
            notes.append(
                f"`lab up` makes labs of the image {facts.key} only with --image: here, another"
                f" one would be built from {facts.recipe}"
            )
        return ImportView("image", facts.key, "imported", tuple(notes))

    return gather([part.name for part in header.parts], publish)


def _dataset(
    ctx: Context, header: Header, dataset: DatasetFacts, name: str, gather: Gather
) -> ImportView:
    if name:
        key = dataset_key(header.image.recipe, check_dataset_name(name), dataset.version)
        dataset = replace(dataset, name=name)
        header = replace(header, image=replace(header.image, key=key, dataset=dataset))
    facts, at = header.image, f"{dataset.name}@{dataset.version}"
    check_project(ctx, dataset)
    if images.ready(ctx, facts.key):
        if not import_image.same(ctx, facts):
            raise Conflict(
                f"there is a dataset {at} with different data",
                hint="`--name` imports it under another name",
            )
        return ImportView("dataset", at, "exists")

    def publish(staged: Stage) -> ImportView:
        import_image.publish(ctx, header, image_name(1), staged)
        return ImportView("dataset", at, "imported")

    return gather([part.name for part in header.parts], publish)


def _template(
    ctx: Context,
    header: Header,
    template: TemplateFacts,
    gather: Gather,
    how: ImportOptions,
) -> ImportView:
    fit = import_template.fit(ctx, header, template, how)
    name = templates.current(ctx, fit.key)
    if name is not None:
        return ImportView(header.kind, name, "exists")
    names = fit.wanted(template)
    lacking = [first for first, one in header.images.items() if not import_image.here(ctx, one)]
    for first in lacking:
        brought = [part.name for part in header.parts if part.name.startswith(f"{first}/")]
        if not brought:
            raise NotFound(
                f"the archive has {_a(header.kind)} of the image {header.images[first].key},"
                " which is not here",
                hint=f"import the image first, or export the {header.kind} without --no-image",
            )
        names += brought

    def publish(staged: Stage) -> ImportView:
        for first in lacking:
            import_image.publish(ctx, header, first, staged)
        name = import_template.publish(ctx, header, template, staged, fit)
        notes = []
        if fit.warm:
            notes.append(UNCHECKED)
        else:
            notes.append(f"labs of the template {name} will boot: {fit.why_cold}")
        if template.source:  # no `lab up` uses it
            return ImportView(header.kind, name, "imported", tuple(notes))
        if import_image.profile_of(ctx, header.image) is None:
            notes.append(f"it is used by `lab up --image {header.image.key}`")
        notes += [
            f"`lab up` here builds another image from {one.recipe} than {one.key}: it forms a"
            " template of its own"
            for one in header.others
            if import_image.profile_of(ctx, one) is None
        ]
        return ImportView("template", name, "imported", tuple(notes))

    return gather(names, publish)


def _check_storage(ctx: Context, header: Header) -> None:
    streams = any(part.form == "stream" for part in header.parts)
    if streams and header.storage != ctx.storage.name:
        raise InvalidSpec(
            f"the archive has streams of the storage {header.storage}, and here it is"
            f" {ctx.storage.name}",
            hint="export it without --native",
        )


def _check_storage_space(ctx: Context, header: Header, names: Collection[str]) -> None:
    """Raise HostUnfit unless the disks fit where volumes are kept, which may be a pool."""
    from lab.host import check_space

    needed = sum(p.data for p in header.parts if p.name in names and not _is_file(p.name))
    free, floor = ctx.storage.space().free, ctx.settings.space_floor
    what = f"the {header.kind} {header.key}"
    check_space(free, floor, ctx.home.root, needed=needed, what=what)


def _is_file(name: str) -> bool:
    return name.rpartition("/")[2] in ("kernel", "initrd", "dataset", "seed", "state", "ram")


def _a(kind: ArchiveKind) -> str:
    return f"an {kind}" if kind == "image" else f"a {kind}"
