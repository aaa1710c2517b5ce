"""The names of ZFS's tunables: files on Linux, sysctls on FreeBSD.

On Linux they are /sys/module/zfs/parameters/*, set for good in /etc/modprobe.d. On FreeBSD
the macro ZFS_MODULE_PARAM(scope, prefix, name, ...) of OpenZFS makes a sysctl
vfs.<scope, _ as .>.<name> (include/os/freebsd/spl/sys/mod_os.h), or module/os/freebsd has its
own. Read from OpenZFS 2.1.11, 2.2.9 (FreeBSD 14), 2.3.9 and 2.4.4 (FreeBSD 15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.host.zfs.facts import System, Tunable


@dataclass(frozen=True)
class Name:
    """``freebsd``: today's name, then older ones. ``at_load``: Linux reads it only then."""

    linux: str = ""
    freebsd: tuple[str, ...] = ()
    at_load: bool = False


# The older sysctls: aliases in module/os/freebsd/zfs/sysctl_os.c up to 2.4, gone after that
# ("tunables: remove legacy FreeBSD aliases"); cache_flush_disable and prefetch_disable are of
# the ZFS that FreeBSD had before 13. Linux has had one name for each throughout.
TUNABLES: Mapping[str, Name] = {
    "arc_max": Name("zfs_arc_max", ("vfs.zfs.arc.max", "vfs.zfs.arc_max")),
    "txg_timeout": Name("zfs_txg_timeout", ("vfs.zfs.txg.timeout",)),
    "prefetch_disable": Name(
        "zfs_prefetch_disable", ("vfs.zfs.prefetch.disable", "vfs.zfs.prefetch_disable")
    ),
    "nocacheflush": Name(
        "zfs_nocacheflush", ("vfs.zfs.nocacheflush", "vfs.zfs.cache_flush_disable")
    ),
    "zil_nocacheflush": Name("zil_nocacheflush", ("vfs.zfs.zil.nocacheflush",)),
    "bio_flush_disable": Name("", ("vfs.zfs.vdev.bio_flush_disable",)),
    "volmode": Name("zvol_volmode", ("vfs.zfs.vol.mode",)),
    "inhibit_dev": Name("zvol_inhibit_dev", ("vfs.zfs.vol.inhibit_dev",)),
    "zvol_threads": Name("zvol_threads", ("vfs.zfs.vol.threads",), at_load=True),
    "zvol_request_sync": Name("zvol_request_sync", ("vfs.zfs.vol.request_sync",)),
    "zvol_use_blk_mq": Name("zvol_use_blk_mq"),
}


def names_on(system: System, key: str) -> tuple[str, ...]:
    """The names that the tunable ``key`` may have there, the likeliest first."""
    name = TUNABLES[key]
    if system == "freebsd":
        return name.freebsd
    return (name.linux,) if name.linux else ()


def how_to_set(system: System, key: str, tunable: Tunable, value: int) -> str:
    """The commands that set it, now and for good."""
    if system == "freebsd":
        line = f"{tunable.name}={value}"
        return f"sysctl {line}; for good: the line {line} in /etc/sysctl.conf"
    good = f"the line `options zfs {tunable.name}={value}` in /etc/modprobe.d/zfs.conf"
    if TUNABLES[key].at_load:
        return f"{good}, then reboot (update-initramfs -u first, if ZFS is in the initramfs)"
    now = f"echo {value} > /sys/module/zfs/parameters/{tunable.name}"
    return f"{now}; for good: {good} (then update-initramfs -u, if ZFS is in the initramfs)"
