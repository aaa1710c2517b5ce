"""Finished images, by content key: built once, whoever asks, and published whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lab.imagebuild.isolate import remove_tree
from lab.locks import flock
from lab.undo import Undo

Build = Callable[[Path], None]


def directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the images are kept. XDG_CACHE_HOME counts if it is absolute, as its standard says."""
    base = Path(environ.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "lab-test-vm"


@contextlib.contextmanager
def image(
    cache: Path, name: str, key: str, build: Build, waiting: Callable[[], object]
) -> Iterator[Path]:
    """The directory of image ``name`` with ``key``, kept from removal for the block.

    ``build`` fills an empty directory if there is none yet; if it fails, nothing stays.
    ``waiting`` is called when another process is building it. Images of the same name with
    other keys are removed unless they are in use.
    """
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / f"{name}-{key}"
    with contextlib.ExitStack() as stack:
        with _locked(cache / f"{name}.lock", waiting):
            if not final.exists():
                _make(final, build)
            stack.enter_context(_held(final, shared=True))
            _prune(cache, name, keep=final)
        yield final


def _make(final: Path, build: Build) -> None:
    # Whoever made one of these is dead, or the lock would not be ours.
    scratch = final.with_name(f"{final.name}.building")
    remove_tree(scratch)
    scratch.mkdir()
    with Undo() as undo:
        undo.push(str(scratch), lambda: remove_tree(scratch))
        build(scratch)
        undo.keep()
    scratch.rename(final)


def _prune(cache: Path, name: str, keep: Path) -> None:
    for old in cache.glob(f"{name}-*"):
        if old == keep or not old.is_dir():
            continue
        # It is in use if this raises BlockingIOError.
        with contextlib.suppress(BlockingIOError), _held(old, wait=False):
            remove_tree(old)


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    with path.open("a") as file:
        if not flock.try_take(file.fileno()):
            waiting()
            flock.take(file.fileno())
        yield


@contextlib.contextmanager
def _held(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    handle = flock.open_locked(path, os.O_RDONLY | os.O_DIRECTORY, shared=shared, wait=wait)
    try:
        yield
    finally:
        os.close(handle)
