"""The datasets that make one volume.

Usually that is one, the base. After a rollback past a later snapshot there is one more: a clone
of a snapshot of a lower one. The highest is what guests open; snapshots of all of them count.
One that is marked as a spare is none of them yet.
A dataset with the name of a part, left by a destroyed volume of that name, is recognised by its
origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.names import VolumeName
from lab.storage import Volume, VolumeSnapshot
from lab.storage.zfs import links
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.names import Layout
from lab.storage.zfs.properties import DROPPED, HOME, SPARE, tags_of
from lab.values import dataclass


@dataclass(frozen=True)
class Stack:
    """The datasets and snapshots of a volume."""

    volume: VolumeName
    parts: tuple[Dataset, ...]
    """Its datasets, from the base to the current one."""
    snapshots: tuple[Dataset, ...]
    """The snapshots of the parts, oldest first."""
    foreign: tuple[Dataset, ...]
    """Snapshots of the parts that do not carry our tag."""
    dropped: tuple[Dataset, ...]
    """Removed snapshots that are kept while clones need them."""
    unused: int
    """The lowest number above those of all datasets with the volume's name."""
    spare: Dataset | None = None
    """The clone of a snapshot that becomes the current dataset when its mark is removed."""

    @property
    def current(self) -> Dataset:
        """The dataset that guests open."""
        return self.parts[-1]

    @property
    def spares(self) -> list[Dataset]:
        """The spare, if there is one."""
        return [self.spare] if self.spare else []

    @property
    def size(self) -> int:
        """The size that a guest sees, in bytes."""
        return self.current.number("volsize")

    @property
    def superseded(self) -> list[Dataset]:
        """Parts that are neither open to guests nor have a snapshot."""
        needed = {one.name.partition("@")[0] for one in (*self.snapshots, *self.foreign)}
        return [part for part in self.parts[1:-1] if part.name not in needed]

    @property
    def latest(self) -> list[str]:
        """The newest snapshot, ours or not, of the dataset that guests open; empty if none."""
        start = f"{self.current.name}@"
        found = [one for one in (*self.snapshots, *self.foreign, *self.dropped)
                 if one.name.startswith(start)]  # fmt: skip
        newest = max((one.number("createtxg") for one in found), default=0)
        return [one.name for one in found if one.number("createtxg") == newest]

    def snapshot(self, label: str) -> Dataset | None:
        """The snapshot ``label``, of any part."""
        return next((found for found in self.snapshots if found.label == label), None)

    def as_volume(self) -> Volume:
        """The volume; its path may not exist yet."""
        return Volume(
            self.volume,
            links.place(self.current.name),
            "block",
            self.size,
            tags_of(self.parts[0].local),
        )

    def as_snapshots(self) -> list[VolumeSnapshot]:
        """The snapshots, oldest first."""
        return [
            VolumeSnapshot(self.volume, found.label, found.number("volsize"))
            for found in self.snapshots
        ]


def stacks(datasets: Iterable[Dataset], layout: Layout, home: str) -> dict[VolumeName, Stack]:
    """The volumes of ``home`` among ``datasets``."""
    named: dict[VolumeName, dict[int, Dataset]] = {}
    snapshots: dict[str, list[Dataset]] = {}
    for dataset in datasets:
        base, at, _ = dataset.name.partition("@")
        if at:
            snapshots.setdefault(base, []).append(dataset)
        elif dataset.kind == "volume" and (found := layout.parse(dataset.name)):
            named.setdefault(found[0], {})[found[1]] = dataset
    return {
        volume: _stack(volume, numbered, snapshots, home)
        for volume, numbered in sorted(named.items())
        if is_ours(numbered.get(0), home)
    }


def strays(
    datasets: Iterable[Dataset], layout: Layout, home: str
) -> list[tuple[VolumeName, Dataset]]:
    """Clones that rollbacks of ``home`` created and that belong to no volume any more."""
    known = list(datasets)
    found = stacks(known, layout, home).values()
    parts = {part.name for stack in found for part in (*stack.parts, *stack.spares)}
    ours = [one for one in known if one.kind == "volume" and is_ours(one, home)]
    named = [(layout.parse(one.name), one) for one in ours if one.name not in parts]
    return [(place[0], one) for place, one in named if place and place[1]]


def is_ours(dataset: Dataset | None, home: str) -> bool:
    """True if the dataset or snapshot carries the tag of ``home`` itself."""
    return dataset is not None and dataset.local.get(HOME) == home


def _stack(
    volume: VolumeName,
    numbered: Mapping[int, Dataset],
    snapshots: Mapping[str, list[Dataset]],
    home: str,
) -> Stack:
    parts: list[Dataset] = []
    spare = None
    for number, dataset in sorted(numbered.items()):
        below = {part.name for part in parts}
        fits = number == 0 or dataset.origin.partition("@")[0] in below
        if fits and is_ours(dataset, home):
            if number and SPARE in dataset.local:
                spare = dataset
            else:
                parts.append(dataset)
    found = [one for part in parts for one in snapshots.get(part.name, [])]
    found.sort(key=lambda one: one.number("createtxg"))
    return Stack(
        volume,
        tuple(parts),
        tuple(one for one in found if is_ours(one, home) and DROPPED not in one.local),
        tuple(one for one in found if not is_ours(one, home)),
        tuple(one for one in found if is_ours(one, home) and DROPPED in one.local),
        max(numbered) + 1,
        spare,
    )
