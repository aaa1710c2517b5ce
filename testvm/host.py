"""Whether this host can run the tests itself, because its kernel has ZFS."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.errors import CommandFailed
from lab.run import run

DEVICE = Path("/dev/zfs")


def why_not() -> str:
    """Why the tests cannot use this host's own ZFS; empty if they can."""
    if not shutil.which("zfs") or not shutil.which("zpool"):
        return "zfs is not installed"
    if not DEVICE.exists():
        return f"{DEVICE} does not exist: this kernel has no ZFS"
    if os.geteuid() != 0:
        return "only root can make pools"
    try:
        run(["zpool", "list", "-H", "-o", "name"], timeout=30)
    except CommandFailed as error:
        return f"zpool list fails: {(error.details or (error.what,))[-1]}"
    return ""
