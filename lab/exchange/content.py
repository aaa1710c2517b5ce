"""What parts are made of: ascending chunks of bytes, each with the place where it belongs.

Chunks come in whole grains (but for the end of a file), at most ``LIMIT`` bytes each, and the
same content always comes as the same chunks, wherever a file system or a storage keeps holes:
only so can a transfer resume where another one ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from lab.exchange.frames import LIMIT
from lab.storage import Content, Extent, overwrite, sparse

GRAIN = overwrite.GRAIN
"""Bytes; what is equal to what is below, or zeros, is left out in whole grains of this size.

The cluster of our qcow2 files and the block of an InnoDB page. In the RAM of a node, grains of
16 KiB leave out almost all that those of 4 KiB would.
"""

Chunk = tuple[int, bytes]
"""Offset and bytes."""

Chunks = Generator[Chunk, None, None]
"""To be closed if it is not read to its end."""

_WINDOW = LIMIT
_ZEROS = bytes(_WINDOW)

Opened = Callable[[], AbstractContextManager[Content]]
"""What a volume holds: ``storage.read`` of a snapshot."""


def of_file(path: Path) -> Chunks:
    """All of a file that is not zeros."""
    with path.open("rb", buffering=0) as file:
        parts = list(sparse.extents(file.fileno()))
        size = os.fstat(file.fileno()).st_size
        yield from _differing(_windows(sparse.read(file.fileno(), parts, _WINDOW)), (), size)


def of_bytes(data: bytes) -> Chunks:
    """The chunks of bytes in memory, as ``of_file`` returns them for a file."""
    yield from _differing(_windows([(0, data)]), (), len(data))


def of_volume(read: Opened) -> Chunks:
    """All of a volume that is not zeros."""
    with read() as volume:
        yield from _differing(_windows(volume.extents), (), volume.size)


def of_changes(read_base: Opened, read: Opened) -> Chunks:
    """All in which a volume differs from its base, zeros too."""
    with read_base() as base, read() as top:
        yield from _differing(_windows(top.extents), _windows(base.extents), top.size)


def of_stream(send: Callable[[], AbstractContextManager[Iterator[bytes]]]) -> Chunks:
    """The very bytes of a stream, in order: all chunks but the last are as long as can be."""
    with send() as pieces, ThreadPoolExecutor(1, "stream") as thread:
        offset, held, room = 0, list[memoryview](), LIMIT
        for piece in _ahead(thread, pieces):
            rest = memoryview(piece)
            while len(rest) >= room:
                yield offset, b"".join([*held, rest[:room]])
                rest = rest[room:]
                offset, held, room = offset + LIMIT, [], LIMIT
            held.append(rest)
            room -= len(rest)
        if room < LIMIT:
            yield offset, b"".join(held)


def _ahead(thread: ThreadPoolExecutor, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pass on ``pieces``, and make the next while one is used: both sides compute digests."""
    coming = thread.submit(next, pieces, None)
    while (piece := coming.result()) is not None:
        coming = thread.submit(next, pieces, None)
        yield piece


def _windows(extents: Iterable[Extent]) -> Iterator[Chunk]:
    """The windows that have data, each once and filled up with zeros, in order."""
    at, window = -1, bytearray()
    for offset, data in extents:
        done = 0
        while done < len(data):
            here = (offset + done) // _WINDOW * _WINDOW
            if here != at:
                if window:
                    yield at, bytes(window)
                at, window = here, bytearray(_WINDOW)
            begin = offset + done - here
            length = min(_WINDOW - begin, len(data) - done)
            window[begin : begin + length] = data[done : done + length]
            done += length
    if window:
        yield at, bytes(window)


def _differing(top: Iterator[Chunk], base: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """What of ``top``, which has ``size`` bytes, is not as in ``base``; both are windows."""
    for offset, above, below in _pairs(top, iter(base)):
        if offset >= size:
            return  # the base is larger: nobody sees that
        length = min(_WINDOW, size - offset)
        if above[:length] != below[:length]:
            yield from _runs(offset, above[:length], below)


def _pairs(top: Iterator[Chunk], base: Iterator[Chunk]) -> Iterator[tuple[int, bytes, bytes]]:
    above, below = next(top, None), next(base, None)
    while above or below:
        if above and (below is None or above[0] < below[0]):
            yield above[0], above[1], _ZEROS
            above = next(top, None)
        elif below and (above is None or below[0] < above[0]):
            yield below[0], _ZEROS, below[1]
            below = next(base, None)
        elif above and below:
            yield above[0], above[1], below[1]
            above, below = next(top, None), next(base, None)


def _runs(offset: int, above: bytes, below: bytes) -> Iterator[Chunk]:
    """The runs of grains that differ."""
    begin = None
    for at in range(0, len(above), GRAIN):
        end = min(at + GRAIN, len(above))
        if above[at:end] == below[at:end]:
            if begin is not None:
                yield offset + begin, above[begin:at]
            begin = None
        elif begin is None:
            begin = at
    if begin is not None:
        yield offset + begin, above[begin:]
