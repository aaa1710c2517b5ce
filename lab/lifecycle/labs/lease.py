"""Leases: how long a lab may live."""

from __future__ import annotations

import time

from lab.errors import Conflict
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.inspect import lab, record_of
from lab.state.records import LabRecord
from lab.views.labs import LabView


def extend(ctx: Context, name: str, ttl: float | None) -> LabView:
    """Let the lab live ``ttl`` seconds from now, or without end if None.

    Raises NotFound, and Conflict while the lab is being removed.
    """
    record_of(ctx, name)
    with ctx.store.transaction():
        refuse_removed(ctx.store.labs.get(name))
        ctx.store.labs.update(name, expires_at=None if ttl is None else time.time() + ttl)
    return lab(ctx, name)


def refuse_removed(record: LabRecord) -> None:
    """Raise Conflict if a lab is being removed, which a longer lease would not stop.

    It is certain only in the transaction that changes the lease.
    """
    if record.state == "removing":
        raise Conflict(
            f"the lab {record.name} is being removed", hint="create it again under this name later"
        )
