"""RAM files in the page cache, so that guests that map them do not wait for the disk."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lab.storage.sparse import extents

_READ_AHEAD = 128 << 10
"""Bytes per call: of a larger range Linux reads only the device's read-ahead size, usually this, or
its largest request (force_page_cache_ra in mm/readahead.c)."""
_SAMPLES = 64


def read_ahead(path: Path) -> None:
    """Have the kernel read a RAM file into the page cache, while QEMU starts.

    After a reboot of the host nothing is cached, and a resumed guest would wait for the disk at
    each page fault, 128 KiB at a time (readahead), while its cluster waits for it. Holes are
    skipped: reading them would fill the cache with zeros. The calls take 10 to 25 ms for 300 MB
    that are cached, so samples decide whether to make them. Guests are resumed after all calls:
    before that their own reads would queue behind these. Source: posix_fadvise(2).
    """
    with suppress(OSError), path.open("rb") as file:  # without it guests are slower, no more
        handle = file.fileno()
        if not is_cached(handle):
            for start, length in extents(handle):
                for offset in range(start, start + length, _READ_AHEAD):
                    size = min(_READ_AHEAD, start + length - offset)
                    os.posix_fadvise(handle, offset, size, os.POSIX_FADV_WILLNEED)


def is_cached(handle: int) -> bool:
    """Whether the data of an open file is in the page cache, as far as 64 samples show.

    Reads nothing: ``preadv2`` with RWF_NOWAIT would, since Linux begins to read ahead for it, and
    finds the samples, and only them, in the cache if the disk is quick. For a file that the caller
    neither owns nor may write all pages are reported as present. Source: mincore(2).
    """
    size = os.fstat(handle).st_size
    if not size:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    found = ctypes.c_ubyte()
    # Private and never written: ctypes takes the address of nothing that is read-only.
    with mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            begin = ctypes.addressof(first)
            for offset in _samples(handle, size):
                page = ctypes.c_void_p(begin + offset // mmap.PAGESIZE * mmap.PAGESIZE)
                if libc.mincore(page, ctypes.c_size_t(1), ctypes.byref(found)):
                    raise OSError(ctypes.get_errno(), "mincore")
                if not found.value & 1:
                    return False
        finally:
            del first  # a mapping with a pointer to it cannot be closed
    return True


def _samples(handle: int, size: int) -> Iterator[int]:
    """Offsets of data at equal distances, as far as there is data behind them."""
    for number in range(_SAMPLES):
        try:
            yield os.lseek(handle, size * number // _SAMPLES, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a hole up to the end
                raise
            return
