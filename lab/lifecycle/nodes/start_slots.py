"""Start slots: how many clusters may start at the same time.

Nodes that share a processor with too many others answer so late that their cluster evicts them
(after 5 s of silence, for one), so asking for eight labs at once would lose some of them. One lab
at a time for every two processors is no slower in all: each gets the processors it needs, and is
ready when it gives its slot back.

There are as many slots for clusters that boot as for those whose RAM is restored, and each kind
has a queue of its own: a restore takes seconds and must not wait for minutes behind boots. The
processors are then shared by one of each at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lab import host
from lab.errors import NotReady
from lab.lifecycle.core.context import Context
from lab.locks.named import LockKind
from lab.locks.queue import ahead, is_first, take_free, ticket, until_first
from lab.wait import Deadline, attempts

PATIENCE = 1800.0
"""Seconds that the first in a queue waits for a slot: another may have to form its cluster."""

LONGEST = 300.0
"""Seconds after which a lab that is not ready gives its slot back: to boot takes less, also where
guests are emulated. Whoever is
root in a node decides whether it ever gets ready, and others are not to wait for that."""

REPORT_AFTER = 3.0
"""Seconds of waiting after which it is reported in a line of its own."""


@contextmanager
def start_slot(
    ctx: Context, *, warm: bool = False, longest: float | None = LONGEST
) -> Iterator[Callable[[], None]]:
    """Hold one of the host's start slots; raises NotReady if none becomes free.

    It is given back when the block ends, when it calls what it is given, or after ``longest``
    seconds (None: not before the end). ``warm``: one of those for restores. Slots are given in
    the order in which they were asked for. They are kernel-held locks, taken last of all locks:
    whoever holds one waits for no other.
    """
    kind: LockKind = "restore" if warm else "boot"
    slots = slots_here()
    with ExitStack() as held:
        with ticket(ctx.home, kind) as place:
            first = is_first(ctx.home, kind, place)
            if not first or not take_free(ctx.home, kind, slots, held):
                _wait(ctx, kind, slots, place, held)
        guard = threading.Lock()

        def give_back() -> None:
            with guard:
                held.close()

        over = threading.Timer(longest or 0.0, give_back)
        over.daemon = True
        if longest is not None:
            over.start()
        try:
            yield give_back
        finally:
            over.cancel()
            give_back()


def slots_here() -> int:
    """How many clusters of a kind may start at the same time on this host."""
    return max(1, host.processors() // 2)


def _wait(ctx: Context, kind: LockKind, slots: int, place: int, held: ExitStack) -> None:
    def report() -> None:
        count = ahead(ctx.home, kind, slots, place)
        labs = "1 lab" if count == 1 else f"{count} labs"
        ctx.progress.note("turn", f"waiting for a start slot ({labs} ahead)")

    later = threading.Timer(REPORT_AFTER, report)
    later.daemon = True
    later.start()
    try:
        with ctx.progress.step("turn", "waiting for a start slot"):
            until_first(ctx.home, kind, place, ctx.progress.halt)
            for _ in attempts(Deadline.after(PATIENCE), most=0.05):
                ctx.progress.halt()
                if take_free(ctx.home, kind, slots, held):
                    return
    finally:
        later.cancel()
    raise NotReady(
        "timed out waiting for a start slot",
        hint="`lab ls` shows what is starting; try again later",
    )
