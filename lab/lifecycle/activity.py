"""Whether anybody uses a lab's databases, by what its servers count.

The statements that only look (ours, and those of `lab status`) are not counted as use: a server's
``Com_*`` counters tell statements apart by kind. What runs for long is counted once, when it
begins; so the list of processes is looked at as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.errors import NotReady
from lab.lifecycle.context import Context
from lab.lifecycle.look import nodes_of
from lab.lifecycle.reach import account_of
from lab.lifecycle.ready import account_at
from lab.lifecycle.views import Rows

_COUNTERS = "SHOW GLOBAL STATUS LIKE 'Com%'"
_PROCESSES = "SHOW PROCESSLIST"
_OURS = frozenset(
    {"Com_show_status", "Com_show_processlist", "Com_set_option", "Com_admin_commands"}
)
"""What asking, and logging in to ask, adds to."""
_SERVER = ("system user", "event_scheduler")
_LONG = 1
"""Seconds from which a statement runs for long: those that end sooner are told by the counters.

A connection is seen for some moments after its client closed it, ours of a moment ago as well:
as Quit, Killed, Busy, or still with its question.
"""


@dataclass(frozen=True)
class Activity:
    """What a lab's servers have been asked so far, for comparison; ``busy``: something runs."""

    counters: str
    busy: bool


def activity(ctx: Context, name: str, *, patience: float) -> Activity:
    """Ask every node of a lab; ``patience``: seconds that each answer may take.

    Raises NotFound, and NotReady or CommandFailed if a node does not answer.
    """
    record = ctx.store.labs.get(name)
    account = account_of(ctx, record)
    counted, busy = [], False
    for node in nodes_of(ctx, name):
        there = account_at(account, node.own)
        rows = ctx.sql(there, node.sql_port, _COUNTERS, timeout=patience)
        counted.append(f"{node.name}:{_count(rows)}")
        processes = ctx.sql(there, node.sql_port, _PROCESSES, timeout=patience)
        busy = busy or _busy(processes)
    if not counted:
        raise NotReady(f"the lab {name} has no nodes yet")
    return Activity(" ".join(counted), busy)


def _count(rows: Rows) -> int:
    return sum(
        int(str(value))
        for name, value in rows.rows
        if str(name).startswith("Com_") and str(name) not in _OURS
    )


def _busy(rows: Rows) -> bool:
    """Whether a statement runs for long that is not our own question."""
    found = [dict(zip(rows.columns, row, strict=True)) for row in rows.rows]
    return any(
        one["Info"] is not None
        and str(one["Info"]) not in (_COUNTERS, _PROCESSES)
        and one["User"] not in _SERVER
        and int(str(one["Time"] or 0)) >= _LONG
        for one in found
    )
