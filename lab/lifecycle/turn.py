"""Taking turns: how many clusters come to life at the same time.

Nodes that share a processor with too many others answer so late that their cluster gives
them up (Galera: 5 s), so asking for eight labs at once would lose some of them. One lab at a
time for every two processors is no slower in all: each gets the processors it needs, and is
ready when its turn is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab import host
from lab.errors import NotReady
from lab.fair import is_first, take_free, ticket, until_first
from lab.lifecycle.context import Context
from lab.wait import Deadline, attempts

PATIENCE = 1800.0
"""Seconds that who is first waits for a turn: another may have to form its cluster."""


@contextmanager
def turn(ctx: Context) -> Iterator[None]:
    """Hold one of the host's turns for the block; raises NotReady if none comes.

    Turns come in the order in which they were asked for. They are kernel-held locks, taken last
    of all locks: whoever holds one waits for no other.
    """
    turns = max(1, host.processors() // 2)
    with ExitStack() as held:
        with ticket(ctx.home, "turn") as place:
            first = is_first(ctx.home, "turn", place)
            if not first or not take_free(ctx.home, "turn", turns, held):
                _wait(ctx, turns, place, held)
        yield


def _wait(ctx: Context, turns: int, place: int, held: ExitStack) -> None:
    with ctx.progress.step("turn", "waiting while other labs start"):
        until_first(ctx.home, "turn", place)
        for _ in attempts(Deadline.after(PATIENCE), most=0.05):
            ctx.progress.halt()
            if take_free(ctx.home, "turn", turns, held):
                return
    raise NotReady(
        "other labs were starting all the time", hint="`lab ls` shows them; try again later"
    )
