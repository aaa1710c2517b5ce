"""What was built: the facts that the rest of the program needs, and their file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, field
from functools import cache
from pathlib import Path
from typing import Any

from lab.errors import InvalidSpec
from lab.storage import sparse
from lab.units import MIB
from lab.values import dataclass

MANIFEST = "manifest.json"
"""The manifest's name, in the directory of the files it describes."""

_BLOCK = 4 * MIB
_ZEROS = memoryview(bytes(_BLOCK))


@dataclass(frozen=True)
class BuiltImage:
    """An image in a directory."""

    recipe: str
    disks: dict[str, Path]
    """The files of a node's volumes by the names of these, os first."""
    kernel: Path
    initrd: Path
    cmdline: str
    """The kernel's command line."""
    engine: str
    engine_version: str
    size: int
    """The size of the os disk, in bytes."""
    user: str
    """The engine's account in the guest, with ``uid`` and ``gid``."""
    uid: int
    gid: int
    service: str
    """The engine's systemd unit."""
    config: str
    """The path of the engine's option file."""
    packages: dict[str, str]
    """Versions by the names of packages."""
    digests: dict[str, str]
    """What ``digest`` says of files, by their names."""
    option_file: str = ""
    """The text of the engine's option file template (my.cnf), so that the image needs its recipe no
    longer."""
    seals: dict[str, str] = field(default_factory=dict)
    """Of each disk, by its name, and of ``kernel`` and ``initrd``, since the image was published:
    what is the same as long as nobody writes to them (``Storage.seal``, ``seal``)."""


def write(image: BuiltImage) -> Path:
    """Write the manifest next to the image's disk and return its path."""
    values = asdict(image)
    for name in ("kernel", "initrd"):
        values[name] = values[name].name
    values["disks"] = {name: disk.name for name, disk in image.disks.items()}
    path = image.kernel.with_name(MANIFEST)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return path


def read(directory: Path) -> BuiltImage:
    """The image in ``directory``; raises InvalidSpec if its manifest is invalid."""
    try:
        values: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        for name in ("kernel", "initrd"):
            values[name] = directory / values[name]
        values["disks"] = {name: directory / disk for name, disk in values["disks"].items()}
        return BuiltImage(**values)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSpec(f"no image in {directory}: {error}") from None


def installed(root: Path) -> dict[str, str]:
    """Names and versions of the packages in the root file system ``root``.

    Format: deb822 paragraphs in /var/lib/dpkg/status, see dpkg(1) and deb-control(5).
    """
    packages = {}
    status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    for paragraph in status.split("\n\n"):
        lines = (line.split(": ", 1) for line in paragraph.splitlines() if line[:1].strip())
        fields = {pair[0]: pair[1] for pair in lines if len(pair) == 2}
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields["Version"]
    return packages


def upstream(version: str) -> str:
    """The upstream part of a Debian ``version``: ``1:11.8.6-0+deb13u1`` is ``11.8.6``.

    Without what a packager appends to it, as MariaDB does: ``1:11.4.12+maria~deb12``.
    """
    return version.split(":", 1)[-1].rsplit("-", 1)[0].partition("+")[0]


def account(root: Path, user: str) -> tuple[int, int]:
    """The uid and gid of ``user`` in the root file system ``root``; raises InvalidSpec."""
    for line in (root / "etc/passwd").read_text(encoding="utf-8").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == user:
            return int(uid), int(gid)
    raise InvalidSpec(f"the image has no account {user!r}")


def seal(path: Path) -> str:
    """Size and times of a file: no program can set back the ctime that a write changes."""
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def check(image: BuiltImage) -> dict[str, str]:
    """The seals that kernel and initrd of a published image have now; they are what was built.

    A file is read only if its seal differs, as that of a copy does. Raises InvalidSpec if it is
    not what was built, and OSError.
    """
    seals = {}
    for what, path in (("kernel", image.kernel), ("initrd", image.initrd)):
        if not path.is_file():
            raise InvalidSpec(f"{path} is not what was built")
        expected = image.digests.get(path.name)
        if not expected:
            continue  # in images of early versions
        seals[what] = seal(path)  # before it is read: a later change makes it differ
        if image.seals.get(what) != seals[what] and digest(path) != expected:
            raise InvalidSpec(f"{path} is not what was built")
    return seals


def digest(path: Path) -> str:
    """SHA-256 over the SHA-256 of each 4 MiB block of ``path``.

    That of a block of zeros is computed once, and holes are not even read: a disk of
    8 GiB with half a GiB in it takes a second.
    """
    with path.open("rb") as file:
        parts = list(sparse.extents(file.fileno()))
        data = sparse.read(file.fileno(), parts, _BLOCK)
        return digest_extents(path.stat().st_size, data)


class ExtentsDigest:
    """What ``digest`` says of a file of ``size`` bytes, by extents that are ``passed``."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._whole = hashlib.sha256()
        self._here = 0  # the number of a block, of which ``_filled`` bytes are in ``_block``
        self._filled = 0
        self._block = hashlib.sha256()

    def passed(self, extents: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Pass on ``extents``, which ascend, and add them to the digest."""
        for offset, data in extents:
            at = offset
            while at < offset + len(data):
                while self._here < at // _BLOCK:
                    self._end_block()
                self._pad(at % _BLOCK)
                piece = memoryview(data)[at - offset :][: _BLOCK - self._filled]
                self._block.update(piece)
                self._filled += len(piece)
                at += len(piece)
            yield offset, data

    def hexdigest(self) -> str:
        """The digest, once all were passed."""
        while self._here * _BLOCK < self._size:
            self._end_block()
        return self._whole.hexdigest()

    def _end_block(self) -> None:
        length = min(_BLOCK, self._size - self._here * _BLOCK)
        if self._filled or length < _BLOCK:
            self._pad(length)
            self._whole.update(self._block.digest())
            self._block, self._filled = hashlib.sha256(), 0
        else:
            self._whole.update(_digest_of_zeros())
        self._here += 1

    def _pad(self, to: int) -> None:
        self._block.update(_ZEROS[: to - self._filled])
        self._filled = to


@cache
def _digest_of_zeros() -> bytes:
    return hashlib.sha256(_ZEROS).digest()


def digest_extents(size: int, extents: Iterable[tuple[int, bytes]]) -> str:
    """What ``digest`` says of a file of ``size`` bytes that holds ``extents`` and zeros."""
    digest = ExtentsDigest(size)
    for _ in digest.passed(extents):
        pass
    return digest.hexdigest()
