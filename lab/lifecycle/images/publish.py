"""Making an image of what a build left, or of what an archive brought."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lab.config.profile import Profile
from lab.errors import Conflict, HostUnfit, InvalidSpec
from lab.imagebuild import manifest
from lab.lifecycle.core.context import Context
from lab.locks.named import lock
from lab.names import Owner, VolumeName
from lab.paths import sync, writing
from lab.state.records import ResourceKind
from lab.storage import VolumeSnapshot
from lab.values import dataclass

BASE = "base"
"""The node and the snapshot label of an image's volumes."""


def publish(
    ctx: Context,
    key: str,
    built: manifest.BuiltImage,
    profile: Profile,
    streams: Mapping[str, Path],
) -> None:
    """Make volumes and files of ``built``, which is used up; the manifest comes last.

    ``streams``: files with a stream of the storage, by the name of the disk, for those of
    which ``built`` has no file. What was made stays if it fails: the caller releases it.
    """
    owner = Owner("image", key)
    volumes = {name: VolumeName(owner, BASE, name) for name in built.disks}
    things: list[tuple[ResourceKind, str]] = [("volume", str(v)) for v in volumes.values()]
    intent = ctx.store.resources.intend_all(owner, things)
    tags = {"owner": str(owner), "node": BASE}
    received = []
    for name, file in streams.items():
        with file.open("rb") as source:
            received.append(ctx.storage.receive(volumes[name], source, tags))
        _check_content(ctx, received[-1], built.digests[built.disks[name].name])
    raw = {name: disk for name, disk in built.disks.items() if name not in streams}
    for name, disk in raw.items():
        ctx.storage.import_raw(volumes[name], disk, tags, profile=profile.volume(name))
    if raw:
        received += ctx.storage.snapshot([volumes[name] for name in raw], BASE)
    ctx.storage.persist(received)
    ctx.store.resources.made(*intent)
    directory = ctx.home.create_directory(owner)
    seals = {snapshot.volume.volume: ctx.storage.seal(snapshot) for snapshot in received}
    for what, file in (("kernel", built.kernel), ("initrd", built.initrd)):
        seals[what] = manifest.seal(_move(file, directory / file.name))
    # The manifest comes last: without it the image is not used. What it names survives a power
    # loss from here on, so that only what somebody wrote to need ever be read again.
    _move(manifest.write(replace(built, seals=seals)), directory / manifest.MANIFEST)
    sync(directory.parent)


@dataclass(frozen=True)
class Disk:
    """A snapshot of an image's disk, and the digest of what it holds."""

    snapshot: VolumeSnapshot
    digest: str


def derive(
    ctx: Context, key: str, base: manifest.BuiltImage, made: Sequence[Disk] = ()
) -> manifest.BuiltImage:
    """Make an image of disks that began as those of ``base``, and were written to since.

    Nobody writes to them any more. ``made``: their snapshots, if there are some. The manifest,
    which is returned, comes last. What was made stays if it fails: the caller releases it.
    """
    owner = Owner("image", key)
    volumes = [VolumeName(owner, BASE, name) for name in base.disks]
    made = made or [Disk(one, digest_of(ctx, one)) for one in ctx.storage.snapshot(volumes, BASE)]
    ctx.storage.persist([disk.snapshot for disk in made])
    named = {disk.snapshot.volume.volume: disk for disk in made}
    digests = {base.disks[name].name: disk.digest for name, disk in named.items()}
    seals = {name: ctx.storage.seal(disk.snapshot) for name, disk in named.items()}
    directory = ctx.home.create_directory(owner)
    kernel = _copy(base.kernel, directory / base.kernel.name)
    initrd = _copy(base.initrd, directory / base.initrd.name)
    seals |= {"kernel": manifest.seal(kernel), "initrd": manifest.seal(initrd)}
    disks = {name: directory / disk.name for name, disk in base.disks.items()}
    result = replace(
        base,
        disks=disks,
        kernel=kernel,
        initrd=initrd,
        digests={**base.digests, **digests},
        seals=seals,
    )
    draft = manifest.write(result)
    draft.chmod(0o644)
    sync(draft, directory, directory.parent)
    return result


def check_disks(
    ctx: Context, key: str, snapshots: Mapping[str, VolumeSnapshot], built: manifest.BuiltImage
) -> None:
    """Raise InvalidSpec unless an image's disks are what was built.

    ``snapshots``: by the names of the disks. One is read only if its seal differs.
    """
    seals = {}
    for name, snapshot in snapshots.items():
        digest = built.digests.get(built.disks[name].name)
        if name in built.seals and digest:
            seals[name] = ctx.storage.seal(snapshot)  # before it is read, as in manifest.check
            if built.seals[name] != seals[name]:
                _check_content(ctx, snapshot, digest)
    reseal(ctx, key, built, seals)


def reseal(ctx: Context, key: str, built: manifest.BuiltImage, seals: Mapping[str, str]) -> None:
    """Record ``seals`` of files that were read and are what was built: they are not read again.

    Nothing if they are recorded. It is left to the next check while another command makes or
    removes the image, and where the manifest cannot be written.
    """
    if seals.items() <= built.seals.items():
        return
    path = ctx.home.image(key) / manifest.MANIFEST
    with (
        suppress(Conflict, HostUnfit, InvalidSpec, OSError),
        lock(ctx.home, "image", key, shared=True, wait=False),
        tempfile.TemporaryDirectory(dir=path.parent) as work,
    ):
        published = manifest.read(path.parent)
        if replace(published, seals={}) != replace(built, seals={}):
            return  # it was made again
        sealed = replace(published, seals={**published.seals, **seals})
        draft = manifest.write(replace(sealed, kernel=Path(work) / built.kernel.name))
        shutil.copystat(path, draft)
        sync(draft)
        draft.replace(path)


def _check_content(ctx: Context, snapshot: VolumeSnapshot, digest: str) -> None:
    """Raise InvalidSpec unless that is what ``snapshot`` holds; reads all of it."""
    if snapshot.label != BASE or digest_of(ctx, snapshot) != digest:
        raise InvalidSpec(
            f"{snapshot.volume} does not match the image's manifest", hint="export it again"
        )


def digest_of(ctx: Context, snapshot: VolumeSnapshot) -> str:
    """The digest of the disk of ``snapshot``, as a manifest has it; reads all of the disk."""
    with ctx.storage.read(snapshot) as content:
        return manifest.digest_extents(content.size, content.extents)


def _copy(source: Path, to: Path) -> Path:
    """Copy a file to where everybody may read it, on stable storage."""
    with writing(to):
        shutil.copyfile(source, to)
        to.chmod(0o644)
        sync(to)
    return to


def _move(source: Path, to: Path) -> Path:
    """Move a file to where everybody may read it, on stable storage."""
    with writing(to):
        source.chmod(0o644)
        shutil.move(source, to)
        sync(to, to.parent)
    return to
