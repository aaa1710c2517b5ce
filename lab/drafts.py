"""New versions of files: a draft beside the file, which takes its place when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from lab.locks import flock
from lab.names import Owner
from lab.paths import Home, entries, sync, writing

_DRAFT = re.compile(r"\.[0-9]+\.new\Z")
"""How the name ends that ``replaced`` gives to a new file, until it takes the other's place."""


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o600, *, durable: bool = False) -> Iterator[Path]:
    """A new file with exactly ``mode`` that takes the place of ``path`` when the block ends.

    That happens completely or not at all; if ``durable``, also after a power loss. Raises
    HostUnfit where the system refuses it.
    """
    draft = path.with_name(f"{path.name}.{threading.get_native_id()}.new")
    with writing(path):
        held = flock.open_locked(draft, os.O_CREAT | os.O_RDWR)
        try:
            draft.chmod(mode)
            yield draft
            if durable:
                sync(draft)
            draft.replace(path)
            if durable:
                sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        finally:
            flock.release(held)


def sweep_drafts(home: Home) -> list[Path]:
    """Remove the drafts that killed processes left of ``replaced``; returns their paths.

    One that is being written is locked, and left.
    """
    owned = [home.directory(Owner(kind, "x")).parent for kind in ("lab", "template", "image")]
    found = [*entries(home.root), *entries(home.bundles)]
    found += [path for place in owned for depth in (2, 3, 4) for path in entries(place, depth)]
    removed = []
    for draft in found:
        if not _DRAFT.search(draft.name):
            continue
        with contextlib.suppress(OSError):  # also BlockingIOError: it is being written
            held = flock.open_locked(draft, os.O_RDWR, wait=False)
            try:
                draft.unlink()
                removed.append(draft)
            finally:
                flock.release(held)
    return removed
