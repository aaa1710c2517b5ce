"""The path of a ZVol's device, and the wait for it.

On Linux the kernel creates /dev/zdN at once and udev the link /dev/zvol/<dataset> later. A link may
be stale, of a dataset that had the name before or was renamed: so the device is queried for its
dataset (ioctl BLKZNAME). Without udev, as in containers, all devices are searched that way. FreeBSD
has the device itself at /dev/zvol/<dataset>.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.errors import HostUnfit
from lab.wait import Deadline, attempts

_NAME_BYTES = 256
_BLKZNAME = 2 << 30 | _NAME_BYTES << 16 | 0x12 << 8 | 125  # _IOR(0x12, 125, char[256])
_GONE = (errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.ENOTDIR, errno.ENOTTY, errno.EINVAL)
_DEVICE = re.compile(r"zd[0-9]+")
_PATIENCE = 1.0  # seconds after which the devices are searched

DEV = Path("/dev")


def place(dataset: str, dev: Path = DEV) -> Path:
    """The path of the device of ``dataset``, which may not exist yet."""
    link = dev / "zvol" / dataset
    if sys.platform == "linux" and not os.path.lexists(link) and not _has_udev():
        return _search(dataset, dev) or link
    return link


def wait_for(dataset: str, size: int, *, timeout: float = 20.0, dev: Path = DEV) -> Path:
    """Wait until the device of ``dataset`` exists with ``size`` bytes; its path.

    Raises HostUnfit when that takes longer than ``timeout`` seconds.
    """
    deadline = Deadline.after(timeout)
    patience = Deadline.after(_PATIENCE if _has_udev() else 0)
    link = dev / "zvol" / dataset
    for _ in attempts(deadline, first=0.001, most=0.05):
        if _is(link, dataset, size):
            return link
        if sys.platform == "linux" and patience.passed:
            found = _search(dataset, dev)
            if found and _is(found, dataset, size):
                return found
    if link.exists() and not os.access(link, os.R_OK):
        raise forbidden(link)
    raise _missing(link, dataset, timeout)


def forbidden(path: Path) -> HostUnfit:
    """The error for a device that this user may not open."""
    return HostUnfit(
        f"no permission to open {path}",
        hint="become a member of the group that owns it (disk), or give it to yours by a udev rule",
    )


def users(path: Path) -> list[str]:
    """The block devices on top of the device, such as maps of LVM or multipath."""
    with contextlib.suppress(OSError):
        holders = Path("/sys/class/block") / path.resolve().name / "holders"
        return sorted(one.name for one in holders.iterdir())
    return []


def _is(path: Path, dataset: str, size: int) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # does not exist yet, or udev has not set its group yet
        return False
    try:
        return _name(handle) in (dataset, None) and os.lseek(handle, 0, os.SEEK_END) == size
    except OSError:
        return False
    finally:
        os.close(handle)


def _name(handle: int) -> str | None:
    """The dataset of the open device; empty if it is no ZVol, None if the query is unsupported."""
    if sys.platform != "linux":
        return None
    if not stat.S_ISBLK(os.fstat(handle).st_mode):
        return ""
    buffer = bytearray(_NAME_BYTES)
    try:
        fcntl.ioctl(handle, _BLKZNAME, buffer)
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise
    return buffer.split(b"\0", 1)[0].decode(errors="replace")


def _search(dataset: str, dev: Path) -> Path | None:
    for path in _devices(dev):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if _name(handle) == dataset:
                    return path
            finally:
                os.close(handle)
    return None


def _devices(dev: Path) -> Iterator[Path]:
    """All ZVols' devices, the newest first."""
    found = [path for path in dev.iterdir() if _DEVICE.fullmatch(path.name)]
    yield from sorted(found, key=lambda path: -int(path.name[2:]))


def _has_udev() -> bool:
    return Path("/run/udev/control").exists()


def _missing(link: Path, dataset: str, timeout: float) -> HostUnfit:
    udev = "is udev's rule 60-zvol.rules installed?" if _has_udev() else "udev does not run here"
    return HostUnfit(
        f"the device of {dataset} did not appear at {link} within {timeout:g} s",
        hint=f"{udev} `zfs get volmode,snapdev {dataset}` must not be none"
        if sys.platform == "linux"
        else f"`zfs get volmode {dataset}` must be dev",
    )
