"""Before guests are frozen without their RAM: what is in it must be on their disks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lab.errors import LabError
from lab.lifecycle.context import Context
from lab.lifecycle.parallel import each
from lab.names import GuestName

_SECONDS = 30.0
_FLUSH = b"FLUSH ENGINE LOGS\nFLUSH LOCAL ENGINE LOGS\n"


def write_out(ctx: Context, guests: Sequence[GuestName]) -> None:
    """Have servers and file systems of ``guests`` write everything to their disks.

    First a replicated statement that changes nothing: executing it, a node notes its position
    in the cluster's history, which MariaDB omits after a CREATE TABLE ... SELECT of its own.
    A node whose tables are ahead of its position would be given that once more when it starts,
    and leave as inconsistent. Then the redo log, and with it the position, and last the files.

    A guest that does not answer is passed over: it is as if its power failed.
    """

    def one(guest: GuestName) -> None:
        with suppress(LabError):
            channel = ctx.hypervisor.channel(guest)
            with suppress(LabError):
                channel.run(["/usr/lib/lab/sql"], stdin=_FLUSH, timeout=_SECONDS)
            channel.run(["/bin/sync"], timeout=_SECONDS)

    each(one, guests)
