"""Storage of disks: volumes, their snapshots, and clones of those.

``Storage`` is the seam; the drivers are ``zfs`` (ZVols), ``qcow2`` (files) and ``fake`` (a
fake that behaves like one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

from lab.config.profile import VolumeProfile
from lab.names import VolumeName
from lab.values import dataclass

Tags = Mapping[str, str]
"""Small texts kept with a volume or guest by its driver; keys ``[a-z][a-z_]*``."""

VolumeFormat = Literal["raw", "qcow2", "block"]

PLAIN = VolumeProfile()
"""The profile of a volume for which none is given."""


@dataclass(frozen=True)
class Volume:
    """A volume as it exists.

    All fields are constant while the volume exists, except ``path``, which a rollback may change.
    """

    name: VolumeName
    path: Path
    """What a hypervisor opens: a file, or a block device when ``format`` is block."""
    format: VolumeFormat
    size: int
    """What a guest sees, in bytes."""
    tags: Tags


@dataclass(frozen=True)
class VolumeSnapshot:
    """A frozen point in time of a volume. ``size`` in bytes, as of the volume then."""

    volume: VolumeName
    label: str
    size: int


@dataclass(frozen=True)
class Space:
    """Space of the file system or pool that holds the volumes, in bytes."""

    free: int
    total: int


EXTENT = 1 << 20
"""The maximum length of an extent in bytes: so much of a volume is in memory at a time."""

Extent = tuple[int, bytes]
"""An offset in bytes, and the bytes there, one to ``EXTENT`` of them."""


@dataclass(frozen=True)
class Content:
    """What a snapshot holds."""

    size: int
    """Bytes, as a guest sees the volume."""

    data: int
    """About how many bytes a copy takes on disk; to check for space before it is written."""

    extents: Iterator[Extent]
    """Ascending; what no extent covers is zeros."""


class Source(Protocol):
    """What a stream is read from."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none at the end."""

    def readline(self, size: int, /) -> bytes:
        """The bytes up to a line's end, or ``size`` of them."""


