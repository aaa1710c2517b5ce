"""Atomic creation of volumes: by one command, or below ``.work`` and then renamed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from lab.config.profile import VolumeProfile
from lab.errors import LabError
from lab.names import VolumeName
from lab.storage import Tags, Volume, rules
from lab.storage.zfs import links
from lab.storage.zfs.calls import RunningCall, RunningCalls
from lab.storage.zfs.commands import telling
from lab.storage.zfs.faults import Fault
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.removal import Removal

_GRAIN = 1 << 20  # bytes; a multiple of any volblocksize


class VolumeCreation:
    """Creates volumes in ``pool``."""

    def __init__(self, pool: Pool, calls: RunningCalls, removal: Removal) -> None:
        self._pool = pool
        self._calls = calls
        self._removal = removal

    def blank(self, volume: VolumeName, size: int, tags: Tags, profile: VolumeProfile) -> list[str]:
        """The command that creates an empty sparse ZVol, without its name; ``size`` in bytes."""
        whole = rounded(rules.check_size(size))
        block = ["-b", str(profile.block_size)]
        return [
            "create",
            "-s",
            "-V",
            str(whole),
            *block,
            *self._pool.creation_options(volume, tags, profile),
        ]

    def at_once(
        self,
        work: RunningCall,
        volume: VolumeName,
        args: list[str],
        errors: Mapping[Fault, LabError] | None = None,
    ) -> None:
        """Run the one command that creates ``volume``: ``args``, and its name.

        ``errors``: the errors to raise for faults. Raises Conflict if it exists, HostUnfit.
        """
        known = {Fault.EXISTS: rules.exists(volume), **(errors or {})}
        with telling(known), self._pool.room():
            self._pool.make(work, *args, self._pool.layout.dataset(volume))

    def hidden(
        self, volume: VolumeName, tags: Tags, what: str, fill: Callable[[RunningCall, str], int]
    ) -> Volume:
        """Call ``fill`` with a name below ``.work``, and rename what it creates to ``volume``.

        ``fill`` returns its size in bytes. Raises Conflict if ``volume`` exists, HostUnfit. On
        any error the dataset is destroyed.
        """
        target = self._pool.layout.dataset(volume)
        if self._pool.exists(volume):
            raise rules.exists(volume)
        with self._calls.begin(f"{what} of {volume}") as work:
            name = f"{self._pool.layout.works}/{work.token}.0"
            try:
                size = fill(work, name)
                with telling({Fault.EXISTS: rules.exists(volume)}), self._pool.room():
                    self._pool.make(work, "rename", name, target)
            except BaseException:
                with contextlib.suppress(LabError):
                    self._removal.raze(work, name)
                raise
            return self.appear(work, volume, size, tags)

    def appear(
        self, work: RunningCall, volume: VolumeName, size: int, tags: Tags, *, number: int = 0
    ) -> Volume:
        """The new ``volume`` once its device exists; it is destroyed if the wait times out.

        ``number``: only the dataset of that number is new.
        """
        name = self._pool.layout.dataset(volume, number)
        try:
            path = links.wait_for(name, size)
        except LabError:
            self._removal.raze(work, name)
            raise
        return Volume(volume, path, "block", size, tags)

    def fits(self, needs: int) -> None:
        """Raise HostUnfit, with figures, if ``needs`` bytes exceed the free space.

        On a full pool the guests of all labs fail, so this is checked before writing.
        """
        free = self._pool.space().free
        if needs > free:
            raise rules.no_space(self._pool.layout.root, needs, free)


def rounded(size: int) -> int:
    """``size`` in bytes, rounded up to whole MiB: a multiple of any volblocksize."""
    return -(-size // _GRAIN) * _GRAIN
