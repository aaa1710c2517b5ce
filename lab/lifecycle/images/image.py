"""Images: built once from a recipe, published in one step, cloned by everything else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

from lab.blueprints import Engine
from lab.config.enginefile import image_recipe
from lab.config.profile import VOLUMES, Layout, Profile
from lab.errors import (
    CommandFailed,
    Conflict,
    HostUnfit,
    InvalidSpec,
    LabError,
    NotFound,
    RecipeFailed,
)
from lab.hypervisor import DirectBoot, FirmwareBoot
from lab.imagebuild import isolate, manifest
from lab.imagebuild.key import image_key
from lab.imagebuild.recipe import HERE, Recipe, load, shared
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import release
from lab.lifecycle.images import failures, publish
from lab.lifecycle.images.publish import BASE
from lab.lifecycle.images.ready import Image
from lab.locks.named import lock
from lab.names import CaptureRef, Owner, VolumeName, parse_dataset
from lab.paths import REACHABLE, make_directory
from lab.state.records import ImageRecord
from lab.storage import VolumeSnapshot
from lab.suggest import did_you_mean
from lab.undo import Undo
from lab.values import dataclass
from lab.views.catalog import ImageView

_SETTLED = 2.0
"""Seconds after which two changes of a file have different times."""
_DATA_DIRECTORY = "/var/lib/mysql"
_LOG_VOLUME = "/var/lib/mysqllog"
"""Where guests mount their data and log volumes (images/guest/usr/lib/lab/boot)."""


@dataclass(frozen=True)
class ImageSpec:
    """An image as it is asked for: what a recipe makes here now, or one that is there."""

    name: str
    """Of the recipe."""
    layout: Layout
    """The volumes of a node."""
    profile: Profile
    """Its block sizes are fixed when an image is imported; the rest has no effect on it."""
    engines: Path
    """Where the builds are that were added to the home."""
    named: str = ""
    """The key of the image if it must be there, whatever it was made from; else empty."""

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it is now; raises NotFound and InvalidSpec."""
        return load(self.name, engines=self.engines)

    @cached_property
    def key(self) -> str:
        """The key of the image: the name of its recipe, and what it is made from."""
        return self.named or f"{self.name}-{_content_key(self.recipe, self.volumes)}"

    @property
    def volumes(self) -> dict[str, int]:
        """The names of its volumes and their block sizes."""
        return {name: self.profile.volume(name).block_size for name in VOLUMES[self.layout]}


