"""What others remove at the worst moment: after it was listed, before it is used.

Python reports what it is about to do to a file (``sys.addaudithook``), also in threads and in the
standard library: so a test can be the other process at exactly that moment.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_LISTINGS = ("os.listdir", "os.scandir")

_moments: list[tuple[tuple[str, ...], str, Callable[[], object]]] = []


@contextmanager
def vanishing(path: Path) -> Iterator[None]:
    """The directory ``path`` is removed when it is about to be listed, in the block."""
    with before(_LISTINGS, str(path), lambda: shutil.rmtree(path)):
        yield


@contextmanager
def before(events: tuple[str, ...], path: str, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` before the first of these events about ``path``, which happens in the block."""
    _listen()
    moment = events, path, act
    _moments.append(moment)
    try:
        yield
        assert moment not in _moments, f"nothing did {events} to {path}"
    finally:
        _moments[:] = [one for one in _moments if one is not moment]


@cache
def _listen() -> None:
    sys.addaudithook(_heard)  # it cannot be removed


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    named = arguments[0] if arguments else None
    if not isinstance(named, str | os.PathLike):
        return
    for moment in [*_moments]:
        events, path, act = moment
        if event in events and os.fspath(named) == path:
            _moments.remove(moment)  # first: it may do the same itself
            act()
