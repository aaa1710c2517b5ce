"""Free and total space of the storage, cached."""

from __future__ import annotations

import threading
import time

from lab.api.core.contexts import Contexts
from lab.api.telemetry.logs import log
from lab.errors import LabError
from lab.storage import Space

SPACE_SECONDS = 10.0
"""Seconds that a measured value is used for: ZFS runs a program for each."""


class CachedSpace:
    """The storage's space. Safe for use by several threads."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._lock = threading.Lock()
        self._found: tuple[float, Space | None] = (-SPACE_SECONDS, None)

    def get(self) -> Space | None:
        """The space as it was within the last ``SPACE_SECONDS``; None if it is not known."""
        with self._lock:
            at, found = self._found
            if time.monotonic() - at >= SPACE_SECONDS:
                try:
                    with self._contexts.use() as ctx:
                        found = ctx.storage.space()
                except LabError as error:
                    log.warning("cannot read the storage's free space", extra={"error": error.what})
                    found = None
                self._found = (time.monotonic(), found)
            return found
