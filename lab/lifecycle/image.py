"""Images: built once from a recipe, published in one step, cloned by everything else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images import isolate, manifest
from images.key import image_key
from images.recipe import Recipe, load
from lab.blueprints import Engine
from lab.errors import Conflict, InvalidSpec, NotFound
from lab.hypervisor import DirectBoot
from lab.lifecycle.context import Context
from lab.lifecycle.hold import hold
from lab.lifecycle.nodes import Image
from lab.lifecycle.remove import release
from lab.lifecycle.views import ImageView
from lab.locks import lock
from lab.names import Owner, VolumeName
from lab.paths import REACHABLE, make_directory, writing
from lab.profile import VOLUMES, Layout, Profile
from lab.state.records import ImageRecord, ResourceKind
from lab.storage import VolumeSnapshot

BASE = "base"
"""The node and the snapshot label of an image's volumes."""

_DATA_DIRECTORY = "/var/lib/mysql"
_LOG_VOLUME = "/var/lib/mysqllog"
"""Where guests mount their data and log volumes (images/guest/usr/lib/lab/boot)."""


def key_of(recipe: Recipe, layout: Layout, profile: Profile) -> str:
    """The key of the image that ``recipe`` makes here: its name and content key.

    Of the profile it depends on the block sizes, which are fixed when it is imported.
    """
    volumes = {name: profile.volume(name).block_size for name in VOLUMES[layout]}
    return f"{recipe.name}-{image_key(recipe, volumes=volumes)}"


def ensure(ctx: Context, recipe_name: str, profile: Profile) -> Image:
    """The image of a recipe, built first if need be; another process's build is waited for.

    Raises InvalidSpec for an unknown recipe, HostUnfit or CommandFailed if the build fails.
    """
    recipe = load(recipe_name)
    key = key_of(recipe, ctx.settings.layout, profile)
    if not _ready(ctx, key):
        with hold(ctx, "image", key):
            if not _ready(ctx, key) and not _adopt(ctx, recipe, key):
                _build(ctx, recipe, key, profile)
    return find(ctx, recipe, key)


@contextmanager
def using(ctx: Context, recipe_name: str, profile: Profile) -> Iterator[Image]:
    """The image of a recipe, as ``ensure`` gives it; it is kept from removal in the block."""
    recipe = load(recipe_name)
    key = key_of(recipe, ctx.settings.layout, profile)
    while True:
        with hold(ctx, "image", key, shared=True):
            if _ready(ctx, key):
                yield find(ctx, recipe, key)
                return
        ensure(ctx, recipe_name, profile)


