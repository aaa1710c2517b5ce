"""Destroys datasets, at once or later.

A dataset to be destroyed is first renamed into ``.work``: one atomic step, after which its name
is free and no call sees it. A busy device, or a clone that still needs a snapshot, leaves it there
until a sweep succeeds. Nothing is forced: no -r, no -R, no -f, no promotion, and nothing is
destroyed that does not carry our tag itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence

from lab.errors import CommandFailed, Conflict
from lab.names import VolumeName
from lab.storage import rules
from lab.storage.zfs.calls import RunningCall, RunningCalls
from lab.storage.zfs.faults import Fault, fault_of
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.pool import Pool
from lab.storage.zfs.properties import DROPPED, FOLDER, RECEIVED
from lab.storage.zfs.stack import Stack, is_ours, stacks
from lab.wait import Deadline, attempts

HOLD = "lab"
"""The tag of our holds on snapshots."""

_PATIENCE = 2.0
"""Seconds during which a busy device is retried: udev, LVM and multipath open each new one."""


class Removal:
    """Destroys our datasets in ``pool``."""

    def __init__(self, pool: Pool, calls: RunningCalls) -> None:
        self._pool = pool
        self._calls = calls

    def destroy(self, volume: VolumeName) -> None:
        """See ``Storage.destroy``."""
        with self._calls.begin(f"destroy of {volume}") as work, self._calls.gate(volume):
            found = self._pool.owned(volume)
            stack = self._stack(volume, found)
            if stack is None:
                return
            self._check(stack)
            for name in self._condemn(work, stack):
                self.raze(work, name)
            self.tidy(work, found, gone={part.name for part in (*stack.parts, *stack.spares)})

    def drop(self, volume: VolumeName, label: str) -> None:
        """See ``Storage.drop``."""
        with self._calls.begin(f"drop of {volume}") as work, self._calls.gate(volume):
            stack = self._stack(volume, self._pool.owned(volume))
            snapshot = stack.snapshot(label) if stack else None
            if stack is None or snapshot is None:
                return
            self._check_clones(stack, [snapshot])
            self._check_holds([snapshot])
            # Marked as dropped first: if this process is killed, a sweep completes the removal.
            self._pool.run.zfs("set", f"{DROPPED}=yes", snapshot.name, work=work)
            self.forget(work, snapshot)

    def discard(self, work: RunningCall, spare: Dataset) -> None:
        """Destroy a spare, or have a sweep do it once no guest has it open."""
        target = f"{self._pool.layout.works}/{work.token}.0"
        self._pool.make(work, "rename", spare.name, target)
        self.gone(work, target, patience=0)

    def forget(self, work: RunningCall, dropped: Dataset) -> bool:
        """Destroy a dropped snapshot; False if a clone still needs it."""
        self._release(work, [dropped])
        return self.gone(work, dropped.name, patience=0)

    def raze(self, work: RunningCall, name: str) -> bool:
        """Destroy our dataset ``name`` with its snapshots; releases our holds.

        False if it does not exist, is not ours, or something still needs it.
        """
        found = self._pool.run.datasets("-r", "-t", "filesystem,volume,snapshot", name)
        snapshots = [one for one in found if one.kind == "snapshot"]
        if not self._all_ours(name, found):
            return False
        self._release(work, snapshots)
        labels = ",".join(one.label for one in snapshots)
        if labels and not self.gone(work, f"{name}@{labels}"):
            return False
        return self.gone(work, name)

    def gone(self, work: RunningCall, name: str, *, patience: float = _PATIENCE) -> bool:
        """Destroy our dataset or snapshots ``name``; False if something still needs them.

        A busy one is retried for ``patience`` seconds.
        """
        for _ in attempts(Deadline.after(patience), first=0.02):
            try:
                self._pool.run.zfs("destroy", name, work=work)
            except CommandFailed as error:
                fault = fault_of(error)
                if fault is Fault.ABSENT:
                    return True
                if fault in (Fault.HAS_CLONES, Fault.HAS_CHILDREN):
                    return False
                if fault is not Fault.BUSY:
                    raise
            else:
                return True
        return False

    def tidy(self, work: RunningCall, found: Iterable[Dataset], gone: Collection[str] = ()) -> None:
        """Remove the owners' folders that are empty once ``gone`` are removed."""
        datasets = [one for one in found if one.kind != "snapshot" and one.name not in gone]
        above = {one.name.rpartition("/")[0] for one in datasets}
        for one in datasets:
            ours = one.kind == "filesystem" and one.local.get(FOLDER) == "yes"
            if ours and self._pool.layout.is_owner(one.name) and one.name not in above:
                # ZFS refuses if it is not empty any more
                with contextlib.suppress(CommandFailed):
                    self._pool.run.zfs("destroy", one.name, work=work)

    def _stack(self, volume: VolumeName, found: Sequence[Dataset]) -> Stack | None:
        """The volume, None if it is absent; raises Conflict if it is not ours."""
        stack = stacks(found, self._pool.layout, self._pool.home).get(volume)
        if stack is None and self._pool.layout.dataset(volume) in {one.name for one in found}:
            raise rules.not_ours(volume)
        return stack

    def _all_ours(self, name: str, found: Iterable[Dataset]) -> bool:
        """True if ``name`` exists and everything below it is ours."""
        named = {one.name: one for one in found}
        head = named.pop(name, None)
        if head is None or not is_ours(head, self._pool.home):
            return False
        came = f"{name}@{head.local.get(RECEIVED, '')}"
        return all(is_ours(one, self._pool.home) or one.name == came for one in named.values())

    def _check(self, stack: Stack) -> None:
        """Raise Conflict if something that is not ours to remove depends on the volume."""
        if stack.foreign:
            name = stack.foreign[0].name
            raise Conflict(
                f"volume {stack.volume} has a snapshot that is not ours: {name}",
                hint=f"`zfs destroy {name}` if it is not needed",
            )
        self._check_clones(stack, stack.snapshots)
        self._check_holds(stack.snapshots)

    def _check_clones(self, stack: Stack, snapshots: Iterable[Dataset]) -> None:
        layout = self._pool.layout
        clones = {clone for one in snapshots for clone in one.clones}
        clones -= {part.name for part in (*stack.parts, *stack.spares)}
        # those that wait for a sweep are destroyed before this one
        seen = sorted(layout.spoken(c) for c in clones if not c.startswith(f"{layout.works}/"))
        if seen:
            raise rules.has_clones(stack.volume, seen)

    def _check_holds(self, snapshots: Iterable[Dataset]) -> None:
        for one in snapshots:
            others = [tag for tag in self._holds(one) if tag != HOLD]
            if others:
                raise Conflict(
                    f"snapshot {one.name} is held by {others[0]!r}",
                    hint=f"`zfs release {others[0]} {one.name}` if that is not needed",
                )

    def _condemn(self, work: RunningCall, stack: Stack) -> list[str]:
        """Rename the volume into ``.work``; returns what is to be destroyed then, in order."""
        base, *above = [part.name for part in (*stack.parts, *stack.spares)]
        if not above and not stack.snapshots and self.gone(work, base, patience=0):
            return []
        target = f"{self._pool.layout.works}/{work.token}.0"
        try:
            self._pool.make(work, "rename", base, target)
        except CommandFailed as error:
            if fault_of(error) is not Fault.NO_SPACE:
                raise
            return [*reversed(above), base]
        # without its base, the rest belongs to no volume
        return [*reversed(above), target]

    def _holds(self, snapshot: Dataset) -> list[str]:
        if not snapshot.number("userrefs"):
            return []
        lines = self._pool.run.zfs("holds", "-H", snapshot.name).split("\n")
        return [line.split("\t")[1] for line in lines if line.count("\t") >= 2]

    def _release(self, work: RunningCall, snapshots: Iterable[Dataset]) -> None:
        for one in snapshots:
            if one.number("userrefs"):
                # held by another user of the pool: destroying it fails, and is reported
                with contextlib.suppress(CommandFailed):
                    self._pool.run.zfs("release", HOLD, one.name, work=work)
