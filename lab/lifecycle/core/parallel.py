"""The same step for all nodes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from lab.errors import Interrupted

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16


def each(
    step: Callable[[T], R],
    items: Iterable[T],
    *,
    over: Callable[[], object] = lambda: None,
    most: int = _THREADS,
) -> list[R]:
    """``step`` of every item, ``most`` at the same time; results in order.

    All steps run to their end, then the first failure is raised, so that nothing is still
    being made when its undoing begins. ``over`` is called as soon as one failed or we are
    interrupted: the others need not continue.
    """
    todo = list(items)
    if len(todo) <= 1:
        return [step(item) for item in todo]
    with ThreadPoolExecutor(min(most, len(todo))) as pool:
        futures = [pool.submit(step, item) for item in todo]
        first: set[Future[R]] = set()
        try:
            first, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            over()
        wait(futures)
    for future in (*first, *futures):
        future.result()  # who only ended with the others does not hide why
    return [future.result() for future in futures]


def each_until(
    step: Callable[[T, Callable[[], None]], R], items: Iterable[T], halt: Callable[[], None]
) -> list[R]:
    """Run steps that wait as ``each`` does; each step calls its second argument while it waits.

    That calls ``halt``, and raises Interrupted once another step failed.
    """
    over = threading.Event()

    def still() -> None:
        if over.is_set():
            raise Interrupted("another node failed")
        halt()

    return each(lambda item: step(item, still), items, over=over.set)