def find(ctx: Context, recipe: Recipe, key: str) -> Image:
    """A ready image, as others need it; raises NotFound."""
    try:
        built = manifest.read(ctx.home.image(key))
    except InvalidSpec as error:
        raise NotFound(f"the image {key} has lost its files", hint="`lab image rm` it") from error
    engine = Engine(
        name=recipe.engine,
        version=built.engine_version,
        config=(recipe.directory / "my.cnf").read_text(encoding="utf-8"),
        config_path=built.config,
        user=built.user,
        uid=built.uid,
        gid=built.gid,
        log_directory=_LOG_VOLUME if "log" in built.disks else _DATA_DIRECTORY,
    )
    boot = DirectBoot(built.kernel, built.initrd, built.cmdline)
    return Image(key, recipe.name, boot, engine, tuple(built.disks))


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

    Raises Conflict when the image to be rebuilt is in use.
    """
    recipe, profile = load(recipe_name), ctx.settings.profile_of("")
    key = key_of(recipe, ctx.settings.layout, profile)
    if rebuild:
        with hold(ctx, "image", key):
            discard(ctx, key)
            _build(ctx, recipe, key, profile)
    else:
        ensure(ctx, recipe_name, profile)
    return image(ctx, key)


def images(ctx: Context) -> list[ImageView]:
    """All images, also those being built."""
    return [_view(ctx, record) for record in ctx.store.images.all()]


def image(ctx: Context, key_or_recipe: str) -> ImageView:
    """One image, by key or by the recipe it was built from; raises NotFound."""
    return _view(ctx, _record(ctx, key_or_recipe))


def remove(ctx: Context, key_or_recipe: str) -> None:
    """Remove an image; raises NotFound, and Conflict while templates or labs use it."""
    record = _record(ctx, key_or_recipe)
    with lock(ctx.home, "image", record.key, wait=False):
        discard(ctx, record.key)


def _record(ctx: Context, key_or_recipe: str) -> ImageRecord:
    records = ctx.store.images.all()
    exact = [r for r in records if r.key == key_or_recipe]
    named = [r for r in records if r.recipe == key_or_recipe]
    found = exact or sorted(named, key=lambda r: r.created_at)[-1:]
    if not found:
        raise NotFound(f"there is no image {key_or_recipe!r}", hint="`lab image ls` lists them")
    return found[0]


def _ready(ctx: Context, key: str) -> bool:
    record = ctx.store.images.find(key)
    if record is None or record.state != "ready":
        return False
    volume = VolumeName(Owner("image", key), BASE, "os")
    there = any(s.label == BASE for s in ctx.storage.snapshots(volume))  # of all, or of none
    return there and (ctx.home.image(key) / manifest.MANIFEST).exists()


def _adopt(ctx: Context, recipe: Recipe, key: str) -> bool:
    """Record an image again whose record was lost: its manifest says that it was finished."""
    if ctx.store.images.find(key) is not None:
        return False
    directory = ctx.home.image(key)
    try:
        built, at = manifest.read(directory), (directory / manifest.MANIFEST).stat().st_mtime
        base = snapshots(ctx, find(ctx, recipe, key))
        size = sum(ctx.storage.used(snapshot.volume) for snapshot in base.values())
    except (InvalidSpec, NotFound, OSError):
        return False
    ctx.store.images.add(
        ImageRecord(
            key, recipe.name, recipe.engine, built.engine_version, "ready", at, at, size=size
        )
    )
    ctx.progress.note("image", f"the image {key} was not recorded; it is again")
    return True


def _build(ctx: Context, recipe: Recipe, key: str, profile: Profile) -> None:
    """Build and publish; the image's lock is held. What a killed build left is removed first."""
    owner = Owner("image", key)
    began = time.time()
    discard(ctx, key)
    record = ImageRecord(key, recipe.name, recipe.engine, "", "building", began, began)
    ctx.store.images.add(record)
    out = ctx.home.build(key)
    try:
        with ctx.progress.step("image", f"building the image {key}"):
            isolate.remove_tree(out)
            make_directory(out, REACHABLE)
            log = ctx.home.image_log(key)
            layout = ctx.settings.layout
            built = ctx.build(recipe, out, layout=layout, progress=ctx.progress, log=log)
            _publish(ctx, owner, built, profile)
        size = sum(ctx.storage.used(VolumeName(owner, BASE, disk)) for disk in built.disks)
        ctx.store.images.update(
            key,
            state="ready",
            engine_version=built.engine_version,
            build_seconds=time.time() - began,
            size=size,
        )
    except BaseException:
        discard(ctx, key)
        raise
    finally:
        isolate.remove_tree(out)


def _publish(ctx: Context, owner: Owner, built: manifest.BuiltImage, profile: Profile) -> None:
    volumes = {name: VolumeName(owner, BASE, name) for name in built.disks}
    things: list[tuple[ResourceKind, str]] = [("volume", str(v)) for v in volumes.values()]
    intent = ctx.store.resources.intend_all(owner, things)
    tags = {"owner": str(owner), "node": BASE}
    for name, disk in built.disks.items():
        ctx.storage.import_raw(volumes[name], disk, tags, profile=profile.volume(name))
    ctx.storage.persist(ctx.storage.snapshot(list(volumes.values()), BASE))
    ctx.store.resources.made(*intent)
    directory = ctx.home.create_directory(owner)
    for file in (built.kernel, built.initrd):
        _move(file, directory / file.name, mode=0o644)
    # The manifest comes last: without it the image is not used.
    written = manifest.write(built)
    _move(written, directory / manifest.MANIFEST, mode=0o644)


def _move(source: Path, to: Path, *, mode: int) -> None:
    with writing(to):
        source.chmod(mode)
        shutil.move(source, to)


def discard(ctx: Context, key: str) -> None:
    """Remove an image and its record; its lock is held. Raises Conflict if it is in use."""
    users = _users(ctx, key)
    if users:
        raise Conflict(
            f"the image {key} is used by {', '.join(users)}",
            hint="`lab down` the labs and `lab template rm` the templates first",
        )
    release(ctx, Owner("image", key))
    if ctx.store.images.find(key) is not None:
        ctx.store.images.remove(key)


def _users(ctx: Context, key: str) -> list[str]:
    labs = [f"lab {r.name}" for r in ctx.store.labs.all() if r.image == key]
    return labs + [f"template {r.key}" for r in ctx.store.templates.all() if r.image == key]


def _view(ctx: Context, record: ImageRecord) -> ImageView:
    return ImageView(
        key=record.key,
        recipe=record.recipe,
        engine=record.engine,
        engine_version=record.engine_version,
        state=record.state,
        size=record.size,
        created_at=record.created_at,
        build_seconds=record.build_seconds,
        used_by=tuple(_users(ctx, record.key)),
        facts=_facts(ctx, record.key),
    )


def _facts(ctx: Context, key: str) -> dict[str, str]:
    log = ctx.home.image_log(key)
    return {"files": str(ctx.home.image(key)), "log": str(log) if log.exists() else ""}
