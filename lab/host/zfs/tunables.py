"""The names of ZFS's tunables: files on Linux, sysctls on FreeBSD.

On Linux they are /sys/module/zfs/parameters/*, set for good in /etc/modprobe.d. On FreeBSD
the macro ZFS_MODULE_PARAM(scope, prefix, name, ...) of OpenZFS makes a sysctl
vfs.<scope, _ as .>.<name> (include/os/freebsd/spl/sys/mod_os.h), or module/os/freebsd has its
own. Read from OpenZFS 2.1.11, 2.2.9 (FreeBSD 14), 2.3.9 and 2.4.4 (FreeBSD 15).
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.host.zfs.facts import System, Tunable

# Our name -> Linux's name, and FreeBSD's: today's, then older ones. The older sysctls: aliases in
# module/os/freebsd/zfs/sysctl_os.c up to 2.4, gone after that ("tunables: remove legacy FreeBSD
# aliases"); cache_flush_disable and prefetch_disable are of the ZFS that FreeBSD had before 13.
# Linux has had one name for each throughout.
TUNABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "arc_max": ("zfs_arc_max", ("vfs.zfs.arc.max", "vfs.zfs.arc_max")),
    "txg_timeout": ("zfs_txg_timeout", ("vfs.zfs.txg.timeout",)),
    "prefetch_disable": (
        "zfs_prefetch_disable", ("vfs.zfs.prefetch.disable", "vfs.zfs.prefetch_disable"),
    ),
    "nocacheflush": (
        "zfs_nocacheflush", ("vfs.zfs.nocacheflush", "vfs.zfs.cache_flush_disable"),
    ),
    "zil_nocacheflush": ("zil_nocacheflush", ("vfs.zfs.zil.nocacheflush",)),
    "bio_flush_disable": ("", ("vfs.zfs.vdev.bio_flush_disable",)),
    "volmode": ("zvol_volmode", ("vfs.zfs.vol.mode",)),
    "inhibit_dev": ("zvol_inhibit_dev", ("vfs.zfs.vol.inhibit_dev",)),
    "zvol_threads": ("zvol_threads", ("vfs.zfs.vol.threads",)),
    "zvol_request_sync": ("zvol_request_sync", ("vfs.zfs.vol.request_sync",)),
    "zvol_use_blk_mq": ("zvol_use_blk_mq", ()),
}  # fmt: skip

_AT_LOAD = ("zvol_threads",)
"""Linux reads these when the module is loaded, and only then."""


def names_on(system: System, key: str) -> tuple[str, ...]:
    """The names that the tunable ``key`` may have there, the likeliest first."""
    on_linux, on_freebsd = TUNABLES[key]
    if system == "freebsd":
        return on_freebsd
    return (on_linux,) if on_linux else ()


def how_to_set(system: System, key: str, tunable: Tunable, value: int) -> str:
    """The commands that set it, now and for good."""
    if system == "freebsd":
        line = f"{tunable.name}={value}"
        return f"sysctl {line}; for good: the line {line} in /etc/sysctl.conf"
    good = f"the line `options zfs {tunable.name}={value}` in /etc/modprobe.d/zfs.conf"
    if key in _AT_LOAD:
        return f"{good}, then reboot (update-initramfs -u first, if ZFS is in the initramfs)"
    now = f"echo {value} > /sys/module/zfs/parameters/{tunable.name}"
    return f"{now}; for good: {good} (then update-initramfs -u, if ZFS is in the initramfs)"
