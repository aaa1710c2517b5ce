"""A template's files: what belongs to it, and whether it is still what was captured.

RAM images are hundreds of megabytes, too many to read at each use. So the manifest notes
size and times of each as the kernel keeps them: a write, a truncation or a copy changes the
change time (ctime), which no program can set back. Where they differ, the content is read
and compared; device states are small and always read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab.errors import HostUnfit, LabError
from lab.paths import writing
from lab.storage import sparse

FORMAT = 3
_CHUNK = 1 << 20
_OPEN = (errno.EMFILE, errno.ENFILE)
_OURS = (*_OPEN, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""What says nothing about a file: too many are open, no memory is left, it is not for us."""


@dataclass(frozen=True)
class FileFacts:
    """A file as it was when the template was made; times in nanoseconds."""

    size: int
    mtime: int
    ctime: int
    digest: str


@dataclass(frozen=True)
class CapturedNode:
    """A node of a template: RAM and device state, both None when only disks were captured.

    ``seed``: the small disk that it booted with, which clones have open as well. ``seals``:
    the storage's, of each disk snapshot.
    """

    name: str
    role: str
    ram: FileFacts | None
    state: FileFacts | None
    seed: FileFacts
    seals: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """A template: ``label`` of the disk snapshots, and its nodes.

    ``why_cold``: why it has no RAM although this host could restore some.
    """

    key: str
    label: str
    nodes: tuple[CapturedNode, ...]
    why_cold: str = ""

    @property
    def warm(self) -> bool:
        """True if RAM was captured with the disks."""
        return all(node.ram is not None and node.state is not None for node in self.nodes)

    def without_ram(self, why: str) -> Manifest:
        """The manifest without RAM, so that labs boot; ``why``: why RAM is not restored."""
        nodes = tuple(replace(node, ram=None, state=None) for node in self.nodes)
        return replace(self, nodes=nodes, why_cold=why)


class Damaged(LabError):
    """A template's files are not what was captured."""


def facts(path: Path) -> FileFacts:
    """Facts of a file, with a digest of all of its content (holes are skipped quickly)."""
    status = path.stat()
    return FileFacts(status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest(path))


def digest(path: Path) -> str:
    """A hash of where the data lies in a sparse file and what it is."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        found.update(str(end).encode())
        zeros = bytes(_CHUNK)
        at = 0
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: no data from here to the end
                break
            at -= at % _CHUNK
            block = os.pread(file.fileno(), _CHUNK, at)
            # A hole and zeros are the same content, however the file system keeps them.
            if block != zeros[: len(block)]:
                found.update(at.to_bytes(8, "little") + block)
            at += _CHUNK
    return found.hexdigest()


def unharmed(path: Path, wanted: FileFacts, *, read: bool = False) -> None:
    """Raise Damaged unless ``path`` is still what ``wanted`` says; ``read`` always reads it.

    Raises HostUnfit where we cannot look at it.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _lost(path, error, f"{path.name} is gone: {error.strerror}") from None
    if status.st_size != wanted.size:
        raise Damaged(f"{path.name} has {status.st_size} bytes instead of {wanted.size}")
    touched = (status.st_mtime_ns, status.st_ctime_ns) != (wanted.mtime, wanted.ctime)
    try:
        changed = (read or touched) and digest(path) != wanted.digest
    except OSError as error:
        why = f"{path.name} cannot be read: {error.strerror}"
        raise _lost(path, error, why) from None
    if changed:
        raise Damaged(f"the content of {path.name} has changed")


def write(path: Path, manifest: Manifest) -> None:
    """Write ``manifest`` so that it is there whole or not at all, also after a power loss."""
    fresh = path.with_suffix(".new")
    values = asdict(manifest)
    content = json.dumps({"format": FORMAT, "digest": _seal(values), **values}, indent=1)
    with writing(path):
        with fresh.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sparse.sync(path.parent, path.parent.parent)


def read(path: Path) -> Manifest:
    """The manifest at ``path``; raises Damaged, and HostUnfit where we cannot look at it."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise Damaged("the template was made by another version of lab")
        if values.pop("digest") != _seal(values):
            raise Damaged("the content of its manifest has changed")
        nodes = tuple(
            CapturedNode(
                node["name"],
                node["role"],
                _facts(node["ram"]),
                _facts(node["state"]),
                FileFacts(**node["seed"]),
                tuple(map(str, node["seals"])),
            )
            for node in values["nodes"]
        )
        why_cold = str(values.get("why_cold", ""))
        return Manifest(values["key"], values["label"], nodes, why_cold)
    except OSError as error:
        why = f"the template has no readable manifest: {error}"
        raise _lost(path, error, why) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the template has no readable manifest: {error}") from None


def _lost(path: Path, error: OSError, why: str) -> LabError:
    """The error for a file that could not be looked at: a busy host harms no template."""
    if error.errno in _OURS:
        return HostUnfit(
            f"{path} cannot be read: {error.strerror}",
            hint="`ulimit -n` limits how many files may be open" if error.errno in _OPEN else "",
        )
    return Damaged(why)


def _seal(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _facts(values: dict[str, Any] | None) -> FileFacts | None:
    return FileFacts(**values) if values else None
