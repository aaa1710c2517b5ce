"""Reading what a function writes, while it writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

_BUFFER = 1 << 20


@contextmanager
def reading(write: Callable[[BinaryIO], object]) -> Iterator[BinaryIO]:
    """What ``write`` writes to the stream that it is given, in a thread of its own.

    Leaving the block ends it. An error of ``write`` is raised in place of what its early end
    led to.
    """
    source, sink = os.pipe()
    failed: list[BaseException] = []
    left_early = False

    def run() -> None:
        try:
            with os.fdopen(sink, "wb", buffering=_BUFFER) as to:
                write(to)
        except BaseException as error:  # noqa: BLE001  # raised again in the other thread
            if not (left_early and isinstance(error, BrokenPipeError)):
                failed.append(error)

    thread = threading.Thread(target=run, name="sender", daemon=True)
    thread.start()
    try:
        with os.fdopen(source, "rb", buffering=_BUFFER) as stream:
            try:
                yield stream
            finally:
                left_early = True
    finally:
        thread.join()
        if failed:
            raise failed[0]
