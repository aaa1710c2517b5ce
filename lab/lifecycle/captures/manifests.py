"""The manifest of a capture: its files on disk, and whether they are still what was captured.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.drafts import replaced
from lab.errors import HostUnfit, InvalidSpec, LabError
from lab.lifecycle.captures.capture import Capture, CapturedNode, FileFacts, disk_snapshots
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.ready import Images
from lab.names import CaptureRef, template_ref
from lab.paths import sync, writing
from lab.sizes import NodeSize

FORMAT = 6
"""Of manifests that are written. Those of format 3 are of templates, and name them by ``key``;
in those before 5 nodes have no image and no size of their own, before 6 no base."""

_READ = (3, 4, 5, FORMAT)
_CHUNK = 1 << 20
_OPEN = (errno.EMFILE, errno.ENFILE)
_OURS = (*_OPEN, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""What says nothing about a file: too many are open, no memory is left, it is not for us."""


class Damaged(LabError):
    """The files of a capture are not what was captured."""


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


def check(ctx: Context, capture: Capture, images: Images) -> None:
    """Raise Damaged unless files and disks of a capture are still what was captured.

    ``images``: those of its nodes. Raises NotFound if it has lost a disk, HostUnfit where its files
    cannot be read.
    """
    for node in capture.nodes:
        if node.seed is not None:
            unharmed(ctx.home.seed(capture.ref, node.name), node.seed)
        if node.ram is not None and node.state is not None:
            unharmed(ctx.home.ram(node.base or capture.ref, node.name), node.ram)
            unharmed(ctx.home.device_state(capture.ref, node.name), node.state, read=True)
        disks = images[node.image].volumes
        snapshots = disk_snapshots(ctx, capture, node.name, disks)
        if node.seals and node.seals != tuple(map(ctx.storage.seal, snapshots)):
            raise Damaged(f"a disk of {node.name} has changed")


def write(path: Path, capture: Capture) -> None:
    """Write the manifest of ``capture``, whole or not at all, also after a power loss."""
    parent = str(capture.parent) if capture.parent else None
    values = {
        "capture": str(capture.ref),
        "parent": parent,
        "why_cold": capture.why_cold,
        "pause": capture.pause,
        "protected": capture.protected,
        "expires_at": capture.expires_at,
        "source": capture.source,
        "nodes": [
            {**asdict(node), "base": str(node.base) if node.base else None}
            for node in capture.nodes
        ],
    }
    content = json.dumps({"format": FORMAT, "digest": _seal(values), **values}, indent=1)
    with replaced(path, durable=True) as fresh:
        fresh.write_text(content, encoding="utf-8")
    with writing(path):
        sync(path.parent.parent)


def read(path: Path) -> Capture:
    """The capture whose manifest is at ``path``; raises Damaged, HostUnfit if it is unreadable."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") not in _READ:
            raise Damaged("it was made by another version of lab")
        if values.pop("digest") != _seal(values):
            raise Damaged("the content of its manifest has changed")
        nodes = tuple(
            CapturedNode(
                node["name"],
                node["role"],
                _facts(node["ram"]),
                _facts(node["state"]),
                _facts(node["seed"]),
                tuple(map(str, node["seals"])),
                str(node.get("image", "")),
                NodeSize(**node["size"]) if node.get("size") else None,
                CaptureRef.parse(node["base"]) if node.get("base") else None,
                str(node.get("fingerprint", "")),
            )
            for node in values["nodes"]
        )
        parent, expires = values.get("parent"), values.get("expires_at")
        ref = (
            template_ref(values["key"]) if "key" in values else CaptureRef.parse(values["capture"])
        )
        return Capture(
            ref.owner,
            ref.label,
            nodes,
            CaptureRef.parse(parent) if parent else None,
            str(values.get("why_cold", "")),
            float(values.get("pause", 0.0)),
            bool(values.get("protected", False)),
            float(expires) if expires is not None else None,
            str(values.get("source", "")),
        )
    except OSError as error:
        why = f"it has no readable manifest: {error}"
        raise _lost(path, error, why) from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, InvalidSpec) as error:
        raise Damaged(f"it has no readable manifest: {error}") from None


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
