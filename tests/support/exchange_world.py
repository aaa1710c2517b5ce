"""Two installations on the fakes that exchange images and templates with real content."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from lab.config.profile import Layout, Profile
from lab.exchange.frames import FrameReader, FrameWriter, Version
from lab.fake import images
from lab.hypervisor import GuestChannel, GuestSpec, Hypervisor, Memory, MemoryImage, memory_of
from lab.imagebuild import manifest
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe
from lab.lifecycle.archives import export as exporting
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image
from lab.names import ArchiveKind, GuestName, Owner, VolumeName
from lab.paths import Home
from lab.progress import Progress
from lab.requests.archives import Destination, ExportArchive, ImportOptions
from lab.storage import Storage, VolumeSnapshot
from lab.storage.overwrite import GRAIN, overwrite
from lab.storage.qcow2 import Qcow2Storage
from lab.units import MIB
from lab.views.archives import ImportView
from tests.support.lifecycle_world import REQUEST, Hook, World, ignore


class TakesAnyDisk:
    """The fake hypervisor, for guests whose disks are qcow2 files."""

    def __init__(self, real: Hypervisor) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def memory(self) -> Memory:
        return cast("Memory", _RestoresAnyDisk(memory_of(self._real)))

    def start(self, guest: GuestSpec) -> None:
        self._real.start(_raw(guest))


class _RestoresAnyDisk:
    """The memory of ``TakesAnyDisk``."""

    def __init__(self, real: Memory) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def restore(self, guest: GuestSpec, memory: MemoryImage) -> None:
        self._real.restore(_raw(guest), memory)


class LeavesTemplatesAlone:
    """The fake hypervisor, whose guests of templates write nothing when they are personalised.

    Fake guests know no format of disks but their own, and would not find it on other hosts.
    """

    def __init__(self, real: Hypervisor) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def channel(self, guest: GuestName) -> GuestChannel:
        found = self._real.channel(guest)
        return cast("GuestChannel", _Unchanged(found)) if guest.startswith("lab-t.") else found


class _Unchanged:
    """The channel to a guest of ``LeavesTemplatesAlone``."""

    def __init__(self, real: GuestChannel) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def personalise(self, *_: object, **__: object) -> int:
        return 0


def _raw(guest: GuestSpec) -> GuestSpec:
    return replace(guest, disks=tuple(replace(disk, format="raw") for disk in guest.disks))


class WritingGuests:
    """A storage before whose snapshots the guests of templates write to their disks."""

    def __init__(self, real: Storage) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        for number, name in enumerate(volumes):
            if name.owner.kind == "template":
                chance = random.Random(number)
                news = [
                    (GRAIN, bytes(GRAIN)),
                    (MIB, chance.randbytes(5 * GRAIN)),
                    (7 * MIB, chance.randbytes(GRAIN)),
                ]
                overwrite(self._real.get(name), news)
        return self._real.snapshot(volumes, label)


@dataclass
class Build:
    """Builds the fake image with something on its disks; other ``seed``, other content."""

    seed: int = 1

    def __call__(
        self, recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
    ) -> BuiltImage:
        built = images.build(recipe, out, layout=layout, progress=progress, log=log)
        chance = random.Random(self.seed)
        for disk in built.disks.values():
            with disk.open("r+b") as file:
                file.write(chance.randbytes(2 * MIB + 5))
        built.kernel.write_bytes(b"a kernel")
        files = (*built.disks.values(), built.kernel, built.initrd)
        return replace(built, digests={path.name: manifest.digest(path) for path in files})


_BLOCK = 64 * 1024

Content = tuple[int, tuple[tuple[int, bytes], ...]]
"""Of a volume: its size, and the blocks that are not zeros, with their numbers."""


@dataclass
class Side(World):
    """An installation that keeps its volumes on ``driver``, fake or qcow2, or on ``store``.

    ``forms``: the guests of its templates write to their disks.
    """

    driver: str = "fake"
    store: Callable[[Home], Storage] | None = None
    forms: bool = False
    layout: Layout = "single"
    profiles: dict[str, Profile] = field(default_factory=dict)
    build: Build = field(default_factory=Build)

    @property
    def settings(self) -> Any:
        return replace(super().settings, layout=self.layout, profiles=self.profiles, space_floor=0)

    @contextmanager
    def open(self, hook: Hook = ignore) -> Iterator[Context]:
        with super().open(hook) as ctx:
            storage: Storage = ctx.storage
            hypervisor = ctx.hypervisor
            if self.forms or self.driver == "qcow2":
                hypervisor = cast("Hypervisor", LeavesTemplatesAlone(hypervisor))
            if self.driver == "qcow2":
                storage = Qcow2Storage(self.home.storage, self.home.id)
                hypervisor = cast("Hypervisor", TakesAnyDisk(hypervisor))
            if self.store:
                storage = self.store(self.home)
            if self.forms:
                storage = cast("Storage", WritingGuests(storage))
            yield replace(ctx, storage=storage, hypervisor=hypervisor, build=self.build)

    def make_image(self) -> str:
        """Build the image; its key."""
        with self.open() as ctx:
            return image.build(ctx, "mariadb").key

    def make_template(self) -> str:
        """Make image and template; the template's key."""
        with replace(self, forms=True).open() as ctx:
            return template.build(ctx, REQUEST).key

    def exported(
        self, kind: Literal["image", "template", "dataset"], key: str, **options: Any
    ) -> bytes:
        """An archive, by way of a file."""
        path = self.root / "exported.lab"
        path.unlink(missing_ok=True)
        to = Destination(str(path), native=options.pop("native", False))
        with self.open() as ctx:
            exporting.export(ctx, ExportArchive(kind=kind, which=key, to=to, **options))
        data = path.read_bytes()
        path.unlink()
        return data

    def imported(self, kind: ArchiveKind, archive: bytes, **options: Any) -> ImportView:
        """Import an archive."""
        with self.open() as ctx:
            how = import_options(options)
            return import_archive(ctx, kind, io.BytesIO(archive), how, **options)

    def disks(self, owner: Owner) -> dict[str, Content]:
        """What the snapshots of an image or template hold, by node and volume."""
        found = {}
        with self.open() as ctx:
            for volume in ctx.storage.volumes():
                if volume.name.owner == owner:
                    (snapshot,) = ctx.storage.snapshots(volume.name)
                    found[f"{volume.name.node}/{volume.name.volume}"] = read(ctx.storage, snapshot)
        return found

    def files(self, owner: Owner) -> dict[str, str]:
        """Digests of the files of an image or template but for its manifest."""
        return {
            path.name: manifests.digest(path)
            for path in self.home.directory(owner).iterdir()
            if path.is_file() and path.name != "manifest.json"
        }


