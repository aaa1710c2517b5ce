"""Whether a lab's databases are used, by the counters of its servers.

The statements that only look (ours, and those of `lab status`) are not counted as use, nor those of
snapshots: a server's ``Com_*`` counters tell statements apart by kind, and a SELECT that only looks
comes after a statement of a rare kind (``ask.LOOK``). What runs for long is counted once,
when it begins; so the list of processes is looked at as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.errors import NotReady
from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import nodes_of
from lab.lifecycle.nodes.nodes import Node
from lab.names import GuestName
from lab.observe.ask import account_at
from lab.observe.ways import Rows
from lab.values import dataclass
from lab.wait import Deadline

_COUNTERS = "SHOW GLOBAL STATUS LIKE 'Com%'"
_PROCESSES = "SHOW PROCESSLIST"
_OURS = frozenset(
    {
        "Com_show_status",
        "Com_show_variables",
        "Com_show_processlist",
        "Com_set_option",
        "Com_show_replica_status",
        "Com_show_slave_status",
        "Com_admin_commands",
        "Com_flush",
    }
)
"""What asking, logging in to ask, the checkers that proxies ask, and snapshots add to."""
_SELECTS, _LOOKS = "Com_select", "Com_show_errors"
_SERVER = ("system user", "event_scheduler")
_SHORTEST = 0.001
_LONG = 1
"""Seconds from which a statement runs for long: those that end sooner show in the counters.

A connection is seen for some moments after its client closed it, ours of a moment ago as well:
as Quit, Killed, Busy, or still with its question.
"""


@dataclass(frozen=True)
class Activity:
    """What a lab's servers have been asked so far, for comparison; ``busy``: something runs."""

    counters: str
    busy: bool


def activity(
    ctx: Context,
    name: str,
    *,
    patience: float,
    guests: Mapping[GuestName, Guest] | None = None,
) -> Activity:
    """Ask every server of a lab, all at the same time; ``patience``: seconds for all of it.

    ``guests``: those that exist now, if that is known. Raises NotFound, and NotReady or
    CommandFailed if a node does not run, or does not answer.
    """
    account = account_of(ctx.home, ctx.store.labs.get(name))
    there = ctx.hypervisor.guests() if guests is None else guests
    deadline = Deadline.after(patience)

    def ask(node: Node) -> tuple[str, bool]:
        if node.guest not in there:
            raise NotReady(f"{node.name} of {name} does not run")
        asked = account_at(account, node.guest_address)
        left = max(deadline.left, _SHORTEST)
        counters, processes = ctx.sql_all(
            asked, node.sql_port, [_COUNTERS, _PROCESSES], timeout=left
        )
        try:
            return f"{node.name}:{count_of(counters)}", is_busy(processes)
        except (ValueError, KeyError) as error:
            raise NotReady(
                f"{node.name} of {name} sent an invalid answer", details=[str(error)[:200]]
            ) from None

    found = each(ask, [node for node in nodes_of(ctx, name) if node.has_server])
    if not found:
        raise NotReady(f"the lab {name} has no nodes yet")
    return Activity(" ".join(counted for counted, _ in found), any(busy for _, busy in found))


def count_of(rows: Rows) -> int:
    """How many statements were counted; raises ValueError for what is no count."""
    found = {str(name): int(str(value)) for name, value in rows.rows if str(name)[:4] == "Com_"}
    looks = found.pop(_LOOKS, 0)
    used = sum(number for name, number in found.items() if name not in _OURS)
    return used - min(looks, found.get(_SELECTS, 0))


def is_busy(rows: Rows) -> bool:
    """Whether a statement runs for long that is not our own question.

    Raises ValueError or KeyError for what is no list of processes.
    """
    found = [dict(zip(rows.columns, row, strict=True)) for row in rows.rows]
    return any(
        one["Info"] is not None
        and str(one["Info"]) not in (_COUNTERS, _PROCESSES)
        and one["User"] not in _SERVER
        and int(str(one["Time"] or 0)) >= _LONG
        for one in found
    )
