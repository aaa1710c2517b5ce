"""The directory of file volumes: the paths of its files, their modes, how volumes appear.

::

    root/labs/pxc/n1/os/            one directory per volume, its path the volume's name
      volume.json                   tags, size, origin; never changes
      disk.qcow2                    what the guest opens
      spare.qcow2                   what the guest of a standby opens, if there is one
      base.raw                      below it, if the volume was imported; never changes
      snapshots/<label>.qcow2       frozen, never changes
      snapshots/<label>.json        its size, order, and the batch that made it
    root/.scratch/<token>/          work of a running process, or leftovers of a dead one

A volume is published by renaming a complete scratch directory, and removed by the reverse, so no
intermediate state is ever visible.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit, InvalidSpec
from lab.names import VolumeName
from lab.paths import entries, sync
from lab.storage import Space, clone_lock, rules
from lab.values import dataclass

DISK, SPARE, BASE = "disk.qcow2", "spare.qcow2", "base.raw"
RECORD, SNAPSHOTS = "volume.json", "snapshots"
_KINDS = ("images", "labs", "templates")
_WRITABLE, _FROZEN, _OURS = 0o600, 0o440, 0o700


@dataclass(frozen=True)
class VolumeRecord:
    """The content of volume.json. ``origin``: the snapshot it is a clone of, as volume@label."""

    home: str
    size: int
    tags: dict[str, str]
    origin: str = ""


@dataclass(frozen=True)
class SnapshotRecord:
    """The content of a snapshot's JSON; ``order`` increases within a volume. See ``batch.py``."""

    size: int
    order: int
    batch: str = ""


