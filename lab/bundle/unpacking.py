"""Reading a bundle: its manifest, and the lab that may be in it, as a stream."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO, cast

import msgspec

from lab.bundle.packing import PART
from lab.distribution import extra
from lab.errors import InvalidSpec
from lab.texts import printable
from lab.values import dataclass

LAB = "lab"
"""The directory of the lab itself, the archive of a snapshot in parts."""
THE_LAB = "the lab"
"""What the manifest calls the lab among what is missing."""
MANIFEST = "manifest.json"
"""It is before the lab; behind it there is another one if the lab could not be completed."""

_MANIFEST = 4 << 20
"""Bytes of the manifest, at most."""
_WINDOW = 1 << 27
"""Bytes of memory that decompression may take."""
_HEADERS = 1 << 20
"""Bytes that may come between two files: headers, and what tarfile reads ahead."""
_LARGEST = 64 << 20
"""Bytes of a file before the lab, at most."""
_FILES = 10_000
"""Files before the lab, at most."""
_WIDTH = 500
_LATEST = 4e9
"""In the year 2096."""
_DAMAGE = (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError)
"""What tarfile raises for headers that are wrong, or chained without end."""


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself; texts are printable, and bounded."""

    lab: str
    at: float
    """When it was written, in epoch seconds."""
    why: str
    """What failed; empty: nothing did."""
    lacks_lab: str = ""
    """Why the lab is not in it, or not all of it; empty: that was not requested, or it is."""


@dataclass(frozen=True)
class Bundle:
    """A bundle that is being read. ``lab``: the archive of the lab."""

    manifest: Manifest
    lab: BinaryIO


class _Named(msgspec.Struct):
    name: str


class _Missing(msgspec.Struct):
    what: str
    why: str


class _Said(msgspec.Struct):
    lab: _Named
    at: Annotated[float, msgspec.Meta(ge=0, le=_LATEST)]
    why: str = ""
    missing: list[_Missing] = []


@contextmanager
def unpacking(source: BinaryIO) -> Iterator[Bundle]:
    """The bundle in ``source``, up to the lab in it.

    Raises InvalidSpec for whatever is no bundle, or one without a lab, also while the lab is read.
    """
    with extra("host", "a bundle"):
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    with decompressor.stream_reader(source, closefd=False) as plain:
        limited = _Limited(cast("BinaryIO", plain), zstandard.ZstdError)
        limited.allow(_HEADERS)
        try:
            tar = tarfile.open(fileobj=cast("BinaryIO", limited), mode="r|")  # noqa: SIM115  # nothing to close
        except _DAMAGE:
            raise _no_bundle() from None
        files = _files(tar, limited)
        manifest: Manifest | None = None
        for number, (name, file, size) in enumerate(files):
            if size > _LARGEST or number >= _FILES:
                raise _no_bundle()
            if name == MANIFEST:
                manifest = _read(file, size)
            elif name == f"{LAB}/000000":
                if manifest is None:
                    raise _no_bundle()
                parts = _Parts(file, files)
                yield Bundle(manifest, cast("BinaryIO", io.BufferedReader(parts, PART)))
                return
        if manifest is None:
            raise _no_bundle()
        raise _without_lab(manifest, "no lab")


def _without_lab(manifest: Manifest, what: str) -> InvalidSpec:
    why = f": {manifest.lacks_lab}" if manifest.lacks_lab else ""
    return InvalidSpec(
        f"the bundle of {manifest.lab} has {what} in it{why}",
        hint="`lab bundle --with-lab` writes one that has",
    )


def _no_bundle() -> InvalidSpec:
    return InvalidSpec("this is not a bundle of lab", hint="`lab bundle` writes bundles")


def _damaged() -> InvalidSpec:
    return InvalidSpec("the bundle is damaged, or was cut off", hint="copy it again")


def _read(file: io.BufferedReader, size: int) -> Manifest:
    if size > _MANIFEST:
        raise _no_bundle()
    try:
        data = file.read(_MANIFEST)
    except _DAMAGE:
        raise _damaged() from None
    try:
        said = msgspec.json.decode(data, type=_Said)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _no_bundle() from None
    lacking = next((one.why for one in said.missing if one.what == THE_LAB), "")
    name, why, lacks_lab = (printable(text[:_WIDTH]) for text in (said.lab.name, said.why, lacking))
    return Manifest(name, said.at, why, lacks_lab)


def _files(tar: tarfile.TarFile, limited: _Limited) -> Iterator[tuple[str, io.BufferedReader, int]]:
    """Path below the top, content and size of each file; each is read before the next is asked."""
    left = 0
    while True:
        limited.allow(left + _HEADERS)
        try:
            found = tar.next()
        except _DAMAGE:
            raise _damaged() from None
        if found is None:
            return
        file = tar.extractfile(found) if found.isreg() and not found.issparse() else None
        if file is None:
            raise _no_bundle()
        left = found.size
        limited.allow(left + _HEADERS)
        yield found.name.partition("/")[2], cast("io.BufferedReader", file), left


class _Parts(io.RawIOBase):
    """The parts of the lab, as one stream; InvalidSpec at its end if it is not complete."""

    def __init__(
        self, first: io.BufferedReader, rest: Iterator[tuple[str, io.BufferedReader, int]]
    ) -> None:
        self._file = first
        self._rest = rest
        self._number = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """As RawIOBase does; 0 at the end of the last part."""
        while True:
            try:
                found = self._file.read(len(buffer))
            except _DAMAGE:
                raise _damaged() from None
            if found:
                buffer[: len(found)] = found
                return len(found)
            following = next(self._rest, None)
            if following is None:
                return 0
            self._number += 1
            name, self._file, size = following
            if name == MANIFEST and (last := _read(self._file, size)).lacks_lab:
                raise _without_lab(last, "no complete lab")
            if name != f"{LAB}/{self._number:06}":
                raise _damaged()


class _Limited:
    """Reads at most what was allowed: a header may say any size of what comes before a file."""

    def __init__(self, source: BinaryIO, damage: type[Exception]) -> None:
        self._source = source
        self._damage = damage
        self._left = 0
        self._begun = False

    def allow(self, count: int) -> None:
        """Let ``count`` bytes be read from now on."""
        self._left = count

    def read(self, count: int = -1) -> bytes:
        """As a file does; raises InvalidSpec beyond what was allowed, and for damage."""
        if count < 0 or count > self._left:
            raise _damaged()
        try:
            found = self._source.read(count)
        except self._damage:
            raise (_damaged() if self._begun else _no_bundle()) from None
        self._left -= len(found)
        self._begun = True
        return found
