"""Whether a recipe's own repository answers, asked seldom."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from images.recipe import Recipe, load
from images.repository import UNREACHABLE, fetch

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


def reachable_recently(recipe_name: str, memory: Path, *, timeout: float = TIMEOUT) -> bool:
    """As ``reachable``, with answers kept in the file ``memory``: yes for an hour, no for 5 min."""
    recipe = load(recipe_name)
    if recipe.repository is None:
        return True
    answers = _read(memory)
    url, now = recipe.repository.urls[0], time.time()
    known = answers.get(url)
    if known is not None and 0 <= now - known[0] < _REMEMBERED[known[1]]:
        return known[1]
    answer = reachable(recipe, timeout=timeout)
    scratch = memory.with_name(f"{memory.name}.{threading.get_native_id()}")
    scratch.write_text(json.dumps({**answers, url: (now, answer)}), encoding="utf-8")
    scratch.replace(memory)
    return answer


def _read(memory: Path) -> dict[str, tuple[float, bool]]:
    """What ``memory`` holds; nothing if it is missing or makes no sense."""
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
        return {str(url): (float(at), bool(answer)) for url, (at, answer) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