class VolumeDirectory:
    """Paths, records and publication of volumes below ``root``.

    ``owner`` is the user and group (ids) that disks are given to, None to keep this process's.
    """

    def __init__(self, root: Path, owner: tuple[int, int] | None) -> None:
        self.root = root.absolute()
        self.scratches = self.root / ".scratch"
        self._owner = owner
        # another QEMU user needs search permission only
        self._mode = 0o711 if owner else 0o750

    def place(self, volume: VolumeName) -> Path:
        """The directory of ``volume``."""
        return self.root / str(volume)

    def snapshot_files(self, volume: VolumeName, label: str) -> tuple[Path, Path]:
        """The paths of a snapshot's disk and record, which may not exist."""
        folder = self.place(volume) / SNAPSHOTS
        return folder / f"{label}.qcow2", folder / f"{label}.json"

    def record(self, volume: VolumeName) -> VolumeRecord | None:
        """The record of ``volume``; None if it is absent or cannot be read."""
        fields = _read_json(self.place(volume) / RECORD)
        with contextlib.suppress(TypeError):
            return VolumeRecord(**fields) if fields else None
        return None

    def snapshot_record(self, volume: VolumeName, label: str) -> SnapshotRecord | None:
        """The record of a snapshot, published or not; None if it is absent or incomplete."""
        fields = _read_json(self.snapshot_files(volume, label)[1])
        with contextlib.suppress(TypeError):
            return SnapshotRecord(**fields) if fields else None
        return None

    def names(self) -> Iterator[VolumeName]:
        """All volumes below ``root``, of any installation."""
        for kind in _KINDS:
            for path in entries(self.root / kind, 3):
                with contextlib.suppress(InvalidSpec):
                    yield VolumeName.parse(path.relative_to(self.root).as_posix())

    @contextlib.contextmanager
    def held(self, volume: VolumeName, *, shared: bool = False) -> Iterator[None]:
        """Lock ``volume``, exclusively or shared (it is not removed); raises NotFound.

        Locks of several volumes are acquired in the order of their names.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(clone_lock.hold(self.place(volume), shared=shared))
            except FileNotFoundError:
                raise rules.absent(volume) from None
            yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A scratch directory; see ``clone_lock.scratch``."""
        self._make_folders(self.scratches)
        with clone_lock.scratch(self.scratches) as work:
            yield work

    def publish(
        self, work: Path, volume: VolumeName, record: VolumeRecord, *, durable: bool = False
    ) -> None:
        """Publish the complete directory ``work`` as the new ``volume``; raises Conflict.

        ``durable``: wait until it is on stable storage.
        """
        write_json(work / RECORD, asdict(record))
        work.chmod(self._mode)
        if durable:
            sync(*work.rglob("*"), work)
        self._move_in(work, volume)
        if durable:
            self.sync_folders(volume)

    def sync_folders(self, volume: VolumeName) -> None:
        """Wait until the folders from ``volume`` up to the root are on stable storage."""
        place = self.place(volume)
        kind = place.parents[2]
        sync(place, *place.parents[:2], kind, self.root, self.scratches)

    def _move_in(self, work: Path, volume: VolumeName) -> None:
        place = self.place(volume)
        while True:
            self._make_folders(place.parent)
            try:
                work.rename(place)
            except FileNotFoundError:
                if not work.exists():
                    raise
                continue  # another process removed the empty directories
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise rules.exists(volume) from None
                raise
            return

    def discard(self, volume: VolumeName) -> None:
        """Remove ``volume``, locked by the caller: renamed to scratch first, then deleted."""
        place = self.place(volume)
        self._make_folders(self.scratches)
        trash = self.scratches / secrets.token_hex(8)
        place.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)  # sweep removes the rest
        self.tidy(place.parent)

    def tidy(self, folder: Path) -> None:
        """Remove ``folder`` and those above it as far as they are empty."""
        with contextlib.suppress(OSError):
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    def tidy_all(self) -> None:
        """Remove all empty folders that killed calls left."""
        for kind in _KINDS:
            for depth in (2, 1):
                for folder in entries(self.root / kind, depth):
                    self.tidy(folder)

    def give(self, disk: Path) -> None:
        """Let only the user who runs QEMU read and write a disk."""
        if self._owner:
            os.chown(disk, *self._owner)
        disk.chmod(_WRITABLE)

    def freeze(self, disk: Path) -> None:
        """Let the user who runs QEMU only read a disk."""
        if self._owner:
            os.chown(disk, os.geteuid(), self._owner[1])
        disk.chmod(_FROZEN)

    def add_snapshots(self, volume: VolumeName) -> None:
        """Make the directory of a volume's snapshots; QEMU's user cannot enter those of labs."""
        folder = self.place(volume) / SNAPSHOTS
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_OURS)
            folder.chmod(_OURS if volume.owner.kind == "lab" else self._mode)

    def show_snapshots(self, volume: VolumeName) -> None:
        """Let the user who runs QEMU open the snapshots of a volume, for clones of them."""
        if volume.owner.kind == "lab":
            (self.place(volume) / SNAPSHOTS).chmod(self._mode)

    def add_folder(self, folder: Path) -> None:
        """Make ``folder`` in an existing directory; no error if it exists."""
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            folder.chmod(self._mode)

    def space(self) -> Space:
        """Free and total bytes of the file system that has ``root``, or will have it."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        status = os.statvfs(folder)
        return Space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)

    @contextlib.contextmanager
    def teaching(self, needs: int) -> Iterator[None]:
        """Turn ENOSPC and missing permission into HostUnfit; ``needs`` in bytes, for the text."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise rules.no_space(str(self.root), needs, self.space().free) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise HostUnfit(
                    f"no permission to write in {self.root}: {error}",
                    hint="run as the user who owns it, or choose another storage root",
                ) from error
            raise

    def _make_folders(self, folder: Path) -> None:
        # other processes may remove empty directories between any two steps
        while not folder.is_dir():
            self._make_folders(folder.parent)
            with contextlib.suppress(FileNotFoundError):
                self.add_folder(folder)


def write_json(path: Path, fields: object) -> None:
    """Write a small new file."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(fields, file)
    path.chmod(_WRITABLE)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        fields = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
