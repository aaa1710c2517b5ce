"""The faults that ``zfs`` reports on stderr.

Only the exact messages of known versions (2.1 to 2.4) count, at the end of "cannot ...: reason".
Any other message is shown as it is.
"""

from __future__ import annotations

import re
from enum import Enum

from lab.errors import CommandFailed, HostUnfit


class Fault(Enum):
    """Why a command failed, as far as callers distinguish it."""

    ABSENT = "the dataset does not exist"
    EXISTS = "the dataset exists already"
    NO_POOL = "the pool is not imported"
    NO_PARENT = "the dataset above it does not exist"
    BUSY = "the dataset is busy"
    HAS_CLONES = "a snapshot has clones"
    HAS_CHILDREN = "the dataset has children or snapshots"
    NEWER = "there are later snapshots"
    NO_SPACE = "the pool or a quota is full"
    FORBIDDEN = "a permission is missing"
    SUSPENDED = "the pool is suspended"
    NO_MODULE = "the kernel has no ZFS"
    BAD_STREAM = "the stream is damaged, or is none"
    HELD = "the hold exists already"
    OTHER = "unknown"


_WHY: dict[str, Fault] = {
    "dataset does not exist": Fault.ABSENT,
    "no such pool or dataset": Fault.ABSENT,
    "no such pool": Fault.NO_POOL,
    "dataset already exists": Fault.EXISTS,
    "pool or dataset exists": Fault.EXISTS,
    "parent does not exist": Fault.NO_PARENT,
    "dataset is busy": Fault.BUSY,
    "pool or dataset is busy": Fault.BUSY,
    "snapshot has dependent clones": Fault.HAS_CLONES,
    "filesystem has children": Fault.HAS_CHILDREN,
    "volume has children": Fault.HAS_CHILDREN,
    "filesystem has dependent clones": Fault.HAS_CLONES,
    "volume has dependent clones": Fault.HAS_CLONES,
    "more recent snapshots or bookmarks exist": Fault.NEWER,
    "more recent snapshots exist": Fault.NEWER,
    "out of space": Fault.NO_SPACE,
    "no space left on device": Fault.NO_SPACE,
    "permission denied": Fault.FORBIDDEN,
    "pool I/O is currently suspended": Fault.SUSPENDED,
    "pool is unavailable": Fault.SUSPENDED,
    "tag already exists on this dataset": Fault.HELD,
    "invalid backup stream": Fault.BAD_STREAM,
    "incomplete stream": Fault.BAD_STREAM,
    "checksum mismatch": Fault.BAD_STREAM,
    "checksum mismatch or incomplete stream": Fault.BAD_STREAM,
    "failed to read from stream": Fault.BAD_STREAM,
    "invalid stream (bad magic number)": Fault.BAD_STREAM,
    "invalid stream (checksum mismatch)": Fault.BAD_STREAM,
    "invalid stream (malformed nvlist)": Fault.BAD_STREAM,
}
_REFUSED = re.compile(r"cannot [a-z][^\n]*?: ([^:\n]+?)\.?")
_LINES: tuple[tuple[re.Pattern[str], Fault], ...] = (
    (re.compile(r"The ZFS modules (are not loaded|cannot be auto-loaded)\..*"), Fault.NO_MODULE),
    (re.compile(r"Permission denied the ZFS utilities must be run as root\."), Fault.FORBIDDEN),
    (re.compile(r"Unable to open /dev/zfs: .*"), Fault.FORBIDDEN),
    (re.compile(r"could not find any snapshots to destroy; .*"), Fault.ABSENT),
    (re.compile(r"cannot (create|rename) .*: no such parent '[^']*'"), Fault.NO_PARENT),
    (re.compile(r"cannot [a-z].*: no such pool '[^']*'"), Fault.NO_POOL),
    (re.compile(r"cannot receive [^:]*: destination .* space quota exceeded\.?"), Fault.NO_SPACE),
)
"""Whole lines that are not of the common form."""


def classify(stderr: str) -> Fault:
    """The fault that the first known line reports."""
    for line in stderr.split("\n"):
        text = line.strip()
        for pattern, fault in _LINES:
            if pattern.fullmatch(text):
                return fault
        found = _REFUSED.fullmatch(text)
        if found and found[1] in _WHY:
            return _WHY[found[1]]
    return Fault.OTHER


def fault_of(error: CommandFailed) -> Fault:
    """Why ``zfs`` failed; one that was killed has printed nothing."""
    return classify(error.stderr) if error.status > 0 else Fault.OTHER


def host_error(error: CommandFailed, root: str) -> HostUnfit | None:
    """The error for a fault of the host; None for other faults.

    A full pool is not among them: its error needs figures.
    """
    pool = root.partition("/")[0]
    words = error.stderr.strip().splitlines()[-3:]
    fault = fault_of(error)
    if fault is Fault.NO_POOL:
        return no_pool(root)
    if fault is Fault.FORBIDDEN:
        return HostUnfit(
            f"no permission for ZFS below {root}",
            hint="`lab host init` prints the `zfs allow` commands that are missing",
            details=words,
        )
    if fault is Fault.SUSPENDED:
        return HostUnfit(
            f"pool {pool} is suspended: disks are missing",
            hint=f"`zpool status {pool}` shows them; `zpool clear {pool}` once they are back",
            details=words,
        )
    if fault is Fault.NO_MODULE:
        return HostUnfit("the kernel has no ZFS", hint="modprobe zfs", details=words)
    return None


def no_pool(root: str) -> HostUnfit:
    """The error for a parent dataset that does not exist."""
    pool = root.partition("/")[0]
    return HostUnfit(
        f"there is no dataset {root}",
        hint=f"`zpool import {pool}` if the pool was exported, else `lab host init --pool {root}`",
    )
