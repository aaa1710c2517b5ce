"""The default storage: files, where every volume is a qcow2 overlay.

A clone is an empty overlay on a frozen file. A snapshot is a copy of the active overlay, so
the file that a running guest has open is never switched; that is cheap only because overlays
hold no more than what was written since the clone (a few MB); larger ones take the time of a copy
(file systems such as XFS and Btrfs share the blocks instead).
An imported disk becomes a raw base that never changes below an overlay like any other.

Guests open ``disk.qcow2`` with cache=none. QEMU writes its cached metadata when a guest is
paused, so the copy is consistent.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lab import host
from lab.config.profile import VolumeProfile
from lab.errors import Conflict, InvalidSpec, NotFound
from lab.names import VolumeName
from lab.paths import sync
from lab.storage import (
    EXTENT,
    PLAIN,
    Content,
    Source,
    Space,
    Tags,
    Volume,
    VolumeSnapshot,
    batch,
    clone_lock,
    rules,
    sparse,
)
from lab.storage.qcow2_format import Backing, read_header, write_empty
from lab.storage.volume_directory import (
    BASE,
    DISK,
    RECORD,
    SNAPSHOTS,
    SPARE,
    SnapshotRecord,
    VolumeDirectory,
    VolumeRecord,
    write_json,
)

_SMALL = 1 << 16  # bytes that an empty overlay and its record take, rounded up


class Qcow2Storage:
    """Volumes as files below ``root``; the contract is that of ``lab.storage.Storage``.

    ``home`` is the tag of this installation's volumes: those of others count as absent, except
    that their names are taken. ``owner``: the user and group (ids) that QEMU runs as, None for
    those of this process. That user needs search permission on ``root`` and the directories above
    it. ``floor``: bytes that copies leave free.
    """

    name = "qcow2"
    native = False

    def __init__(
        self, root: Path, home: str, owner: tuple[int, int] | None = None, *, floor: int = 0
    ) -> None:
        self._directory = VolumeDirectory(root, owner)
        self._home = home
        self._floor = floor

    def create(
        self, volume: VolumeName, size: int, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A new empty overlay without a backing file."""
        del profile  # files have no such settings
        record = VolumeRecord(self._home, rules.check_size(size), rules.check_tags(tags))
        with self._new(volume, _SMALL) as work:
            self._write_overlay(work, size, None)
            self._directory.publish(work, volume, record)
        return self._volume(volume, record)

    def import_raw(
        self, volume: VolumeName, source: Path, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A raw base and an overlay on it, both on stable storage when this returns.

        ``source`` is moved, not copied, if it is on the same file system and has no other hard
        link. Raises InvalidSpec if it is not a regular file.
        """
        del profile  # files have no such settings
        size = _raw_size(source)
        record = VolumeRecord(self._home, size, rules.check_tags(tags))
        with self._new(volume, sparse.allocated(source)) as work:
            sparse.take(source, work / BASE)
            self._directory.freeze(work / BASE)
            self._write_overlay(work, size, self._base(volume))
            self._directory.publish(work, volume, record, durable=True)
            source.unlink(missing_ok=True)
        return self._volume(volume, record)

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        """Copies of the active overlays; all holes are kept.

        Raises HostUnfit before anything is copied if the copy of a volume would not fit, and
        Conflict if the backing file of an overlay was changed.
        """
        rules.check_label(label)
        with contextlib.ExitStack() as stack:
            records = {n: stack.enter_context(self._held(n)) for n in sorted(set(volumes))}
            sizes = {name: record.size for name, record in records.items()}
            for name in sizes:
                if batch.visible(self._directory, name, label):
                    raise rules.has_snapshot(name, label)
            needs = sum(sparse.allocated(self._directory.place(name) / DISK) for name in sizes)
            stack.enter_context(self._directory.teaching(needs + self._floor))
            work = stack.enter_context(self._directory.scratch())
            for index, name in enumerate(sizes):
                copy = work / str(index)
                sparse.copy(self._directory.place(name) / DISK, copy, floor=self._floor)
                self._check_backing(name, records[name], copy)
                self._directory.freeze(copy)
            batch.publish(self._directory, work, label, sizes)
        return [VolumeSnapshot(name, label, sizes[name]) for name in volumes]

    def persist(self, snapshots: Sequence[VolumeSnapshot]) -> None:
        """Sync the snapshots' files and all directories above them."""
        for snapshot in snapshots:
            with self._held(snapshot.volume, shared=True):
                self._visible(snapshot.volume, snapshot.label)
                place = self._directory.place(snapshot.volume)
                files = self._directory.snapshot_files(snapshot.volume, snapshot.label)
                sync(*files, place / SNAPSHOTS, place / RECORD)
                self._directory.sync_folders(snapshot.volume)

    def seal(self, snapshot: VolumeSnapshot) -> str:
        """The seal of the snapshot's file and of its backing files."""
        from lab.storage.flatten import seal

        with self._held(snapshot.volume, shared=True):
            self._visible(snapshot.volume, snapshot.label)
            return seal(self._directory.snapshot_files(snapshot.volume, snapshot.label)[0])

    def snapshots(self, volume: VolumeName) -> list[VolumeSnapshot]:
        """See ``Storage``; snapshots of other installations' volumes count as absent."""
        if self._ours(volume) is None:
            return []
        found = batch.labels(self._directory, volume)
        return [VolumeSnapshot(volume, label, record.size) for label, record in found]

    def labels(self) -> dict[VolumeName, list[str]]:
        """See ``Storage``."""
        ours = (name for name in self._directory.names() if self._ours(name))
        return {name: [label for label, _ in batch.labels(self._directory, name)] for name in ours}

    def clone(
        self,
        origin: VolumeSnapshot,
        volume: VolumeName,
        tags: Tags,
        *,
        size: int = 0,
        profile: VolumeProfile = PLAIN,
    ) -> Volume:
        """A new empty overlay on the snapshot's file, without a subprocess and without a sync."""
        del profile  # files have no such settings
        tags = rules.check_tags(tags)
        # locked: destroying the origin waits, and then finds the new clone
        with self._held(origin.volume, shared=True):
            found = self._visible(origin.volume, origin.label)
            size = rules.clone_size(origin.volume, found.size, size)
            self._directory.show_snapshots(origin.volume)
            record = VolumeRecord(self._home, size, tags, f"{origin.volume}@{origin.label}")
            with self._new(volume, _SMALL) as work:
                self._write_overlay(work, size, self._frozen(origin.volume, origin.label))
                self._directory.publish(work, volume, record)
        return self._volume(volume, record)

    def rollback(self, volume: VolumeName, label: str) -> Volume:
        """A copy of the snapshot's file; all snapshots are kept.

        An overlay on it would be faster, but the snapshot could never be dropped then. On a disk
        that is almost full, a rollback that frees space is allowed. The disk is on stable storage
        when this returns, as what it replaces is removed.
        """
        with self._held(volume) as record, contextlib.ExitStack() as stack:
            self._visible(volume, label)
            frozen, disk = self._frozen(volume, label).path, self._directory.place(volume) / DISK
            needs = sparse.allocated(frozen)
            floor = self._floor if needs > sparse.allocated(disk) else 0
            stack.enter_context(self._directory.teaching(needs + floor))
            work = stack.enter_context(self._directory.scratch())
            sparse.copy(frozen, work / DISK, floor=floor)
            self._directory.give(work / DISK)
            sync(work / DISK)
            (work / DISK).replace(disk)
            sync(disk.parent)
            return self._volume(volume, record)

    def check_rollback(self, volumes: Sequence[VolumeName], label: str) -> None:
        """Space for all copies at once: they may all exist before any replaced disk is removed."""
        needs, floor = 0, 0
        for volume in volumes:
            with self._held(volume, shared=True):
                self._visible(volume, label)
                needed = sparse.allocated(self._frozen(volume, label).path)
                if needed > sparse.allocated(self._directory.place(volume) / DISK):
                    floor = self._floor
                needs += needed
        root = self._directory.root
        if not sparse.shares_blocks(root):
            host.check_space(self.space().free, floor, root, needed=needs, what="a rollback")

    def spare(self, volume: VolumeName, label: str) -> Volume:
        """A copy of the snapshot's file, on stable storage, beside the volume's disk."""
        with self._held(volume) as record, contextlib.ExitStack() as stack:
            self._visible(volume, label)
            frozen, place = self._frozen(volume, label).path, self._directory.place(volume)
            stack.enter_context(self._directory.teaching(sparse.allocated(frozen) + self._floor))
            work = stack.enter_context(self._directory.scratch())
            sparse.copy(frozen, work / SPARE, floor=self._floor)
            self._directory.give(work / SPARE)
            sync(work / SPARE)
            (work / SPARE).replace(place / SPARE)
            return replace(self._volume(volume, record), path=place / SPARE)

    def take_spare(self, volume: VolumeName) -> Volume:
        """A rename: guests keep the files that they have open, the former one until it ends."""
        with self._held(volume) as record:
            place = self._directory.place(volume)
            try:
                (place / SPARE).replace(place / DISK)
            except FileNotFoundError:
                raise rules.no_spare(volume) from None
            sync(place)
            return self._volume(volume, record)

    def drop_spare(self, volume: VolumeName) -> None:
        """See ``Storage``; a guest keeps the file until it ends."""
        with contextlib.suppress(NotFound), self._held(volume):
            (self._directory.place(volume) / SPARE).unlink(missing_ok=True)

    def drop(self, snapshot: VolumeSnapshot) -> None:
        """See ``Storage``; a clone counts also if another installation made it."""
        volume, label = snapshot.volume, rules.check_label(snapshot.label)
        with contextlib.suppress(NotFound), self._directory.held(volume):
            if self._ours(volume) is None:
                raise rules.not_ours(volume)
            if batch.visible(self._directory, volume, label) is None:
                return
            clones = self._clones(volume, label)
            if clones:
                raise rules.has_clones(volume, clones)
            batch.forget(self._directory, volume, label)

    def destroy(self, volume: VolumeName) -> None:
        """See ``Storage``; a clone counts also if another installation made it."""
        with contextlib.suppress(NotFound), self._directory.held(volume):
            if self._ours(volume) is None:
                raise rules.not_ours(volume)
            if (self._directory.place(volume) / SNAPSHOTS).exists():
                clones = self._clones(volume)
                if clones:
                    raise rules.has_clones(volume, clones)
            with self._directory.teaching(0):
                self._directory.discard(volume)

    def volumes(self) -> list[Volume]:
        """The volumes whose record has our home."""
        found = ((name, self._ours(name)) for name in self._directory.names())
        return [self._volume(name, record) for name, record in found if record]

    def get(self, volume: VolumeName) -> Volume:
        """See ``Storage``; volumes of other installations count as absent."""
        record = self._ours(volume)
        if record is None:
            raise rules.absent(volume)
        return self._volume(volume, record)

    def used(self, volume: VolumeName) -> int:
        """The allocated size of the volume's files, with its snapshots and its base."""
        with self._held(volume, shared=True):
            stats = (path.lstat() for path in self._directory.place(volume).rglob("*"))
            return sum(stat.st_blocks * 512 for stat in stats)

    def space(self) -> Space:
        """The space of the file system."""
        return self._directory.space()

    @contextlib.contextmanager
    def read(self, snapshot: VolumeSnapshot) -> Iterator[Content]:
        """The content of the whole chain."""
        from lab.storage.flatten import open_parts, read_parts

        with contextlib.ExitStack() as stack:
            # snapshots' files never change: once they are open, the lock is not needed
            with self._held(snapshot.volume, shared=True):
                record = self._visible(snapshot.volume, snapshot.label)
                top = self._frozen(snapshot.volume, snapshot.label).path
                parts = open_parts(top, stack)
            data = sum(part.length for part in parts)
            extents = rules.readable(snapshot, read_parts(parts, EXTENT))
            yield Content(record.size, data, extents)

    def write(self, volume: VolumeName, label: str, content: Content, tags: Tags) -> VolumeSnapshot:
        """A raw base, and two overlays on it: the snapshot and the disk."""
        size = rules.check_size(content.size)
        rules.check_label(label)
        record = VolumeRecord(self._home, size, rules.check_tags(tags))
        with self._new(volume, content.data) as work:
            if content.data > self.space().free:
                raise rules.no_space(str(self._directory.root), content.data, self.space().free)
            sparse.write(work / BASE, size, rules.in_place(volume, size, content.extents))
            self._directory.freeze(work / BASE)
            self._write_overlay(work, size, self._base(volume))
            self._write_snapshot(work, label, size, self._base(volume))
            self._directory.publish(work, volume, record, durable=True)
        return VolumeSnapshot(volume, label, size)

    @contextlib.contextmanager
    def send(self, snapshot: VolumeSnapshot) -> Iterator[Iterator[bytes]]:
        """See ``stream.py``."""
        from lab.storage import stream

        with self.read(snapshot) as content:
            yield stream.sent(snapshot.label, content)

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """See ``stream.py``."""
        from lab.storage import stream

        return self.write(volume, *stream.received(source), tags)

    def sweep(self) -> list[str]:
        """Undo incomplete snapshots, and remove the scratch directories of dead processes."""
        removed = []
        for work in clone_lock.abandoned(self._directory.scratches):
            removed += batch.undo(self._directory, work)
            shutil.rmtree(work, ignore_errors=True)
            removed.append(f"unfinished work {work.name}")
        for name in self._directory.names():
            removed += batch.tidy(self._directory, name) if self._ours(name) else []
        self._directory.tidy_all()
        return removed

    def _ours(self, volume: VolumeName) -> VolumeRecord | None:
        record = self._directory.record(volume)
        return record if record and record.home == self._home else None

    def _volume(self, volume: VolumeName, record: VolumeRecord) -> Volume:
        path = self._directory.place(volume) / DISK
        return Volume(volume, path, "qcow2", record.size, record.tags)

    @contextlib.contextmanager
    def _held(self, volume: VolumeName, *, shared: bool = False) -> Iterator[VolumeRecord]:
        with self._directory.held(volume, shared=shared):
            record = self._ours(volume)
            if record is None:
                raise rules.absent(volume)
            yield record

    @contextlib.contextmanager
    def _new(self, volume: VolumeName, needs: int) -> Iterator[Path]:
        """A scratch directory that is renamed to ``volume``; ``needs`` in bytes."""
        if self._directory.place(volume).exists():
            raise rules.exists(volume)
        with self._directory.teaching(needs), self._directory.scratch() as work:
            yield work

    def _visible(self, volume: VolumeName, label: str) -> SnapshotRecord:
        record = batch.visible(self._directory, volume, rules.check_label(label))
        if record is None:
            raise rules.no_snapshot(volume, label)
        return record

    def _frozen(self, volume: VolumeName, label: str) -> Backing:
        return Backing(self._directory.snapshot_files(volume, label)[0], "qcow2")

    def _base(self, volume: VolumeName) -> Backing:
        return Backing(self._directory.place(volume) / BASE, "raw")

    def _check_backing(self, volume: VolumeName, record: VolumeRecord, copy: Path) -> None:
        """Raise Conflict unless ``copy`` has the backing file that the volume was made with.

        QEMU's user can write to the overlay, and we read the backing file of a snapshot.
        """
        parent = self._base(volume) if (self._directory.place(volume) / BASE).exists() else None
        if record.origin:
            name, _, label = record.origin.partition("@")
            parent = self._frozen(VolumeName.parse(name), label)
        try:
            found = read_header(copy).backing
        except InvalidSpec as error:
            raise Conflict(f"no snapshot of the disk of {volume} can be taken: {error}") from error
        if found != parent:
            raise Conflict(
                f"the backing file of the disk of {volume} was changed",
                hint="if the home has several paths, use the one that it was created with",
            )

    def _write_overlay(self, work: Path, size: int, backing: Backing | None) -> None:
        write_empty(work / DISK, size, backing)
        self._directory.give(work / DISK)

    def _write_snapshot(self, work: Path, label: str, size: int, backing: Backing) -> None:
        """The one snapshot of a volume that is written, which appears with it."""
        folder = work / SNAPSHOTS
        self._directory.add_folder(folder)
        frozen = folder / f"{label}.qcow2"
        write_empty(frozen, size, backing)
        self._directory.freeze(frozen)
        write_json(folder / f"{label}.json", asdict(SnapshotRecord(size, order=1)))

    def _clones(self, volume: VolumeName, label: str = "") -> list[str]:
        """The volumes of any installation that are clones of a snapshot of ``volume``."""
        others = (name for name in self._directory.names() if name != volume)
        return [str(name) for name in others if self._depends(name, volume, label)]

    def _depends(self, name: VolumeName, volume: VolumeName, label: str) -> bool:
        record = self._directory.record(name)
        if record:
            origin, _, taken = record.origin.partition("@")
            return origin == str(volume) and label in ("", taken)
        # damaged by a power loss: the disk itself has what is needed
        with contextlib.suppress(FileNotFoundError, InvalidSpec):
            backing = read_header(self._directory.place(name) / DISK).backing
            return backing is not None and self._directory.place(volume) in backing.path.parents
        return False


def _raw_size(source: Path) -> int:
    """The size of a volume with the content of ``source``, in bytes: whole sectors."""
    if not source.is_file():
        raise InvalidSpec(f"{source} is not a raw disk file")
    return rules.check_size(-(-source.stat().st_size // rules.SECTOR) * rules.SECTOR)
