"""Our own files in the guest, handed over with each boot as part of the initial RAM disk.

They are no part of the image: a change of them costs no build. Format: Linux's
Documentation/driver-api/early-userspace/buffer-format.rst ("newc"; archives may be joined).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testvm.release import GUEST

AGENT = ("__init__.py", "agent.py", "wire.py")
_PACKAGE = Path(__file__).parent
_LIB = "ours/usr/lib/testvm"


def initrd(base: bytes) -> bytes:
    """The image's initial RAM disk with our files added."""
    entries = [
        ("init", 0o755, GUEST / "init"),
        (f"{_LIB}/boot", 0o755, GUEST / "boot"),
        ("ours/etc/inittab", 0o644, GUEST / "inittab"),
        *((f"{_LIB}/testvm/{name}", 0o644, _PACKAGE / name) for name in AGENT),
    ]
    # Each archive begins at a multiple of four.
    padding = bytes(-len(base) % 4)
    return base + padding + cpio((path, mode, file.read_bytes()) for path, mode, file in entries)


def cpio(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive of ``files`` (path, permissions, content) and of their directories."""
    archive = bytearray()
    known: set[str] = set()
    number = 0
    for path, mode, content in files:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            directory = "/".join(parts[:depth])
            if directory not in known:
                known.add(directory)
                number += 1
                archive += _entry(number, directory, 0o040755, b"")
        number += 1
        archive += _entry(number, path, 0o100000 | mode, content)
    return bytes(archive + _entry(0, "TRAILER!!!", 0, b""))


def _entry(number: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    links = 1
    # Number, mode, owner, group, links, time, size, four of devices, size of name, checksum.
    fields = [number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
