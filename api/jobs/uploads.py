"""Dumps that clients have sent, until a job has loaded them.

They are below the home's uploads, in a directory of the token: nobody else can name them.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from lab import host
from lab.api.core.core import Core
from lab.api.jobs.requests import CreateDataset, read_facts
from lab.errors import LimitReached, NotFound
from lab.lifecycle.core.views import UploadView
from lab.paths import PRIVATE, make_directory, writing
from lab.state.records import TokenRecord
from lab.units import format_size

KEPT = 3600.0
"""Seconds for which an upload that no job uses is kept."""
_PIECE = 1 << 20
_LOOK_EVERY = 64 << 20
"""Bytes between two checks of the free space."""


def receive(core: Core, token: TokenRecord, identity: str, name: str, file: int) -> UploadView:
    """Keep the dump that is read from the file descriptor ``file``, under ``name``.

    Raises LimitReached if it is larger than a dataset may be, HostUnfit if there is no space.
    """
    with os.fdopen(file, "rb", buffering=0) as source:
        directory = core.settings.home.upload(token.id, identity)
        make_directory(directory.parent, PRIVATE)
        make_directory(directory, PRIVATE)
        try:
            size = _copy(core, source.fileno(), directory / name, _limit(core, token))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return UploadView(identity, name, size)


def _copy(core: Core, source: int, path: Path, most: int | None) -> int:
    size = looked = 0
    _check_space(core)
    with writing(path), path.open("xb") as out:
        path.chmod(0o600)
        while piece := os.read(source, _PIECE):
            size += len(piece)
            if most is not None and size > most:
                raise LimitReached(
                    f"the uploads of this token that are not loaded yet exceed {format_size(most)}"
                    " with this one",
                    hint="load less, or wait until the others are loaded",
                )
            if size - looked >= _LOOK_EVERY:
                looked = size
                _check_space(core)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    return size


def discard(core: Core, token: str, identity: str) -> None:
    """Remove an upload; no error if there is none."""
    shutil.rmtree(core.settings.home.upload(token, identity), ignore_errors=True)


def find(core: Core, token: TokenRecord, identity: str) -> Path:
    """The file of an upload; raises NotFound, also for those of other tokens."""
    directory = core.settings.home.upload(token.id, identity)
    with suppress(OSError):
        for path in directory.iterdir():
            return path
    raise NotFound(f"there is no upload {identity}", hint="it is kept for an hour: send it again")


def prune(core: Core, now: float) -> None:
    """Remove uploads that no job uses, once they are old; ``now``: epoch seconds."""
    home = core.settings.home
    there = [*home.uploads.glob("*/*")]
    if not there:
        return
    jobs = [job for job in core.store.jobs.open() if job.kind == "create-dataset"]
    used = {(home.uploads / read_facts(job, CreateDataset).upload).parent for job in jobs}
    for directory in there:
        with suppress(OSError):
            last = max(one.stat().st_mtime for one in (directory, *directory.iterdir()))
            if directory not in used and last + KEPT <= now:
                shutil.rmtree(directory, ignore_errors=True)


def _limit(core: Core, token: TokenRecord) -> int | None:
    """Bytes that may still be sent with a token; None: no limit but space."""
    most = core.settings.serve.dataset_size
    if token.scope == "admin" or not most:
        return None
    files = core.settings.home.upload(token.id, "x").parent.glob("*/*")
    sizes = []
    for path in files:
        with suppress(OSError):  # loaded by now
            sizes.append(path.stat().st_size)
    return max(0, most - sum(sizes))


def _check_space(core: Core) -> None:
    home = core.settings.home
    free = shutil.disk_usage(home.uploads).free
    host.check_space(free, core.settings.space_floor, home.uploads)
