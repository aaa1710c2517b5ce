"""Another process that removes what waited for a lab, in the moment in which the lab is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lab.lifecycle.core.context import Context
from lab.locks.named import lock
from lab.names import Owner
from lab.wait import Deadline, until


@contextmanager
def removed_meanwhile(
    ctx: Context, owner: Owner, *, after: str, removal: Callable[[], object]
) -> Iterator[None]:
    """Have a thread that holds the lock of ``owner`` remove it once the lab ``after`` is gone.

    That takes it longer than whoever finds the lock held needs to continue.
    """
    holds = threading.Event()

    def remove() -> None:
        with lock(ctx.home, owner.kind, owner.name):
            holds.set()
            assert until(lambda: ctx.store.labs.find(after) is None, Deadline.after(20.0))
            time.sleep(0.5)
            removal()

    other = threading.Thread(target=remove)
    other.start()
    try:
        assert holds.wait(20.0)
        yield
    finally:
        other.join()
