"""The same step for all nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16


def each(
    step: Callable[[T], R], items: Iterable[T], *, over: Callable[[], object] = lambda: None
) -> list[R]:
    """``step`` of every item, at the same time; results in order.

    All steps run to their end, then the first failure is raised, so that nothing is still
    being made when its undoing begins. ``over`` is called as soon as one failed or we are
    interrupted: the others need not go on.
    """
    todo = list(items)
    if len(todo) <= 1:
        return [step(item) for item in todo]
    with ThreadPoolExecutor(min(_THREADS, len(todo))) as pool:
        futures = [pool.submit(step, item) for item in todo]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            over()
        wait(futures)
    return [future.result() for future in futures]
