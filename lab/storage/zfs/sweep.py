"""Removes what killed calls left, and datasets that were busy when they were removed."""

from __future__ import annotations

from collections.abc import Sequence

from lab.names import VolumeName
from lab.storage.zfs.calls import RunningCall, RunningCalls
from lab.storage.zfs.links import place, users
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.properties import VOLUME, decode
from lab.storage.zfs.removal import Removal
from lab.storage.zfs.stack import is_ours, stacks, strays


class Sweep:
    """Finds our leftovers in ``pool``; datasets of running calls are none."""

    def __init__(self, pool: Pool, calls: RunningCalls, removal: Removal) -> None:
        self._pool = pool
        self._calls = calls
        self._removal = removal

    def run(self) -> list[str]:
        """See ``Storage.sweep``."""
        done = [f"leftovers of a killed {what}" for what in self._calls.bury()]
        with self._calls.begin("sweep") as work:
            while True:
                found = self._pool.everything()
                gone = self._pass(work, found)
                done += gone
                # a destroyed dataset may have been a clone that another one waited for
                if not gone:
                    self._removal.tidy(work, found)
                    return done

    def pending(self) -> list[str]:
        """Removed datasets that cannot be destroyed yet, with the reason: a line for each."""
        found = self._pool.everything()
        lines = []
        for one in self._dead(found):
            snapshots = [other for other in found if other.name.startswith(f"{one.name}@")]
            clones = [clone for snapshot in snapshots for clone in snapshot.clones]
            why = [f"{clone} is a clone of it" for clone in clones[:3]]
            why += [f"{user} uses it (LVM, multipath?)" for user in users(place(one.name))]
            reason = "; ".join(why) or "it was open: by a guest, udev, LVM or multipath"
            lines.append(f"{_spoken(one)}, now {one.name}: {reason}")
        return lines

    def trim(self, work: RunningCall, volume: VolumeName) -> list[str]:
        """Destroy unused datasets that rollbacks of ``volume`` left; its gate is held."""
        found = self._pool.owned(volume)
        layout, home = self._pool.layout, self._pool.home
        stack = stacks(found, layout, home).get(volume)
        old = list(stack.superseded) if stack else []
        old += [one for name, one in strays(found, layout, home) if name == volume]
        old.sort(key=lambda one: -one.number("createtxg"))
        done = [f"old data of volume {volume}" for one in old if self._removal.raze(work, one.name)]
        dropped = stack.dropped if stack else ()
        gone = [one for one in dropped if self._removal.forget(work, one)]
        return done + [f"dropped snapshot {volume}@{one.label}" for one in gone]

    def _pass(self, work: RunningCall, found: Sequence[Dataset]) -> list[str]:
        done = []
        for volume in self._old(found):
            with self._calls.gate(volume):
                done += self.trim(work, volume)
        for one in self._dead(found):
            if self._removal.raze(work, one.name):
                done.append(f"removed volume {_spoken(one)}")
        return done

    def _dead(self, found: Sequence[Dataset]) -> list[Dataset]:
        """Datasets in ``.work`` of no running call, the newest first: clones before origins."""
        start = f"{self._pool.layout.works}/"
        dead = [
            one
            for one in found
            if one.kind == "volume"
            and one.name.startswith(start)
            and is_ours(one, self._pool.home)
            and not self._calls.alive(one.name.removeprefix(start).partition(".")[0])
        ]
        return sorted(dead, key=lambda one: -one.number("createtxg"))

    def _old(self, found: Sequence[Dataset]) -> list[VolumeName]:
        layout, home = self._pool.layout, self._pool.home
        kept = stacks(found, layout, home).values()
        lost = {name for name, _ in strays(found, layout, home)}
        return sorted(lost | {stack.volume for stack in kept if stack.superseded or stack.dropped})


def _spoken(dataset: Dataset) -> str:
    return decode(dataset.local.get(VOLUME, dataset.name))
