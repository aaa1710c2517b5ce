"""Gives QEMU's user access to a block device, by an access control list on its node.

Owner and mode cannot be used: udev resets both whenever the device is closed after a write, and the
group that owns it would let QEMU open all disks of the host. libvirt copies the list to the private
/dev that it creates for each QEMU.

Format of the attribute: Linux, include/uapi/linux/posix_acl_xattr.h; semantics: acl(5).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from lab.errors import HostUnfit

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, permissions, id
_ANYBODY = 0xFFFFFFFF
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_WRITE = 6

Entries = dict[tuple[int, int], int]
"""Permissions by tag and id."""


def let_open(device: Path, user: int) -> None:
    """Let ``user``, a uid, read and write ``device``; raises HostUnfit if not permitted."""
    try:
        handle = os.open(device, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(device, user, error) from error
    try:
        # The node itself: a link may be changed to another device meanwhile.
        node = Path(f"/proc/self/fd/{handle}")
        status = node.stat()
        if not stat.S_ISBLK(status.st_mode) or status.st_uid == user:
            return
        entries = _read(node, status.st_mode)
        allowed = {**entries, (_USER, user): _READ_WRITE, (_MASK, _ANYBODY): _READ_WRITE}
        if allowed != entries:
            os.setxattr(node, _ATTRIBUTE, _encode(allowed))
    except OSError as error:
        raise _refused(device, user, error) from error
    finally:
        os.close(handle)


def _read(node: Path, mode: int) -> Entries:
    try:
        return _decode(os.getxattr(node, _ATTRIBUTE))
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
    return {
        (_OWNER, _ANYBODY): mode >> 6 & 7,
        (_GROUP, _ANYBODY): mode >> 3 & 7,
        (_OTHER, _ANYBODY): mode & 7,
    }


def _decode(value: bytes) -> Entries:
    found = _ENTRY.iter_unpack(value[_VERSION.size :])
    return {(tag, name): permissions for tag, permissions, name in found}


def _encode(entries: Entries) -> bytes:
    # The kernel requires them sorted by tag, then by id.
    rows = (_ENTRY.pack(tag, entries[tag, name], name) for tag, name in sorted(entries))
    return _VERSION.pack(2) + b"".join(rows)


def _refused(device: Path, user: int, error: OSError) -> HostUnfit:
    return HostUnfit(
        f"QEMU's user {user} cannot be given access to {device}: {error.strerror}",
        hint="run lab as root, or use qemu:///session, where QEMU runs as yourself",
    )