def _content_key(recipe: Recipe, volumes: Mapping[str, int]) -> str:
    """The result of ``image_key``, computed again only if a file that goes into it was changed.

    Right after a change it is asked as well: the next one may have the same time.
    """
    files = [
        (Path(top) / name).stat()
        for directory in (*shared(recipe), recipe.directory, HERE)
        for top, _, names in os.walk(directory)
        if not top.endswith("__pycache__")
        for name in names
    ]
    if time.time() - max(file.st_ctime for file in files) < _SETTLED:
        return image_key(recipe, volumes=volumes)
    stamps = tuple((f.st_ino, f.st_mode, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files)
    return _key_of_files(recipe, tuple(volumes.items()), stamps)


@lru_cache(maxsize=64)
def _key_of_files(
    recipe: Recipe, volumes: tuple[tuple[str, int], ...], _: tuple[tuple[int, ...], ...]
) -> str:
    return image_key(recipe, volumes=dict(volumes))


def spec_of(ctx: Context, recipe: str, profile: Profile | None = None) -> ImageSpec:
    """The image of a recipe here, for the default profile if none is given."""
    profile = profile or ctx.settings.profile_of("")
    return ImageSpec(recipe, ctx.settings.layout, profile, ctx.home.engines)


def specs_of(ctx: Context, recipe: str, profiles: Iterable[Profile]) -> list[ImageSpec]:
    """The images of a recipe for ``profiles``, each once; none if there is no such recipe now."""
    found: dict[tuple[int, ...], ImageSpec] = {}
    for profile in profiles:
        spec = spec_of(ctx, recipe, profile)
        found.setdefault(tuple(spec.volumes.values()), spec)
    try:
        load(recipe, engines=ctx.home.engines)
    except LabError:
        return []  # it is gone, or being written
    return list(found.values())


def ensure(ctx: Context, spec: ImageSpec) -> Image:
    """An image, built first if need be; another process's build is waited for.

    Raises NotFound for an unknown recipe, HostUnfit or CommandFailed if the build fails.
    """
    with using(ctx, spec) as image:
        return image


@contextmanager
def using(ctx: Context, spec: ImageSpec) -> Iterator[Image]:
    """An image, as ``ensure`` gives it; it is kept from removal in the block."""
    key = spec.key
    while not spec.named:
        with build_lock(ctx, "image", key, shared=True):
            if ready(ctx, key):
                yield find(ctx, key)
                return
        with build_lock(ctx, "image", key, unless=lambda: ready(ctx, key)) as held:
            if held and not is_built(ctx, key):
                _build(ctx, spec)
    with using_key(ctx, key) as image:
        yield image


@contextmanager
def using_key(ctx: Context, key: str) -> Iterator[Image]:
    """The image of that key, kept from removal in the block; raises NotFound."""
    with build_lock(ctx, "image", key, shared=True):
        if not ready(ctx, key):
            raise NotFound(f"there is no image {key!r}", hint="`lab image ls` lists them")
        yield find(ctx, key)


def built(ctx: Context, key: str) -> manifest.BuiltImage:
    """What the manifest of an image says, whose kernel is intact; raises NotFound and HostUnfit."""
    try:
        found = manifest.read(ctx.home.image(key))
    except InvalidSpec as error:
        raise NotFound(f"the image {key} has lost its files", hint="`lab image rm` it") from error
    try:
        seals = manifest.check(found)
    except InvalidSpec as error:
        raise _damaged(key, str(error)) from error
    except OSError as error:
        raise HostUnfit(f"the image {key} cannot be read: {error}") from error
    publish.reseal(ctx, key, found, seals)
    return found


def check_disks(ctx: Context, image: Image) -> None:
    """Raise HostUnfit if a disk of an image is not what was built."""
    try:
        publish.check_disks(ctx, image.key, snapshots(ctx, image), built(ctx, image.key))
    except InvalidSpec as error:
        raise _damaged(image.key, str(error)) from error


def _damaged(key: str, why: str) -> HostUnfit:
    return HostUnfit(
        f"the image {key} is damaged: {why}",
        hint=f"`lab image rm {key}`: it is built again when it is needed, or import it again",
    )


def find(ctx: Context, key: str) -> Image:
    """A ready image, as others need it; raises NotFound."""
    return described(ctx, key, built(ctx, key))


def described(ctx: Context, key: str, facts: manifest.BuiltImage) -> Image:
    """The image of that key and manifest, as others need it.

    Guests boot from their disk only where they must: firmware takes its seconds.
    """
    boot: DirectBoot | FirmwareBoot = FirmwareBoot()
    if ctx.hypervisor.capabilities().direct:
        boot = DirectBoot(facts.kernel, facts.initrd, facts.cmdline)
    return Image(key, facts.recipe, boot, engine(facts), tuple(facts.disks))


def engine(facts: manifest.BuiltImage) -> Engine:
    """The engine in an image."""
    return Engine(
        name=facts.engine,
        version=facts.engine_version,
        config=option_file(facts),
        config_path=facts.config,
        user=facts.user,
        uid=facts.uid,
        gid=facts.gid,
        log_directory=_LOG_VOLUME if "log" in facts.disks else _DATA_DIRECTORY,
        service=facts.service,
    )


def option_file(facts: manifest.BuiltImage) -> str:
    """The text of the engine's option file template."""
    if facts.option_file:
        return facts.option_file
    # built when manifests did not have it
    return (load(facts.recipe).directory / "my.cnf").read_text(encoding="utf-8")


def snapshots(ctx: Context, image: Image) -> dict[str, VolumeSnapshot]:
    """What a node's volumes are cloned from, by the volume's name; raises NotFound."""
    found = {}
    for disk in image.volumes:
        volume = VolumeName(image.owner, BASE, disk)
        base = [s for s in ctx.storage.snapshots(volume) if s.label == BASE]
        if not base:
            raise NotFound(f"the image {image.key} has lost {volume}", hint="`lab image rm` it")
        found[disk] = base[0]
    return found


def build(ctx: Context, recipe_name: str, *, rebuild: bool = False) -> ImageView:
    """Build an image now. ``rebuild``: again, with what the mirror offers today.

    ``recipe_name``: a recipe, or the engine that has just one, as ``mariadb:10.11``.
    Removes the recorded failure of its engine, so that it is used again where none is required.
    Raises Conflict when the image to be rebuilt is in use.
    """
    spec = spec_of(ctx, image_recipe(recipe_name))
    if rebuild:
        with build_lock(ctx, "image", spec.key):
            discard(ctx, spec.key)
            _build(ctx, spec)
    else:
        ensure(ctx, spec)
    failures.withdraw(ctx, spec.name)
    return image(ctx, spec.key)


def images(ctx: Context) -> list[ImageView]:
    """All images, also those being built."""
    captured = _in_snapshots(ctx)
    return [_view(ctx, record, captured) for record in ctx.store.images.all()]


def image(ctx: Context, key_or_recipe: str) -> ImageView:
    """One image, by key or by the recipe it was built from; raises NotFound."""
    return _view(ctx, named(ctx, key_or_recipe), _in_snapshots(ctx))


def remove(ctx: Context, key_or_recipe: str) -> None:
    """Remove an image; raises NotFound, and Conflict while something uses it."""
    record = named(ctx, key_or_recipe)
    with lock(ctx.home, "image", record.key, wait=False):
        discard(ctx, record.key)


def named(ctx: Context, key_or_recipe: str) -> ImageRecord:
    """The record of an image, by its key, or the latest of a recipe; raises NotFound."""
    records = ctx.store.images.all()
    exact = [r for r in records if r.key == key_or_recipe]
    of_recipe = [r for r in records if r.recipe == key_or_recipe and not r.dataset]
    found = exact or sorted(of_recipe, key=lambda r: r.created_at)[-1:]
    if not found:
        raise NotFound(f"there is no image {key_or_recipe!r}", hint="`lab image ls` lists them")
    return found[0]


def versions_of(ctx: Context, name: str) -> list[ImageRecord]:
    """The versions of a dataset, also those being made, the oldest first."""
    found = (record for record in ctx.store.images.all() if record.dataset == name)
    return sorted(found, key=lambda record: record.version)


def version_named(
    ctx: Context, text: str, *, removing: bool = False, recipe: str = "", engine: str = ""
) -> ImageRecord:
    """The version that ``shop@2`` means, or ``shop``: the latest; raises NotFound.

    ``removing``: also one that goes with its last lab, if its number is given. ``recipe``: only of
    that one, which requests call ``engine``.
    """
    name, version = parse_dataset(text)
    existing = [
        record
        for record in versions_of(ctx, name)
        if record.state == "ready" and (not record.removing or (removing and version))
    ]
    found = [record for record in existing if version in (0, record.version)]
    if not found:
        raise _no_version(ctx, name, version, existing)
    found = [record for record in found if recipe in ("", record.recipe)]
    if not found:
        raise NotFound(
            f"no version of the dataset {text} is on {engine}",
            hint=f"`lab dataset refresh {name} --engine {engine}` makes one of the same source",
        )
    return found[-1]


def _no_version(ctx: Context, name: str, version: int, there: Sequence[ImageRecord]) -> NotFound:
    if there and ctx.store.labs.suggests:
        known = ", ".join(f"{name}@{record.version}" for record in there)
        return NotFound(f"there is no dataset {f'{name}@{version}'!r}", hint=f"versions: {known}")
    if not ctx.store.labs.suggests:  # a token does not see other projects' datasets
        return NotFound(f"there is no dataset {name!r}")
    names = sorted({r.dataset for r in ctx.store.images.all() if r.dataset and r.state == "ready"})
    otherwise = "`lab dataset create` makes one"
    hint = did_you_mean(name, names, otherwise=otherwise)
    return NotFound(f"there is no dataset {name!r}", hint=hint)


def ready(ctx: Context, key: str) -> bool:
    """True if there is a whole image of that key."""
    record = ctx.store.images.find(key)
    if record is None or record.state != "ready":
        return False
    volume = VolumeName(Owner("image", key), BASE, "os")
    stored = any(s.label == BASE for s in ctx.storage.snapshots(volume))  # of all, or of none
    return stored and (ctx.home.image(key) / manifest.MANIFEST).exists()


def is_built(ctx: Context, key: str) -> bool:
    """Whether an image is ready; recreates a lost record, so the image's lock has to be held."""
    return ready(ctx, key) or _recorded_again(ctx, key)


def _recorded_again(ctx: Context, key: str) -> bool:
    """Record an image again whose record was lost: its manifest says that it was finished."""
    if ctx.store.images.find(key) is not None:
        return False
    try:
        facts, at = built(ctx, key), (ctx.home.image(key) / manifest.MANIFEST).stat().st_mtime
        base = snapshots(ctx, find(ctx, key))
        size = sum(ctx.storage.used(snapshot.volume) for snapshot in base.values())
    except (LabError, OSError):
        return False
    record = ImageRecord(key, facts.recipe, facts.engine, facts.engine_version, "ready", at, at)
    ctx.store.images.add(replace(record, size=size))
    ctx.progress.note("image", f"registered the image {key} again: its record was lost")
    return True


def _build(ctx: Context, spec: ImageSpec) -> None:
    """Build and publish; the image's lock is held. What a killed build left is removed first."""
    began, recipe, key = time.time(), spec.recipe, spec.key
    out = ctx.home.build(key)
    with making(ctx, new_record(key, recipe.name, recipe.engine)), Undo() as undo:
        undo.push(f"build files {out}", lambda: isolate.remove_tree(out))
        ctx.progress.note(
            "image", f"first use: building an image with {recipe.engine}, 1 to 3 minutes"
        )
        with ctx.progress.step("image", f"building the image {key}"):
            isolate.remove_tree(out)
            make_directory(out, REACHABLE)
            log = ctx.home.image_log(key)
            kinds = (CommandFailed, RecipeFailed)
            with failures.recorded(ctx, recipe, failures.UNBUILT, log, *kinds):
                made = ctx.build(recipe, out, layout=spec.layout, progress=ctx.progress, log=log)
            publish.publish(ctx, key, made, spec.profile, {})
        is_ready(ctx, key, made, time.time() - began)
        failures.withdraw(ctx, recipe.name)


def adopt(
    ctx: Context,
    record: ImageRecord,
    made: manifest.BuiltImage,
    profile: Profile,
    streams: Mapping[str, Path],
    *,
    build_seconds: float,
    files: Callable[[], object] = lambda: None,
) -> None:
    """Make an image of what was built elsewhere; the image's lock is held.

    ``streams``: files with a stream of this storage, by the name of the disk, for those of
    which ``made`` has no file. ``files`` writes further ones to its directory. Raises Conflict if
    there is one of this key and it is in use.
    """
    with making(ctx, record):
        publish.publish(ctx, record.key, made, profile, streams)
        files()
        is_ready(ctx, record.key, made, build_seconds)


def new_record(key: str, recipe: str, engine_: str) -> ImageRecord:
    """The record of an image that is about to be made."""
    now = time.time()
    return ImageRecord(key, recipe, engine_, "", "building", now, now)


@contextmanager
def making(ctx: Context, record: ImageRecord) -> Iterator[None]:
    """An image is made in the block, in place of what there was; nothing is left if it fails.

    Its lock is held.
    """
    key = record.key
    discard(ctx, key)
    ctx.store.images.add(record)
    with Undo() as undo:
        undo.push(f"image {key}", lambda: discard(ctx, key))
        yield
        undo.keep()


def is_ready(ctx: Context, key: str, made: manifest.BuiltImage, seconds: float) -> None:
    """Record that an image, which took as many seconds, can be used."""
    owner = Owner("image", key)
    size = sum(ctx.storage.used(VolumeName(owner, BASE, disk)) for disk in made.disks)
    ctx.store.images.update(
        key,
        state="ready",
        engine_version=made.engine_version,
        build_seconds=seconds,
        size=size,
    )


def discard(ctx: Context, key: str) -> None:
    """Remove an image and its record; its lock is held. Raises Conflict if it is in use."""
    users = _users(ctx, key, _in_snapshots(ctx))
    if users:
        raise Conflict(
            f"the image {key} is used by {', '.join(users)}",
            hint="`lab down` the labs, `lab snapshot rm` the snapshots, `lab template rm` the"
            " templates, `lab dataset rm` the datasets first",
        )
    release(ctx, Owner("image", key))
    if ctx.store.images.find(key) is not None:
        ctx.store.images.remove(key)


def _in_snapshots(ctx: Context) -> dict[str, list[CaptureRef]]:
    """The snapshots of labs whose nodes had an image then, by its key: an upgrade replaces it.

    By as much of their manifests as says so; one that is damaged is restored on the images of now.
    """
    found: dict[str, list[CaptureRef]] = {}
    for lab in ctx.store.labs.all():
        for label in ctx.home.captures(lab.name):
            ref, keys = CaptureRef(Owner("lab", lab.name), label), set[str]()
            with suppress(
                OSError, ValueError, RecursionError, TypeError, LookupError, AttributeError
            ):
                values = json.loads(ctx.home.manifest(ref).read_text(encoding="utf-8"))
                keys = {str(node.get("image", "")) for node in values["nodes"]}
            for key in keys:
                found.setdefault(key, []).append(ref)
    return found


def _users(ctx: Context, key: str, captured: Mapping[str, Sequence[CaptureRef]]) -> list[str]:
    """The labs that use an image, and snapshots with it of labs that no longer have it.

    ``captured``: of ``_in_snapshots``.
    """
    users = [f"lab {r.lab.name}" for r in ctx.store.labs_with_nodes() if key in r.images]
    users += [
        f"snapshot {ref.owner.name}@{ref.label}"
        for ref in captured.get(key, ())
        if f"lab {ref.owner.name}" not in users
    ]
    users += [f"template {r.key}" for r in ctx.store.templates.all() if key in r.images]
    return users + [
        f"dataset {r.dataset}@{r.version}" for r in ctx.store.images.all() if r.parent == key
    ]


def _view(
    ctx: Context, record: ImageRecord, captured: Mapping[str, Sequence[CaptureRef]]
) -> ImageView:
    return ImageView(
        key=record.key,
        recipe=record.recipe,
        engine=record.engine,
        engine_version=record.engine_version,
        state=record.state,
        size=record.size,
        created_at=record.created_at,
        build_seconds=record.build_seconds,
        used_by=tuple(_users(ctx, record.key, captured)),
        facts=_facts(ctx, record.key),
    )


def _facts(ctx: Context, key: str) -> dict[str, str]:
    log = ctx.home.image_log(key)
    return {"files": str(ctx.home.image(key)), "log": str(log) if log.exists() else ""}
