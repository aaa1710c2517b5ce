"""Where disks live: volumes, their snapshots, and clones of those.

``Storage`` is the seam; the drivers are ``zfs`` (ZVols), ``qcow2`` (files) and ``fake`` (a
behaving fake).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from lab.config.profile import VolumeProfile
from lab.names import VolumeName

Tags = Mapping[str, str]
"""Small texts kept with a volume or guest by its driver; keys ``[a-z][a-z_]*``."""

VolumeFormat = Literal["raw", "qcow2", "block"]

PLAIN = VolumeProfile()
"""How a volume is kept if nothing else is said."""


@dataclass(frozen=True)
class Volume:
    """A volume as it exists: ``size`` is what a guest sees, in bytes.

    Nothing of it changes as long as the volume exists, but ``path`` by a rollback. That is what
    a hypervisor opens: a file, or a block device when ``format`` is block.
    """

    name: VolumeName
    path: Path
    format: VolumeFormat
    size: int
    tags: Tags


@dataclass(frozen=True)
class VolumeSnapshot:
    """A frozen point in time of a volume. ``size`` in bytes, as of the volume then."""

    volume: VolumeName
    label: str
    size: int


@dataclass(frozen=True)
class Space:
    """Bytes of the file system or pool that volumes are on."""

    free: int
    total: int


class Storage(Protocol):
    """Creates, snapshots, clones and destroys volumes.

    Safe for use by several threads and processes at once. Every call leaves either the
    whole result or nothing, also when the process is killed in the middle: what a killed
    call left is invisible to all other calls and removed by ``sweep``. The volumes of other
    installations count as absent, except that their names are taken.

    All calls raise InvalidSpec for a size, label or tag key that no volume can have.
    """

    name: str
    """The driver's name as in settings: ``qcow2``, ``zfs``."""

    def create(
        self, volume: VolumeName, size: int, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A new empty volume of ``size`` bytes that reads as zeros.

        ``profile``, here and below: how it is kept, as far as the driver can. A driver may
        round sizes up to whole MiB.

        Raises Conflict if it exists, HostUnfit (with figures) if there is no space.
        """

    def import_raw(
        self, volume: VolumeName, source: Path, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A new volume with the content of the raw disk file ``source``, holes kept.

        ``source`` may be consumed (moved) by this, unless it fails. Raises as ``create``
        does, and InvalidSpec if ``source`` is not a regular file.
        """

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        """Freeze all ``volumes`` at one point in time, or none of them.

        The caller has paused the guests that write to them. Raises NotFound if a volume
        is absent, Conflict if one already has a snapshot ``label`` or was tampered with, HostUnfit
        (with figures) if there is no space.
        """

    def persist(self, snapshots: Sequence[VolumeSnapshot]) -> None:
        """Make ``snapshots`` survive a power loss from now on.

        Apart from ``snapshot``, so that paused guests need not wait for the disk: call it
        after they resumed and before the capture is recorded as good. Raises NotFound.
        """

    def seal(self, snapshot: VolumeSnapshot) -> str:
        """A text that stays the same as long as nobody tampered with what ``snapshot`` reads as.

        It costs no reading of the content. Raises NotFound.
        """

    def snapshots(self, volume: VolumeName) -> list[VolumeSnapshot]:
        """The snapshots of ``volume``, oldest first; empty if the volume is absent."""

    def labels(self) -> dict[VolumeName, list[str]]:
        """The labels of the snapshots of all our volumes, oldest first: one listing for all."""

    def clone(
        self,
        origin: VolumeSnapshot,
        volume: VolumeName,
        tags: Tags,
        *,
        size: int = 0,
        profile: VolumeProfile = PLAIN,
    ) -> Volume:
        """A new writable volume that starts as ``origin``; takes milliseconds, shares blocks.

        ``size`` in bytes grows it; 0 keeps the origin's. The block size is the origin's,
        whatever ``profile`` says. Raises NotFound if the origin is
        gone, Conflict if ``volume`` exists, InvalidSpec if ``size`` is below the origin's.
        """

    def rollback(self, volume: VolumeName, label: str) -> Volume:
        """Put ``volume`` back to its snapshot ``label``; no guest may have it open.

        Later snapshots stay as they are. Returns the volume, whose path may be another one
        than before. Raises NotFound if there is no such snapshot or volume.
        """

    def check_rollback(self, volumes: Sequence[VolumeName], label: str) -> None:
        """Raise HostUnfit (with figures) unless ``rollback`` of all ``volumes`` fits as of now.

        Guests may have them open. Raises NotFound as ``rollback`` does.
        """

    def drop(self, snapshot: VolumeSnapshot) -> None:
        """Remove a snapshot; fine if it or its volume is absent. The volume stays as it is.

        Raises Conflict if a clone of it exists, or if the volume is not ours.
        """

    def destroy(self, volume: VolumeName) -> None:
        """Remove ``volume`` and its snapshots; fine if absent.

        Raises Conflict if a clone of one of its snapshots exists, or if it is not ours.
        """

    def volumes(self) -> list[Volume]:
        """All volumes that carry our tags, and no others."""

    def get(self, volume: VolumeName) -> Volume:
        """The volume of that name; raises NotFound."""

    def used(self, volume: VolumeName) -> int:
        """Bytes on disk that would be freed by destroying ``volume``; raises NotFound."""

    def space(self) -> Space:
        """Free and total bytes where volumes are kept."""

    def send(self, snapshot: VolumeSnapshot, to: BinaryIO, *, plain: bool = False) -> None:
        """Write the content of ``snapshot`` as a stream that ``receive`` of this driver reads.

        ``plain``: as one that all drivers read. Raises NotFound.
        """

    def receive(self, volume: VolumeName, source: BinaryIO, tags: Tags) -> VolumeSnapshot:
        """A new volume with one snapshot, from a stream that ``send`` wrote.

        Nothing is left when the stream is cut or damaged: raises InvalidSpec then, and as
        ``create`` does otherwise.
        """

    def sweep(self) -> list[str]:
        """Remove what killed calls left behind; says what, one line each."""
