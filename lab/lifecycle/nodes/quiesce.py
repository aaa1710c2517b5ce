"""Before guests are frozen without their RAM: what is in it must be on their disks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lab.errors import Interrupted, LabError, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each, each_until
from lab.names import GuestName

_SECONDS = 30.0
_STOP_SECONDS = 120.0
_REST = "/usr/lib/lab/rest"
_POSITION = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(\d{1,19})\n")
_FLUSH = b"FLUSH ENGINE LOGS\nFLUSH LOCAL ENGINE LOGS\n"


def write_out(ctx: Context, guests: Sequence[GuestName]) -> None:
    """Have servers and file systems of ``guests`` write everything to their disks.

    First a replicated statement that changes nothing: executing it, a node notes its position
    in the cluster's history, which MariaDB omits after a CREATE TABLE ... SELECT of its own.
    A node whose tables are ahead of its position would be given that once more when it starts,
    and leave as inconsistent. Then the redo log, and with it the position, and last the files.

    A guest that does not answer is passed over: it is as if its power failed.
    """

    def one(guest: GuestName, halt: Callable[[], None]) -> None:
        for argv, stdin in ((["/usr/lib/lab/sql"], _FLUSH), (["/bin/sync"], b"")):
            try:
                channel = ctx.hypervisor.channel(guest)
                channel.run(argv, stdin=stdin, timeout=_SECONDS, halt=halt)
            except Interrupted:
                raise
            except LabError:
                continue

    each_until(one, guests, ctx.progress.halt)


def bring_to_rest(ctx: Context, guests: Sequence[GuestName]) -> None:
    """Stop the servers of all nodes of a cluster, cleanly, as if they had been formed and not run.

    Whoever boots from their disks needs no recovery pass, which is a second start of the server,
    and restores the view together with the others, with nothing to transfer. Nobody else writes to
    the cluster. Raises NotReady, CommandFailed.
    """

    def rest(guest: GuestName, *words: str) -> str:
        argv = [_REST, *words]
        said = ctx.hypervisor.channel(guest).run(argv, timeout=_STOP_SECONDS)
        return said.decode(errors="replace")

    each(lambda guest: rest(guest, "view"), guests)
    last = str(last_of(each(lambda guest: rest(guest, "stop"), guests)))
    each(lambda guest: rest(guest, "at", last), guests)


def last_of(positions: Sequence[str]) -> int:
    """The last step that a node saw, from where all stopped (``UUID:SEQNO``, as they print it).

    Raises NotReady unless all of them stopped cleanly, and in one history.
    """
    found = [match for match in map(_POSITION.fullmatch, positions) if match]
    if len(found) < len(positions) or len({match[1] for match in found}) != 1:
        stopped = [repr(position) for position in positions]
        raise NotReady("the servers did not stop cleanly in one history", details=stopped)
    return max(int(match[2]) for match in found)
