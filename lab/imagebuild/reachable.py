"""Whether a recipe's own repository answers, asked seldom."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from lab.errors import HostUnfit
from lab.imagebuild.recipe import Recipe
from lab.remembered import recall, remember

TIMEOUT = 4.0
"""Seconds after which a repository counts as out of reach."""

_REMEMBERED = {True: 3600.0, False: 300.0}  # seconds, by answer


def reachable(recipe: Recipe, *, timeout: float = TIMEOUT) -> bool:
    """Whether the recipe's repository answers with its release file within ``timeout`` seconds.

    True for a recipe without a repository of its own.
    """
    if recipe.repository is None:
        return True
    url = f"{recipe.repository.urls[0]}/dists/{recipe.repository.suite}/InRelease"
    answered = threading.Event()

    def ask() -> None:
        # Costs more to import than an answer that is remembered.
        from lab.imagebuild.repository import UNREACHABLE, fetch

        try:
            if fetch(url, timeout):
                answered.set()
        except UNREACHABLE:
            pass
        finally:
            over.set()

    # In a thread: looking up the name is not bound by the timeout of the connection.
    over = threading.Event()
    threading.Thread(target=ask, daemon=True).start()
    over.wait(timeout)
    return answered.is_set()


def reachable_recently(recipe: Recipe, memory: Path, *, timeout: float = TIMEOUT) -> bool:
    """Whether a repository answers, by the file ``memory``: yes is kept for an hour, no for 5 min.

    An older no is given once more, and asked again while the caller continues: only
    the first question of all keeps anybody waiting.
    """
    if recipe.repository is None:
        return True
    url, now = recipe.repository.urls[0], time.time()
    known = recall(memory).get(url)
    if known is not None and 0 <= now - known[0] < _REMEMBERED[bool(known[1])]:
        return bool(known[1])
    if known is not None and not known[1]:
        _remember(memory, url, value=False)  # so that no other process asks meanwhile

        def again() -> None:
            if reachable(recipe, timeout=timeout):
                _remember(memory, url, value=True)

        threading.Thread(target=again, name="reachable", daemon=True).start()
        return False
    answer = reachable(recipe, timeout=timeout)
    _remember(memory, url, value=answer)
    return answer


def unreachable(recipe: Recipe, memory: Path) -> None:
    """Remember in the file ``memory`` that the recipe's repository did not answer."""
    if recipe.repository is not None:
        _remember(memory, recipe.repository.urls[0], value=False)


def _remember(memory: Path, url: str, *, value: bool) -> None:
    with suppress(HostUnfit):  # a full disk: it is asked again
        remember(memory, url, value=value)