def import_options(given: dict[str, Any]) -> ImportOptions:
    """Those of ``given``, which are removed from it."""
    names = [one.name for one in fields(ImportOptions) if one.name in given]
    return ImportOptions(**{name: given.pop(name) for name in names})


def read(storage: Storage, snapshot: VolumeSnapshot) -> Content:
    """The content of a snapshot, which may have gigabytes of zeros."""
    blocks: dict[int, bytearray] = {}
    with storage.read(snapshot) as content:
        for offset, data in content.extents:
            for at in range(0, len(data), _BLOCK):
                piece = data[at : at + _BLOCK]
                number, start = divmod(offset + at, _BLOCK)
                for block, where, part in (
                    (number, start, piece[: _BLOCK - start]),
                    (number + 1, 0, piece[_BLOCK - start :]),
                ):
                    if part.strip(b"\0"):
                        found = blocks.setdefault(block, bytearray(_BLOCK))
                        found[where : where + len(part)] = part
    return content.size, tuple((number, bytes(blocks[number])) for number in sorted(blocks))


def rewritten(archive: bytes, old: bytes, new: bytes, *, version: Version | None = None) -> bytes:
    """The archive with something else in its header, and all checksums right.

    ``version``: of the format, if that is another one as well.
    """
    reader, to = FrameReader(io.BytesIO(archive)), io.BytesIO()
    writer = FrameWriter(to, version or reader.version)
    while True:
        kind, payload, digest = reader.get()
        if kind == b"D":
            offset, data = reader.split(payload)
            writer.put_data(offset, data, digest)
        else:
            changed = payload.replace(old, new) if kind == b"H" else payload
            assert kind != b"H" or changed != payload
            writer.put(kind, changed)
        if kind == b"Z":
            return to.getvalue()


def as_it_was(side: Side) -> set[str]:
    """What is there besides the logs of builds."""
    return {name for name in side.there() if not name.startswith("logs/")}
