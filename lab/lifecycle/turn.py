"""Taking turns: how many clusters come to life at the same time.

Nodes that share a processor with too many others answer so late that their cluster gives
them up (Galera: 5 s), so asking for eight labs at once would lose some of them. One lab at a
time for every two processors is no slower in all: each gets the processors it needs, and is
ready when its turn is over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.errors import NotReady
from lab.fair import take_one, ticket
from lab.lifecycle.context import Context
from lab.wait import Deadline

PATIENCE = 1800.0
"""Seconds to wait for a turn: others may form their clusters first, one after the other."""


@contextmanager
def turn(ctx: Context) -> Iterator[None]:
    """Hold one of the host's turns for the block; raises NotReady if none comes in ``PATIENCE``.

    Turns come in the order in which they were asked for. They are kernel-held locks, taken last
    of all locks: whoever holds one waits for no other.
    """
    turns = max(1, (os.cpu_count() or 1) // 2)
    with ExitStack() as held:
        with ticket(ctx.home, "turn") as place:
            if not take_one(ctx.home, "turn", turns, place, Deadline.after(0), held):
                _wait(ctx, turns, place, held)
        yield


def _wait(ctx: Context, turns: int, place: int, held: ExitStack) -> None:
    with ctx.progress.step("turn", "waiting while other labs start"):
        if not take_one(ctx.home, "turn", turns, place, Deadline.after(PATIENCE), held):
            raise NotReady(
                "other labs were starting all the time", hint="`lab ls` shows them; try again later"
            )
