"""The driver: ``lab.storage.Storage`` on ZFS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from lab.config.profile import VolumeProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.names import VolumeName
from lab.run import run
from lab.storage import (
    EXTENT,
    PLAIN,
    Content,
    Source,
    Space,
    Tags,
    Volume,
    VolumeSnapshot,
    rules,
    sparse,
)
from lab.storage.zfs import device, links
from lab.storage.zfs.calls import RunningCall, RunningCalls
from lab.storage.zfs.commands import Commands, Runner, telling
from lab.storage.zfs.creation import VolumeCreation, rounded
from lab.storage.zfs.faults import Fault, fault_of
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.names import Layout
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.properties import HOME, SPARE, options, tags_of
from lab.storage.zfs.removal import HOLD, Removal
from lab.storage.zfs.stack import Stack, stacks
from lab.storage.zfs.streams import Streams
from lab.storage.zfs.sweep import Sweep

_AT_BIRTH = ("volsize", "volblocksize", "refreservation")
"""Properties that a clone inherits from its origin."""


class ZfsStorage:
    """Volumes as ZVols below the dataset ``parent``; the contract is ``lab.storage.Storage``'s.

    ``home`` is the tag of this installation's volumes, ``works`` a separate directory for locks.

    Sizes are rounded up to whole MiB. Devices keep the owner that udev sets: libvirt gives them to
    QEMU's user in a private /dev.
    """

    name = "zfs"
    native = True  # compressed, whole blocks

    def __init__(
        self,
        parent: str,
        home: str,
        works: Path,
        *,
        runner: Runner = run,
    ) -> None:
        self._pool = Pool(Layout(parent), home, Commands(parent, runner))
        self._calls = RunningCalls(works)
        self._removal = Removal(self._pool, self._calls)
        self._creation = VolumeCreation(self._pool, self._calls, self._removal)
        self._sweep = Sweep(self._pool, self._calls, self._removal)
        self._streams = Streams(self._pool, self._calls, self._removal, self._creation)

    def create(
        self, volume: VolumeName, size: int, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A sparse ZVol, in one command."""
        tags = rules.check_tags(tags)
        args = self._creation.blank(volume, size, tags, profile)
        with self._calls.begin(f"create of {volume}") as work:
            self._creation.at_once(work, volume, args)
            return self._creation.appear(work, volume, rounded(size), tags)

    def import_raw(
        self, volume: VolumeName, source: Path, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A ZVol that is written below ``.work``; ``source`` is removed at the end.

        Raises HostUnfit before anything is written if the data would not fit uncompressed.
        """
        if not source.is_file():
            raise InvalidSpec(f"{source} is not a raw disk file")
        tags = rules.check_tags(tags)
        size = rounded(source.stat().st_size)
        args = self._creation.blank(volume, size, tags, profile)
        needs = sparse.allocated(source)

        def fill(work: RunningCall, name: str) -> int:
            self._creation.fits(needs)
            with self._pool.room(needs):
                self._pool.make(work, *args, name)
            path = links.wait_for(name, size)
            with source.open("rb") as file:
                parts = list(sparse.extents(file.fileno()))
                pieces = sparse.read(file.fileno(), parts, EXTENT)
                device.write(self._pool, path, pieces, needs)
            return size

        made = self._creation.hidden(volume, tags, "import", fill)
        source.unlink(missing_ok=True)
        return made

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        """One ``zfs snapshot`` of all, which is atomic, and on stable storage when it returns."""
        rules.check_label(label)
        found = self._without(volumes, label)
        if found:
            names = sorted(f"{stack.current.name}@{label}" for stack in found.values())
            args = ["snapshot", *options({HOME: self._pool.home}), *names]
            with self._calls.begin(f"snapshot {label} of {volumes[0]}") as work:
                try:
                    with self._pool.room():
                        self._pool.run.zfs(*args, work=work)
                except CommandFailed as error:
                    self._without(volumes, label)  # another process created it first
                    if fault_of(error) is Fault.EXISTS:  # dropped, but a clone still needs it
                        raise rules.has_snapshot(volumes[0], label) from error
                    raise
        return [VolumeSnapshot(name, label, found[name].size) for name in volumes]

    def persist(self, snapshots: Sequence[VolumeSnapshot]) -> None:
        """``zfs hold`` them, so that they are not destroyed by mistake.

        They are on stable storage already: ``zfs snapshot`` returns once the pool has committed.
        """
        for snapshot in snapshots:
            name = self._visible(snapshot)[1].name
            missing = rules.no_snapshot(snapshot.volume, snapshot.label)
            with self._calls.begin(f"persist of {snapshot.volume}") as work:
                try:
                    with telling({Fault.ABSENT: missing}), self._pool.room():
                        self._pool.run.zfs("hold", HOLD, name, work=work)
                except CommandFailed as error:
                    if fault_of(error) is not Fault.HELD:
                        raise

    def seal(self, snapshot: VolumeSnapshot) -> str:
        """Its guid and creation transaction group, which are unique.

        A snapshot is read-only, as are those below it, so no content needs to be read.
        """
        found = self._visible(snapshot)[1]
        return f"{found.facts['guid']}:{found.facts['createtxg']}"

    def snapshots(self, volume: VolumeName) -> list[VolumeSnapshot]:
        """See ``Storage``; snapshots of other installations' volumes count as absent."""
        self._calls.settle()
        stack = self._pool.search(volume)
        return stack.as_snapshots() if stack else []

    def labels(self) -> dict[VolumeName, list[str]]:
        """See ``Storage``; one ``zfs list``."""
        self._calls.settle()
        found = stacks(self._pool.everything(), self._pool.layout, self._pool.home)
        return {name: [one.label for one in stack.as_snapshots()] for name, stack in found.items()}

    def clone(
        self,
        origin: VolumeSnapshot,
        volume: VolumeName,
        tags: Tags,
        *,
        size: int = 0,
        profile: VolumeProfile = PLAIN,
    ) -> Volume:
        """One ``zfs clone`` with tags and size, and the wait for its device."""
        tags = rules.check_tags(tags)
        args = ["clone", *self._pool.creation_options(volume, tags, profile)]
        gate = self._calls.gate(origin.volume, shared=True)
        with self._calls.begin(f"clone to {volume}") as work, gate:
            _, found = self._visible(origin)
            smallest = found.number("volsize")
            size = rounded(rules.clone_size(origin.volume, smallest, size))
            if size != smallest:
                args += options({"volsize": str(size)})
            absent = {Fault.ABSENT: rules.no_snapshot(origin.volume, origin.label)}
            self._creation.at_once(work, volume, [*args, found.name], absent)
            return self._creation.appear(work, volume, size, tags)

    def rollback(self, volume: VolumeName, label: str) -> Volume:
        """``zfs rollback`` to the latest snapshot; to another, one more clone (see package)."""
        with self._calls.begin(f"rollback of {volume}") as work, self._calls.gate(volume):
            stack, found = self._visible(VolumeSnapshot(volume, label, 0))
            tags, size = tags_of(stack.parts[0].local), found.number("volsize")
            if self._rolled_back(work, stack, found):
                path = links.wait_for(stack.current.name, size)
                return Volume(volume, path, "block", size, tags)
            made = self._cloned(work, volume, stack, found)
            self._sweep.trim(work, volume)
            return made

    def spare(self, volume: VolumeName, label: str) -> Volume:
        """One more clone, marked as a spare; what is left of former disks is destroyed first."""
        with self._calls.begin(f"spare of {volume}") as work, self._calls.gate(volume):
            stack, found = self._visible(VolumeSnapshot(volume, label, 0))
            for old in stack.spares:
                self._removal.discard(work, old)
            self._sweep.trim(work, volume)
            return self._cloned(work, volume, stack, found, {SPARE: "yes"})

    def take_spare(self, volume: VolumeName) -> Volume:
        """The mark is removed, of a dataset with the highest number: one command, or two."""
        with self._calls.begin(f"spare of {volume} taken") as work, self._calls.gate(volume):
            stack = self._pool.find(volume)
            if stack.spare is None:
                raise rules.no_spare(volume)
            name = stack.spare.name
            highest = self._pool.layout.dataset(volume, stack.unused - 1)
            if name != highest:  # a rollback since it was made
                new = self._pool.layout.dataset(volume, stack.unused)
                self._pool.make(work, "rename", name, new)
                name = new
            self._pool.run.zfs("inherit", SPARE, name, work=work)
            size = stack.spare.number("volsize")
            path = links.wait_for(name, size)
            return Volume(volume, path, "block", size, tags_of(stack.parts[0].local))

    def drop_spare(self, volume: VolumeName) -> None:
        """See ``Storage``; a sweep destroys one that a guest has open still."""
        with self._calls.begin(f"spare of {volume} dropped") as work, self._calls.gate(volume):
            stack = self._pool.search(volume)
            for old in stack.spares if stack else []:
                self._removal.discard(work, old)

    def check_rollback(self, volumes: Sequence[VolumeName], label: str) -> None:
        """See ``Storage``; nothing is copied, so there is no space to check."""
        for volume in volumes:
            self._visible(VolumeSnapshot(volume, label, 0))

    def drop(self, snapshot: VolumeSnapshot) -> None:
        """See ``Storage``; while a rollback's clone needs it, it is kept, marked as dropped."""
        rules.check_label(snapshot.label)
        self._removal.drop(snapshot.volume, snapshot.label)

    def destroy(self, volume: VolumeName) -> None:
        """See ``Storage``; a clone counts also if another installation made it."""
        self._removal.destroy(volume)

    def volumes(self) -> list[Volume]:
        """The volumes that carry our tag; their devices may not exist yet."""
        self._calls.settle()
        return [stack.as_volume() for stack in self._pool.volumes().values()]

    def get(self, volume: VolumeName) -> Volume:
        """See ``Storage``; raises HostUnfit if the volume's device does not appear."""
        self._calls.settle()
        found = self._pool.find(volume)
        path = links.wait_for(found.current.name, found.size)
        return Volume(volume, path, "block", found.size, tags_of(found.parts[0].local))

    def used(self, volume: VolumeName) -> int:
        """As accounted by ZFS: writes of the last seconds may be missing."""
        self._calls.settle()
        return sum(part.number("used") for part in self._pool.find(volume).parts)

    def space(self) -> Space:
        """The space available to the parent dataset, with quotas and reservations."""
        return self._pool.space()

    def read(self, snapshot: VolumeSnapshot) -> AbstractContextManager[Content]:
        """See ``Streams.read``."""
        _, found = self._visible(snapshot)
        return self._streams.read(snapshot, found)

    def write(self, volume: VolumeName, label: str, content: Content, tags: Tags) -> VolumeSnapshot:
        """See ``Streams.write``."""
        rules.check_label(label)
        return self._streams.write(volume, label, content, rules.check_tags(tags))

    def send(self, snapshot: VolumeSnapshot) -> AbstractContextManager[Iterator[bytes]]:
        """The stream of ``zfs send`` in an envelope, see ``streams.py``."""
        _, found = self._visible(snapshot)
        return self._streams.send(snapshot, found)

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """See ``Streams.receive``."""
        return self._streams.receive(volume, source, rules.check_tags(tags))

    def sweep(self) -> list[str]:
        """Also destroys datasets that were busy when they were removed."""
        return self._sweep.run()

    def pending(self) -> list[str]:
        """Removed datasets that still wait for a sweep, and why: a line for each."""
        return self._sweep.pending()

    def _without(self, volumes: Sequence[VolumeName], label: str) -> dict[VolumeName, Stack]:
        """The volumes; raises NotFound for an absent one, Conflict for one with ``label``."""
        self._calls.settle()
        found = self._pool.find_all(volumes)
        for name, stack in found.items():
            if label in {one.label for one in (*stack.snapshots, *stack.foreign)}:
                raise rules.has_snapshot(name, label)
        return found

    def _visible(self, snapshot: VolumeSnapshot) -> tuple[Stack, Dataset]:
        rules.check_label(snapshot.label)
        self._calls.settle()
        stack = self._pool.find(snapshot.volume)
        found = stack.snapshot(snapshot.label)
        if found is None:
            raise rules.no_snapshot(snapshot.volume, snapshot.label)
        return stack, found

    def _cloned(
        self,
        work: RunningCall,
        volume: VolumeName,
        stack: Stack,
        found: Dataset,
        marks: Mapping[str, str] | None = None,
    ) -> Volume:
        """One more dataset of ``volume``, a clone of its snapshot ``found``."""
        tags, size = tags_of(stack.parts[0].local), found.number("volsize")
        kept = {k: v for k, v in stack.parts[0].local.items() if k not in _AT_BIRTH}
        name = self._pool.layout.dataset(volume, stack.unused)
        with self._pool.room():
            self._pool.make(work, "clone", *options({**kept, **(marks or {})}), found.name, name)
        return self._creation.appear(work, volume, size, tags, number=stack.unused)

    def _rolled_back(self, work: RunningCall, stack: Stack, found: Dataset) -> bool:
        """True if ``found`` was the latest snapshot, and the volume is as it was then."""
        if found.name not in stack.latest:
            return False
        try:
            self._pool.run.zfs("rollback", found.name, work=work)
        except CommandFailed as error:
            if fault_of(error) is Fault.NEWER:
                return False
            raise
        return True
