"""A received image: whether it exists here already, and its import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.config.profile import VOLUMES, Profile
from lab.errors import Conflict, InvalidSpec
from lab.exchange.header import DatasetFacts, Header, ImageFacts
from lab.exchange.stage import Stage
from lab.imagebuild import isolate, manifest
from lab.lifecycle.archives import describe
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.provenance import Provenance, imported, write_provenance
from lab.undo import Undo


def here(ctx: Context, facts: ImageFacts) -> bool:
    """Whether an image of that key is here; raises Conflict if it is not the same.

    Two builds of one recipe have the same key, as their inputs are the same, but may differ in
    content: a template only fits the image that it was formed from.
    """
    if not images.ready(ctx, facts.key):
        return False
    if not same(ctx, facts):
        raise Conflict(
            f"the image {facts.key} of this host was built separately: its content differs",
            hint=f"`lab image rm {facts.key}`, then import again",
        )
    return True


def same(ctx: Context, facts: ImageFacts) -> bool:
    """Whether the image of that key here has the content that ``facts`` describe."""
    ours = images.built(ctx, facts.key)
    brought = describe.built_image(facts, Path("/"))
    return ours.digests == brought.digests and ours.cmdline == brought.cmdline


def publish(ctx: Context, header: Header, first: str, stage: Stage) -> None:
    """Make an image of its parts on the stage, unless it is here by now.

    ``first``: with what the names of its parts begin. Raises InvalidSpec if they are not what the
    header says, Conflict as ``here`` does.
    """
    facts = header.images[first]
    dataset = facts.dataset
    if dataset:
        check_project(ctx, dataset)
    with build_lock(ctx, "image", facts.key):
        if images.is_built(ctx, facts.key) and here(ctx, facts):
            return
        text = f"importing the image {facts.key}"
        with ctx.progress.step("image", text), _directory(ctx, facts.key) as directory:
            built = describe.built_image(facts, directory)
            streams = _collect(header, first, stage, built)
            profile = profile_of(ctx, facts) or ctx.settings.profile_of("")
            record = images.new_record(facts.key, built.recipe, built.engine)
            files: Callable[[], object] = _nothing
            if dataset:
                made = _info(stage.path(f"{first}/dataset"), dataset)
                files = partial(write_provenance, ctx, facts.key, made)
                record = replace(
                    record,
                    dataset=dataset.name,
                    version=dataset.version,
                    project=ctx.origin.project,
                )
            seconds = facts.build_seconds
            images.adopt(ctx, record, built, profile, streams, build_seconds=seconds, files=files)


def _nothing() -> None:
    """No further files."""


def check_project(ctx: Context, dataset: DatasetFacts) -> None:
    """Raise Conflict if the name of a dataset is that of another project's."""
    for record in ctx.store.images.all():
        if record.dataset == dataset.name and record.project != ctx.origin.project:
            raise Conflict(
                f"the name {dataset.name} is taken by another dataset", hint="choose another name"
            )


def _info(path: Path, dataset: DatasetFacts) -> Provenance:
    """What an archive says of a dataset; raises InvalidSpec unless all of it is valid."""
    if manifest.digest(path) != dataset.info.digest:
        raise InvalidSpec(
            "dataset in the archive does not match its header: digest mismatch",
            hint="export it again",
        )
    return imported(path.read_bytes())


def profile_of(ctx: Context, facts: ImageFacts) -> Profile | None:
    """A profile with which `lab up` here would use the image; None if there is none.

    There is none for an image of another version of the recipe, of another layout, or with
    block sizes that no profile here has.
    """
    if tuple(facts.disks) != VOLUMES[ctx.settings.layout]:
        return None
    profiles = (ctx.settings.profile_of(""), *ctx.settings.all_profiles().values())
    specs = images.specs_of(ctx, facts.recipe, profiles)
    return next((spec.profile for spec in specs if spec.key == facts.key), None)


def _collect(
    header: Header, first: str, stage: Stage, built: manifest.BuiltImage
) -> dict[str, Path]:
    """Give the files on the stage the names they have in a build; the others are streams."""
    streams = {}
    files = {f"{first}/{name}": path for name, path in built.disks.items()}
    files |= {f"{first}/kernel": built.kernel, f"{first}/initrd": built.initrd}
    for name, path in files.items():
        part = header.part(name)
        if part is not None and part.form == "stream":
            streams[name.removeprefix(f"{first}/")] = stage.path(name)
            continue
        if manifest.digest(stage.path(name)) != built.digests[path.name]:
            raise InvalidSpec(
                f"{name} in the archive does not match its header: digest mismatch",
                hint="export it again",
            )
        stage.path(name).rename(path)
    return streams


@contextmanager
def _directory(ctx: Context, key: str) -> Iterator[Path]:
    out = ctx.home.build(key)
    isolate.remove_tree(out)
    out.mkdir(mode=0o711, parents=True)
    with Undo() as undo:
        undo.push(f"build files {out}", lambda: isolate.remove_tree(out))
        yield out
