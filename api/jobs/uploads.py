"""Dumps that clients have sent, until a job has loaded them.

They are below the home's uploads, in a directory of the token: nobody else can name them.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from lab import host
from lab.api.core.core import Core
from lab.api.jobs.quota import room_for_uploads, uploaded
from lab.api.jobs.stored import read_facts
from lab.errors import LimitReached, NotFound
from lab.paths import PRIVATE, entries, make_directory, new_file, writing
from lab.requests.datasets import CreateDataset
from lab.state.service import TokenRecord
from lab.units import format_duration, format_size
from lab.views.datasets import UploadView

KEPT = 3600.0
"""Seconds for which an upload that no job uses is kept."""
IDLE = 60.0
LEAST = 1 << 20
"""Bytes that are sent within ``IDLE`` seconds, at least: there are few places for uploads."""
_OPEN = 20
"""How many uploads of a token there may be."""
_PIECE = 1 << 20
_LOOK_EVERY = 64 << 20
"""Bytes between two looks at the free space, and at what the project has besides."""

_writing = threading.Lock()
"""Held while a piece is counted and written, so that no two uploads get the same room."""


def receive(core: Core, token: TokenRecord, identity: str, name: str, file: int) -> UploadView:
    """Keep the dump that is read from the file descriptor ``file``, under ``name``.

    Raises LimitReached if it is larger than a dataset, or a project, may be, or if the token has
    too many uploads; HostUnfit if there is no space.
    """
    with os.fdopen(file, "rb", buffering=0) as source:
        directory = core.settings.home.upload(token.id, identity)
        make_directory(directory.parent, PRIVATE)
        with _writing:
            if (there := len(entries(directory.parent))) >= _OPEN:
                raise LimitReached(
                    f"this token has {there} uploads that are not loaded yet, {_OPEN} is the limit",
                    hint=f"load them; unused ones are removed after {format_duration(KEPT)}",
                    retry_after=IDLE,
                )
            make_directory(directory, PRIVATE)
        try:
            size = _copy(core, token, source.fileno(), directory / name)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return UploadView(identity, name, size)


def _copy(core: Core, token: TokenRecord, source: int, path: Path) -> int:
    size, looked, room = 0, -_LOOK_EVERY, math.inf
    with new_file(path) as out:
        while piece := os.read(source, _PIECE):
            if size - looked >= _LOOK_EVERY:
                looked = size
                _check_space(core)
                room = room_for_uploads(core, token)
            with _writing:
                _check_room(core, token, room, len(piece))
                out.write(piece)
                out.flush()
            size += len(piece)
        with writing(path):
            os.fsync(out.fileno())
    return size


def _check_room(core: Core, token: TokenRecord, room: float, more: int) -> None:
    """Raise LimitReached unless ``more`` bytes fit into both limits of a token's uploads.

    ``room``: for those of its whole project.
    """
    most = core.settings.serve.dataset_size if token.scope != "admin" else 0
    if most and core.settings.home.uploaded(token.id) + more > most:
        raise LimitReached(
            f"the uploads of this token that are not loaded yet exceed {format_size(most)}"
            " with this one",
            hint="load less, or wait until the others are loaded",
        )
    if uploaded(core, token.project) + more > room:
        raise LimitReached(
            f"the project {token.project} is limited to {format_size(token.max_disk or 0)} of disk,"
            " and would have more with this upload",
            hint="remove labs, snapshots or datasets, or send less",
        )


def discard(core: Core, token: str, identity: str) -> None:
    """Remove an upload; no error if there is none."""
    shutil.rmtree(core.settings.home.upload(token, identity), ignore_errors=True)


def find(core: Core, token: TokenRecord, identity: str) -> Path:
    """The file of an upload; raises NotFound, also for those of other tokens."""
    for path in entries(core.settings.home.upload(token.id, identity)):
        return path
    raise _absent(identity)


def size(upload: Path) -> int:
    """Bytes of the file of an upload; raises NotFound if a job has loaded it meanwhile."""
    try:
        return upload.stat().st_size
    except FileNotFoundError:
        raise _absent(upload.parent.name) from None


def _absent(identity: str) -> NotFound:
    return NotFound(f"there is no upload {identity}", hint="it is kept for an hour: send it again")


def prune(core: Core, now: float) -> None:
    """Remove uploads that no job uses, once they are old; ``now``: epoch seconds."""
    home = core.settings.home
    there = entries(home.uploads, 2)
    if not there:
        return
    jobs = [job for job in core.store.jobs.open() if job.kind == "create-dataset"]
    used = {(home.uploads / read_facts(job, CreateDataset).upload).parent for job in jobs}
    for directory in there:
        with suppress(OSError):
            last = max(one.stat().st_mtime for one in (directory, *directory.iterdir()))
            if directory not in used and last + KEPT <= now:
                shutil.rmtree(directory, ignore_errors=True)


def _check_space(core: Core) -> None:
    home = core.settings.home
    free = shutil.disk_usage(home.uploads).free
    host.check_space(free, core.settings.space_floor, home.uploads)
