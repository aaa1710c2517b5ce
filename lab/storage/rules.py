"""The checks and error messages that all drivers share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lab.errors import ROOM_RETRY, Conflict, HostUnfit, InvalidSpec, NotFound
from lab.names import VolumeName
from lab.storage import Extent, Tags, VolumeSnapshot
from lab.units import format_size

SECTOR = 512
SIZE_LIMIT = 64 << 40
"""The maximum size of a volume in bytes: 64 TiB."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_TAG = re.compile(r"[a-z][a-z_]*")


def check_label(label: str) -> str:
    """``label`` if it can name a snapshot; raises InvalidSpec."""
    if not _LABEL.fullmatch(label):
        raise InvalidSpec(
            f"{label!r} cannot name a snapshot",
            hint="up to 64 lower-case letters, digits, dots, hyphens and underscores",
        )
    return label


def check_size(size: int) -> int:
    """``size`` in bytes if a volume can have it; raises InvalidSpec."""
    if not 0 < size <= SIZE_LIMIT or size % SECTOR:
        raise InvalidSpec(
            f"a volume cannot have {size} bytes",
            hint=f"give a multiple of {SECTOR}, at most {format_size(SIZE_LIMIT)}",
        )
    return size


def check_tags(tags: Tags) -> dict[str, str]:
    """A copy of ``tags`` if all keys are valid; raises InvalidSpec."""
    for key in tags:
        if not _TAG.fullmatch(key):
            raise InvalidSpec(f"{key!r} cannot be the key of a tag")
    return dict(tags)


def clone_size(origin: VolumeName, smallest: int, size: int) -> int:
    """The size in bytes of a clone of ``origin`` if ``size`` was requested; 0 for the origin's.

    Raises InvalidSpec if that is below ``smallest``, the size of the snapshot.
    """
    if size and check_size(size) < smallest:
        raise InvalidSpec(
            f"a clone of {origin} cannot be smaller than {format_size(smallest)},"
            f" {format_size(size)} is too small"
        )
    return size or smallest


def in_place(volume: VolumeName, size: int, extents: Iterator[Extent]) -> Iterator[Extent]:
    """``extents`` for ``volume`` of ``size`` bytes; raises InvalidSpec for one out of place."""
    end = 0
    for offset, data in extents:
        if offset < end or offset + len(data) > size:
            raise InvalidSpec(
                f"the content for volume {volume} is damaged: an extent is out of place",
                hint="export or copy it again",
            )
        end = offset + len(data)
        yield offset, data


def readable(snapshot: VolumeSnapshot, extents: Iterator[Extent]) -> Iterator[Extent]:
    """``extents`` of ``snapshot``; raises HostUnfit where the disk returns an error."""
    try:
        yield from extents
    except OSError as error:
        raise HostUnfit(
            f"snapshot {snapshot.label} of volume {snapshot.volume} cannot be read:"
            f" {error.strerror}",
            hint="the kernel's log (`dmesg`) has the error of the disk",
        ) from error


def absent(volume: VolumeName) -> NotFound:
    """The error for a volume that does not exist, or is of another installation."""
    return NotFound(f"volume {volume} does not exist")


def no_snapshot(volume: VolumeName, label: str) -> NotFound:
    """The error for a snapshot that does not exist."""
    return NotFound(f"volume {volume} has no snapshot {label}")


def no_spare(volume: VolumeName) -> NotFound:
    """The error for a volume without a spare disk."""
    return NotFound(f"volume {volume} has no spare disk")


def exists(volume: VolumeName) -> Conflict:
    """The error for a volume that exists already, in any installation."""
    return Conflict(f"volume {volume} exists already")


def has_snapshot(volume: VolumeName, label: str) -> Conflict:
    """The error for a snapshot that exists already."""
    return Conflict(f"volume {volume} has a snapshot {label} already")


def not_ours(volume: VolumeName) -> Conflict:
    """The error for a volume that another installation made, or that cannot be read."""
    return Conflict(
        f"volume {volume} does not belong to this installation",
        hint="it lacks the tag of this installation; remove it by hand if it is unused",
    )


def has_clones(volume: VolumeName, clones: list[str]) -> Conflict:
    """The error for a volume whose snapshots have ``clones``."""
    first = ", ".join(clones[:3]) + (" ..." if len(clones) > 3 else "")
    return Conflict(
        f"volume {volume} has {len(clones)} clone{'s' * (len(clones) > 1)}: {first}",
        hint="destroy those first",
    )


def no_space(where: str, needs: int, free: int) -> HostUnfit:
    """The error for a full disk; ``needs`` and ``free`` in bytes."""
    return HostUnfit(
        f"no space on {where}: {format_size(needs)} needed, {format_size(free)} free",
        hint="free some space, stop labs that are no longer needed, or run `lab gc`",
        retry_after=ROOM_RETRY,
    )
