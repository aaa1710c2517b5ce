"""A container for the programs that a root file system is made with.

Also a program, to be run as root of the namespaces of ``isolate.isolated``::

    python3 -I -S contain.py ROOT COMMAND...

Programs of an added build are run in it, and those of Debian after them: none may be more than a
stranger on this machine. So nothing of the host is left to see: ``ROOT`` is the whole tree of
files, with devices and a read-only /proc of its own; and root has only the capabilities that
change files of ``ROOT`` and the user of a process. A user namespace would be another fence, but
lab.service forbids them, and an ordinary user is in one already.

Only the standard library, and nothing of ``lab``: it runs with ``-I -S``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8  # linux/mount.h
_MS_REMOUNT, _MS_NOATIME, _MS_NODIRATIME, _MS_BIND = 32, 1024, 2048, 4096
_MS_REC, _MS_RELATIME = 1 << 14, 1 << 21
_MNT_DETACH = 2
_ST_RELATIME = 4096  # of statvfs, another number than the mount's
_SAME = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOATIME | _MS_NODIRATIME
"""Flags of mounts that statvfs has by the same numbers."""
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38  # linux/prctl.h
_CAPABILITY_VERSION = 0x20080522  # linux/capability.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

KEPT = {
    "chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7,
}  # fmt: skip
"""The capabilities of root in it, linux/capability.h: files of the image, and the user mysql."""

DEVICES = ("null", "zero", "full", "random", "urandom")
_GIB = 1 << 30
LIMITS = {
    # Not RLIMIT_AS: MariaDB reserves terabytes of addresses, which are no memory.
    resource.RLIMIT_DATA: 8 * _GIB,
    resource.RLIMIT_FSIZE: 8 * _GIB,
    resource.RLIMIT_CPU: 3600,
    resource.RLIMIT_NPROC: 1024,
    resource.RLIMIT_NOFILE: 16384,
    resource.RLIMIT_CORE: 0,
}
_ENVIRONMENT = (
    "LAB_IMAGE_BUILD=inside", "HOME=/root", "LC_ALL=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # systemctl compares the root of PID 1, which is in here as well.
    "SYSTEMD_OFFLINE=1",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def _done(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    _done(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data)), f"mount {target}")


def _bind(source: str, target: str, flags: int) -> None:
    """Show ``source`` at ``target``, with these flags and those that it has there."""
    _mount(source, target, "", _MS_BIND)
    found = os.statvfs(target).f_flag
    has = found & _SAME | (_MS_RELATIME if found & _ST_RELATIME else 0)
    _mount("", target, "", _MS_BIND | _MS_REMOUNT | has | flags)


def _directory(path: str) -> str:
    """A directory of the image; it is no link, which would lead out of it as long as we are."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise OSError(errno.ENOTDIR, f"{path} of the image is no directory")
    return path


def _files(root: str) -> None:
    """Make ``root`` the root of all that this process can name."""
    # Whose root is not that of its mounts cannot make a user namespace, with new capabilities.
    stage = _directory(f"{root}/tmp")  # noqa: S108  the image's
    _mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "mode=755,size=64k")
    root, former = f"{stage}/root", root
    Path(root).mkdir()
    _bind(former, root, _MS_NOSUID | _MS_NODEV)
    plain = _MS_NOSUID | _MS_NODEV
    dev = _directory(f"{root}/dev")
    _mount("tmpfs", dev, "tmpfs", plain | _MS_NOEXEC, "mode=755,size=256m")
    for name in DEVICES:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_EXCL, 0o666))
        # Read-only: its mode and owner are the host's own. What is written goes to the device.
        _bind(f"/dev/{name}", f"{dev}/{name}", _MS_RDONLY | _MS_NOSUID | _MS_NOEXEC)
    Path(dev, "fd").symlink_to("/proc/self/fd")
    Path(dev, "shm").mkdir()
    Path(dev, "shm").chmod(0o1777)
    proc = _directory(f"{root}/proc")
    try:
        _mount("proc", proc, "proc", plain | _MS_NOEXEC | _MS_RDONLY)
    except OSError:
        # A container may forbid a fresh one; this namespace's own does as well.
        _mount("/proc", proc, "", _MS_BIND | _MS_REC)
        _bind(proc, proc, plain | _MS_NOEXEC | _MS_RDONLY)
    for name, how in (("run", "mode=755,size=256m"), ("tmp", "mode=1777,size=1g")):
        _mount("tmpfs", _directory(f"{root}/{name}"), "tmpfs", plain, how)
    os.chdir(stage)
    _done(_libc.pivot_root(b".", b"."), "pivot_root")
    # The former root lies over the new one; with it goes all that was mounted in it.
    _done(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/root")
    _mount("", "/", "", _MS_BIND | _MS_REMOUNT | plain | _MS_NOEXEC | _MS_RDONLY)
    os.chroot(".")
    os.chdir("/")


def _loopback() -> None:
    """Servers listen at it; who may do this afterwards could change the host's as well."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        asked = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(handle, _SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _limit() -> None:
    # Where memory runs out, these are ended, and not the labs of this host.
    Path("/proc/self/oom_score_adj").write_text("1000")
    for what, most in LIMITS.items():
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def _drop() -> None:
    """Give up all capabilities but ``KEPT``, for good."""
    kept = frozenset(KEPT.values())
    capability = 0
    while True:
        what = _PR_CAPBSET_READ if capability in kept else _PR_CAPBSET_DROP
        if _libc.prctl(what, capability, 0, 0, 0) < 0:
            break  # the kernel has no more
        capability += 1
    if capability < max(kept):
        raise OSError(ctypes.get_errno(), f"capability {capability} cannot be dropped")
    mask = sum(1 << one for one in kept)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    # Effective, permitted, inheritable: of each the low words first.
    _done(_libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)), "capset")
    _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def main(words: Sequence[str]) -> int:
    """Become the command, in the container; returns only if that cannot be."""
    root, *command = words
    try:
        _limit()
        _loopback()
        _files(os.path.realpath(root))
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        _drop()
        # By a program of the image: this one's own modules cannot be read any more.
        os.execv("/usr/bin/env", ["env", "-i", *_ENVIRONMENT, *command])  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"contain: {error}\n")
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