class Storage(Protocol):
    """Creates, snapshots, clones and destroys volumes.

    Safe for use by several threads and processes at once. Every call is atomic, also if its
    process is killed: what a killed call left is invisible to all other calls, and removed by
    ``sweep``. The volumes of other installations count as absent, except that their names are
    taken.

    All calls raise InvalidSpec for a size, label or tag key that no volume can have.
    """

    name: str
    """The driver's name as in settings: ``qcow2``, ``zfs``."""
    native: bool
    """Whether its own streams are better than plain ones between two hosts that have it."""

    def create(
        self, volume: VolumeName, size: int, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A new empty volume of ``size`` bytes that reads as zeros.

        ``profile``, here and below: settings of the volume, as far as the driver has them. A
        driver may round sizes up to whole MiB.

        Raises Conflict if it exists, HostUnfit (with figures) if there is no space.
        """

    def import_raw(
        self, volume: VolumeName, source: Path, tags: Tags, *, profile: VolumeProfile = PLAIN
    ) -> Volume:
        """A new volume with the content of the raw disk file ``source``, holes kept.

        ``source`` may be moved, unless the call fails. Raises as ``create``
        does, and InvalidSpec if ``source`` is not a regular file.
        """

    def snapshot(self, volumes: Sequence[VolumeName], label: str) -> list[VolumeSnapshot]:
        """Take a snapshot of all ``volumes`` at one point in time, or of none of them.

        The caller has paused the guests that write to them. Raises NotFound if a volume
        is absent, Conflict if one has a snapshot ``label`` already or was tampered with, HostUnfit
        (with figures) if there is no space.
        """

    def persist(self, snapshots: Sequence[VolumeSnapshot]) -> None:
        """Write ``snapshots`` to stable storage: they survive a power loss from now on.

        A separate call, so that paused guests need not wait for the disk: call it after they
        resumed and before the capture is recorded as valid. Raises NotFound.
        """

    def seal(self, snapshot: VolumeSnapshot) -> str:
        """A text that changes if the content of ``snapshot`` was changed from outside.

        The content is not read for it. Raises NotFound.
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
        """A new writable clone of ``origin``; takes milliseconds, shares blocks.

        ``size`` in bytes grows it; 0 keeps the origin's. The block size is the origin's,
        whatever ``profile`` says. Raises NotFound if the origin is absent, Conflict if ``volume``
        exists, InvalidSpec if ``size`` is below the origin's.
        """

    def rollback(self, volume: VolumeName, label: str) -> Volume:
        """Roll back ``volume`` to its snapshot ``label``; no guest may have it open.

        Later snapshots are kept. Returns the volume, whose path may have changed. Raises NotFound
        if the snapshot or the volume does not exist.
        """

    def check_rollback(self, volumes: Sequence[VolumeName], label: str) -> None:
        """Raise HostUnfit (with figures) unless there is space now to roll back all ``volumes``.

        Guests may have them open. Raises NotFound as ``rollback`` does.
        """

    def spare(self, volume: VolumeName, label: str) -> Volume:
        """A second disk of ``volume``, as at its snapshot ``label``, for ``take_spare``.

        A guest may open it while others have the volume open: its path is the result's. There is
        one at most: an earlier one is dropped. It goes with the volume. Raises NotFound as
        ``rollback`` does, HostUnfit (with figures) if there is no space.
        """

    def take_spare(self, volume: VolumeName) -> Volume:
        """Make the spare disk of ``volume`` the volume's, with all snapshots kept.

        Guests may have both disks open; the former one is removed once none has. Returns the
        volume, whose path may have changed. Raises NotFound if the volume or its spare is absent.
        """

    def drop_spare(self, volume: VolumeName) -> None:
        """Remove the spare disk of ``volume``; no error if there is none."""

    def drop(self, snapshot: VolumeSnapshot) -> None:
        """Remove a snapshot; no error if it or its volume is absent. The volume is not changed.

        Raises Conflict if a clone of it exists, or if the volume is not ours.
        """

    def destroy(self, volume: VolumeName) -> None:
        """Remove ``volume`` and its snapshots; no error if it is absent.

        Raises Conflict if a clone of one of its snapshots exists, or if it is not ours.
        """

    def volumes(self) -> list[Volume]:
        """All volumes that carry our tags, and no others."""

    def get(self, volume: VolumeName) -> Volume:
        """The volume of that name; raises NotFound."""

    def used(self, volume: VolumeName) -> int:
        """Bytes on disk that would be freed by destroying ``volume``; raises NotFound."""

    def space(self) -> Space:
        """Free and total bytes of the file system or pool that holds the volumes."""

    def read(self, snapshot: VolumeSnapshot) -> AbstractContextManager[Content]:
        """The content of ``snapshot``, which is read in the block; any part of it.

        Raises NotFound, and HostUnfit if it cannot be read.
        """

    def write(self, volume: VolumeName, label: str, content: Content, tags: Tags) -> VolumeSnapshot:
        """A new volume of ``content`` with one snapshot ``label``, both on stable storage.

        Raises as ``create`` does, InvalidSpec for extents out of place, what ``content`` raises.
        """

    def send(self, snapshot: VolumeSnapshot) -> AbstractContextManager[Iterator[bytes]]:
        """The content of ``snapshot`` as a stream that ``receive`` of this driver reads.

        It is read in the block, in pieces of about 1 MiB or less. Raises NotFound.
        """

    def receive(self, volume: VolumeName, source: Source, tags: Tags) -> VolumeSnapshot:
        """A new volume with one snapshot, from a stream that ``send`` made.

        Raises InvalidSpec if the stream is truncated or damaged, and leaves nothing; otherwise as
        ``create`` does.
        """

    def sweep(self) -> list[str]:
        """Remove what killed calls left; returns a line for each."""
