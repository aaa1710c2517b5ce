"""Our part of a pool: listing and creating datasets below the parent dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from lab.config.profile import VolumeProfile
from lab.errors import CommandFailed, HostUnfit
from lab.names import VolumeName
from lab.storage import Space, Tags, rules
from lab.storage.zfs.calls import RunningCall
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.faults import Fault, fault_of, no_pool
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.names import Layout
from lab.storage.zfs.properties import FOLDER, HOME, VOLUME, options, tag_properties
from lab.storage.zfs.stack import Stack, stacks

_ALL = "filesystem,volume,snapshot"
_TRIES = 20
_FOLDER = {"mountpoint": "none", "canmount": "off", "volmode": "dev", FOLDER: "yes"}
# Volumes inherit volmode. Set on a new volume, it makes the kernel remove and recreate the device,
# and udev the link, after the command has ended.
_SMALL = 1 << 20  # bytes that a dataset and its tags take, rounded up


class Pool:
    """The datasets below the parent dataset that belong to ``home``."""

    def __init__(self, layout: Layout, home: str, commands: Commands) -> None:
        self.layout = layout
        self.home = home
        self.run = commands

    def volumes(self) -> dict[VolumeName, Stack]:
        """All volumes, without their snapshots."""
        found = self.run.datasets("-r", "-t", "volume", self.layout.root)
        return stacks(found, self.layout, self.home)

    def everything(self) -> list[Dataset]:
        """All datasets and snapshots, of any installation."""
        return self.run.datasets("-r", "-t", _ALL, self.layout.root)

    def owned(self, volume: VolumeName) -> list[Dataset]:
        """All datasets and snapshots in the folder of ``volume``'s owner."""
        return self.run.datasets("-r", "-t", _ALL, self.layout.folder(volume.owner))

    def search(self, volume: VolumeName) -> Stack | None:
        """The volume; None if it is absent or not ours."""
        return stacks(self.owned(volume), self.layout, self.home).get(volume)

    def find(self, volume: VolumeName) -> Stack:
        """The volume; raises NotFound."""
        return self.find_all([volume])[volume]

    def find_all(self, volumes: Sequence[VolumeName]) -> dict[VolumeName, Stack]:
        """The volumes; raises NotFound for the first that is absent."""
        seen: dict[VolumeName, Stack] = {}
        for one in {volume.owner: volume for volume in volumes}.values():
            seen |= stacks(self.owned(one), self.layout, self.home)
        for volume in volumes:
            if volume not in seen:
                raise rules.absent(volume)
        return {volume: seen[volume] for volume in volumes}

    def exists(self, volume: VolumeName) -> bool:
        """True if a volume of any installation has the name."""
        return bool(self.run.datasets(self.layout.dataset(volume)))

    def space(self) -> Space:
        """The bytes available to us, and their sum with the bytes that we use."""
        (root,) = self.run.datasets(self.layout.root)
        free = root.number("available")
        return Space(free, free + root.number("used"))

    def creation_options(self, volume: VolumeName, tags: Tags, profile: VolumeProfile) -> list[str]:
        """The options with which a dataset of ``volume`` is created.

        One command sets all of them, so a dataset has all our properties or none. Raises
        InvalidSpec if the name or the tags are too long for ZFS.
        """
        self.layout.dataset(volume)
        chosen = {
            "compression": profile.compression,
            "sync": profile.sync,
            "logbias": profile.logbias,
            "primarycache": profile.primarycache,
        }
        ours = {**tag_properties(tags), HOME: self.home, VOLUME: str(volume)}
        return list(options({**chosen, **ours}))

    def make(self, work: RunningCall, *args: str) -> None:
        """Run ``zfs args``, of which the last is the new name; folders are made as needed."""
        folder = args[-1].rpartition("/")[0]
        for left in reversed(range(_TRIES)):
            try:
                self.run.zfs(*args, work=work)
            except CommandFailed as error:
                # another process may remove the folder while it is empty
                if not left or not self._lacks_folder(error, args):
                    raise
                self.folder(work, folder)
            else:
                return

    def _lacks_folder(self, error: CommandFailed, args: Sequence[str]) -> bool:
        """Whether ``zfs args`` failed because the folder of the new name did not exist.

        For a rename, ``zfs`` reports a missing folder and a missing source with the same message,
        and so it does for a clone whose folder is removed before the kernel looks.
        """
        fault = fault_of(error)
        lost = args[0] in ("rename", "clone") and fault is Fault.ABSENT
        return fault is Fault.NO_PARENT or (lost and self.run.find(args[-2]) is not None)

    @contextlib.contextmanager
    def room(self, needs: int = _SMALL) -> Iterator[None]:
        """Raise HostUnfit, with figures, when the pool or a quota is full; bytes."""
        try:
            yield
        except CommandFailed as error:
            if fault_of(error) is not Fault.NO_SPACE:
                raise
            raise self.full(needs) from error

    def full(self, needs: int) -> HostUnfit:
        """The error for a full pool or quota; bytes."""
        return rules.no_space(self.layout.root, needs, self.space().free)

    def folder(self, work: RunningCall, folder: str) -> None:
        """Create ``folder`` and those above it; no error if it exists."""
        above = folder.rpartition("/")[0]
        for left in reversed(range(_TRIES)):
            try:
                self.run.zfs("create", *options(_FOLDER), folder, work=work)
            except CommandFailed as error:
                fault = fault_of(error)
                if fault is Fault.EXISTS:
                    return
                # What is above may be removed after `zfs` saw it, and before the kernel does.
                if not left or fault not in (Fault.NO_PARENT, Fault.ABSENT):
                    raise
                if above == self.layout.root:
                    raise no_pool(self.layout.root) from error
                # first of all: on a full pool it could not be created, and destroying needs
                # it
                self.folder(work, self.layout.works)
                self.folder(work, above)
            else:
                return
