"""Start slots: how many clusters may start at the same time.

Nodes that share a processor with too many others answer so late that their cluster evicts them
(after 5 s of silence, for one), so asking for eight labs at once would lose some of them. One lab
at a time for every two processors is no slower in all: each gets the processors it needs, and is
ready when it gives its slot back.

There are as many slots for clusters that boot as for those whose RAM is restored, and each kind
has a queue of its own: a restore takes seconds and must not wait for minutes behind boots. The
processors are then shared by one of each at most.

Projects share the slots: a project has one place in each queue, for which its labs wait in a line
of their own. So however many labs one project requests, another's next one is the next but one.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from lab import host
from lab.errors import NotReady
from lab.lifecycle.core.context import Context
from lab.locks.named import LockKind
from lab.locks.queue import is_first, take_free, taken, ticket, until_first, waiting
from lab.wait import Deadline, attempts

PATIENCE = 1800.0
"""Seconds that the first in a queue waits for a slot: another may have to form its cluster."""

LONGEST: Mapping[LockKind, float] = {"boot": 300.0, "restore": 60.0}
"""Seconds after which a lab that is not ready gives its slot back: to boot or to restore takes
less, also where guests are emulated. Whoever is root in a node, or chose what its server executes,
decides whether it ever gets ready, and others are not to wait for that."""

REPORT_AFTER = 3.0
"""Seconds of waiting after which it is reported in a line of its own."""


@contextmanager
def start_slot(
    ctx: Context, *, warm: bool = False, ours: bool = False
) -> Iterator[Callable[[], None]]:
    """Hold one of the host's start slots; raises NotReady if none becomes free.

    It is given back when the block ends, when it calls what it is given, or after ``LONGEST``;
    not before the end if the guests are ``ours``, with nothing in them that a user gave.
    ``warm``: one of those for restores. Slots are given to projects in turn. They are kernel-held
    locks, taken last of all locks: whoever holds one waits for no other.
    """
    kind: LockKind = "restore" if warm else "boot"
    with ExitStack() as held:
        _take(ctx, kind, held)
        guard = threading.Lock()

        def give_back() -> None:
            with guard:
                held.close()

        over = threading.Timer(LONGEST[kind], give_back)
        over.daemon = True
        if not ours:
            over.start()
        try:
            yield give_back
        finally:
            over.cancel()
            give_back()


def slots_here() -> int:
    """How many clusters of a kind may start at the same time on this host."""
    return max(1, host.processors() // 2)


def _take(ctx: Context, kind: LockKind, into: ExitStack) -> None:
    """Hold a slot in ``into`` when it is the project's turn, and the lab's in it."""
    home, slots, own = ctx.home, slots_here(), line_of(ctx.origin.project)
    with ExitStack() as places:
        mine = places.enter_context(ticket(home, kind, own)) if own else 0
        place = 0

        def before() -> int:
            ours = waiting(home, kind, mine, own) if own else 0
            others = waiting(home, kind, place) if place else waiting(home, kind)
            # The first of ours has a place in the common line as well, until we have it.
            return taken(home, kind, slots) + others + ours - bool(ours)

        if not own or is_first(home, kind, mine, own):
            place = places.enter_context(ticket(home, kind))
            if is_first(home, kind, place) and take_free(home, kind, slots, into):
                return
        with _reported(ctx, before):
            if not place:
                until_first(home, kind, mine, ctx.progress.halt, own)
                place = places.enter_context(ticket(home, kind))
            until_first(home, kind, place, ctx.progress.halt)
            for _ in attempts(Deadline.after(PATIENCE), most=0.05):
                ctx.progress.halt()
                if take_free(home, kind, slots, into):
                    return
    raise NotReady(
        "timed out waiting for a start slot",
        hint="`lab ls` shows what is starting; try again later",
    )


def line_of(project: str) -> str:
    """The line of a project; empty for labs of none, which have places in the common line."""
    return hashlib.blake2b(project.encode(), digest_size=6).hexdigest() if project else ""


@contextmanager
def _reported(ctx: Context, before: Callable[[], int]) -> Iterator[None]:
    """Report the wait of the block as a step, and in a line if it is long."""

    def report() -> None:
        count = before()
        labs = "1 lab" if count == 1 else f"{count} labs"
        ctx.progress.note("turn", f"waiting for a start slot ({labs} ahead)")

    later = threading.Timer(REPORT_AFTER, report)
    later.daemon = True
    later.start()
    try:
        with ctx.progress.step("turn", "waiting for a start slot"):
            yield
    finally:
        later.cancel()
