"""Which operating system this is. Nothing outside ``lab/host`` and the drivers asks."""

from __future__ import annotations

import contextlib
import sys
from typing import Literal

System = Literal["linux", "freebsd", "other"]


def system(name: str = sys.platform) -> System:
    """The system's family; ``name`` as Python's ``sys.platform`` gives it."""
    if name == "linux":
        return "linux"
    return "freebsd" if name.startswith("freebsd") else "other"


def hypervisor(name: System) -> Literal["libvirt", "bhyve"]:
    """What guests run under on a system, unless something else is asked for."""
    return "bhyve" if name == "freebsd" else "libvirt"


def describe() -> str:
    """Distribution and kernel, for people."""
    import platform  # only here: every command asks for ``hypervisor``

    kernel = f"{platform.system()} {platform.release()}"
    with contextlib.suppress(OSError):  # no os-release file
        return f"{platform.freedesktop_os_release().get('PRETTY_NAME', '?')}, {kernel}"
    return kernel
