"""The pages of RAM that a guest changed since it was restored, read from QEMU's process.

A restored guest's RAM is a private mapping of the RAM file of a capture. A page that was written
is private to the process; /proc/PID/pagemap distinguishes it from pages of the file: it is present
or swapped out, and not a page of a file.
Source: Documentation/admin-guide/mm/pagemap.rst of Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from lab.hypervisor.libvirt.stream import PAGE, Page

_PRESENT, _SWAPPED, _FILE = 0x80, 0x40, 0x20  # bits 63, 62 and 61, in the highest byte of an entry
_OWN = bytes(1 if byte & (_PRESENT | _SWAPPED) and not byte & _FILE else 0 for byte in range(256))
_RUN = re.compile(rb"\x01+")
_LONGEST = 4 << 20
"""Bytes per read."""

Run = tuple[int, int]
"""Consecutive pages: the index of the first, and their number."""


class Unreadable(Exception):
    """The memory of a process cannot be read; the text says why."""


def process_of(uuid: str, processes: Path = Path("/proc")) -> int:
    """The process whose command line has the domain's UUID; raises Unreadable."""
    option = b"\0-uuid\0" + uuid.encode() + b"\0"
    for entry in processes.iterdir():
        if entry.name.isdigit():
            try:
                if option in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:  # it has ended
                continue
    raise Unreadable("QEMU's process is not in /proc")


class Mapping:
    """The private mapping of ``size`` bytes of the file ``ram`` in the process ``pid``.

    Raises Unreadable, also if reading another process's memory is not permitted, such as with
    Yama's ptrace_scope above 0 for users other than root. To be closed.
    """

    def __init__(self, pid: int, ram: Path, size: int) -> None:
        try:
            self._start = _start(pid, ram.resolve(strict=True), size)
            self._pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"QEMU's memory cannot be read: {error.strerror}") from None
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(self._pagemap)
            raise Unreadable(f"QEMU's memory cannot be read: {error.strerror}") from None
        self._size = size

    def close(self) -> None:
        """Close the files."""
        os.close(self._pagemap)
        os.close(self._memory)

    def changed(self) -> list[Run]:
        """The runs of pages that differ, or may differ, from the file's; raises Unreadable."""
        count = self._size // PAGE
        entries = _read(self._pagemap, 8 * count, 8 * (self._start // PAGE))
        own = entries[7::8].translate(_OWN)  # little-endian: the highest byte comes last
        return [(found.start(), found.end() - found.start()) for found in _RUN.finditer(own)]

    def pages(self, block: str, runs: list[Run]) -> Iterator[Page]:
        """The pages of ``runs``, as those of ``block``; raises Unreadable."""
        most = _LONGEST // PAGE
        for first, count in runs:
            for begin in range(first, first + count, most):
                number = min(most, first + count - begin)
                data = memoryview(_read(self._memory, number * PAGE, self._start + begin * PAGE))
                for index in range(number):
                    page = data[index * PAGE : (index + 1) * PAGE]
                    yield Page(block, (begin + index) * PAGE, page)


def _start(pid: int, ram: Path, size: int) -> int:
    """Where a process maps all of a file privately; raises Unreadable."""
    # By path: on some file systems the device in this list differs from the one of stat(2).
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        addresses, rights, offset, _, _, path = (*line.split(None, 5), "")[:6]
        if path == str(ram) and rights[3] == "p" and int(offset, 16) == 0:
            start, end = (int(part, 16) for part in addresses.split("-"))
            if end - start == size:
                return start
    raise Unreadable("QEMU does not map the capture's RAM file privately, in one piece")


def _read(handle: int, length: int, offset: int) -> bytes:
    parts = []
    while length:
        try:
            part = os.pread(handle, length, offset)
        except OSError as error:
            raise Unreadable(f"QEMU's memory cannot be read: {error.strerror}") from None
        if not part:
            raise Unreadable("QEMU's memory ends early")
        parts.append(part)
        length, offset = length - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
