"""What a driver's tests give to the contract, and small words the contract is written in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lab.errors import Conflict
from lab.names import Owner, VolumeName
from lab.storage import Storage, Volume, VolumeSnapshot

MIB = 1 << 20
SIZE = 8 * MIB
TAGS = {"role": "os", "made_by": "contract"}


@dataclass(frozen=True)
class Place:
    """A place with volumes.

    ``open`` gives a storage on it for an installation's name, in this process or, pickled, in
    another. ``put`` and ``get`` write and read a volume (offset, bytes or length) the way a
    guest would. ``pace``: seconds that a handful of calls take; where that is long, races and
    kills are tried fewer times.
    """

    open: Callable[[str], Storage]
    put: Callable[[Volume, int, bytes], None]
    get: Callable[[Volume, int, int], bytes]
    pace: float = 0.05

    def times(self, many: int) -> int:
        """How often to try what is worth ``many`` times where calls are fast."""
        return many if self.pace < 0.1 else max(2, many // 5)


def vol(lab: str, node: str = "n1", volume: str = "os") -> VolumeName:
    return VolumeName(Owner("lab", lab), node, volume)


def names(storage: Storage) -> list[str]:
    return sorted(str(volume.name) for volume in storage.volumes())


def labels(storage: Storage, volume: VolumeName) -> list[str]:
    return [snapshot.label for snapshot in storage.snapshots(volume)]


def origin(place: Place, storage: Storage, lab: str = "origin") -> VolumeSnapshot:
    """A snapshot ``formed`` of a volume that starts with ``origin``."""
    volume = storage.create(vol(lab), SIZE, TAGS)
    place.put(volume, 0, b"origin")
    return storage.snapshot([volume.name], "formed")[0]


def layered(place: Place, storage: Storage) -> VolumeSnapshot:
    """A snapshot ``s.1`` with data in several layers, one of them grown."""
    place.put(storage.create(vol("ground"), SIZE, {}), 0, b"below")
    (ground,) = storage.snapshot([vol("ground")], "x")
    branch = storage.clone(ground, vol("branch"), {}, size=2 * SIZE)
    place.put(branch, 3 * MIB, b"above" + os.urandom(MIB))
    place.put(branch, 2 * SIZE - 4, b"tail")
    return storage.snapshot([vol("branch")], "s.1")[0]


def interrupted(source: Iterable[object]) -> None:
    """As Ctrl-C does it while ``source`` is read."""
    for _ in source:
        raise KeyboardInterrupt


def destroy_all(storage: Storage) -> None:
    """Destroy every volume, clones before their origins."""
    left = storage.volumes()
    while left:
        count = len(left)
        for volume in left:
            with contextlib.suppress(Conflict):
                storage.destroy(volume.name)
        left = storage.volumes()
        assert len(left) < count, "the clones go round in a circle"


def check_layers(place: Place, storage: Storage, made: VolumeSnapshot) -> None:
    """``made``, of the volume ``a``, and its clones hold what ``layered`` wrote."""
    volume = storage.get(vol("a"))
    assert (volume.size, dict(volume.tags)) == (2 * SIZE, TAGS)
    for copy in (volume, storage.clone(made, vol("b"), {})):
        assert place.get(copy, 0, 5) == b"below"
        assert place.get(copy, MIB, 4096) == bytes(4096)
        assert place.get(copy, 3 * MIB, 5) == b"above"
        assert place.get(copy, 2 * SIZE - 4, 4) == b"tail"
    place.put(volume, 0, b"write")
    assert place.get(storage.clone(made, vol("c"), {}), 0, 5) == b"below"
