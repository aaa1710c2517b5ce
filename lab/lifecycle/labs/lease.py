"""Leases: how long a lab may live; and what else of its record users change."""

from __future__ import annotations

import time
from typing import Any

from lab.errors import Conflict
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.inspect import lab, record_of
from lab.requests.labs import ChangeLab
from lab.state.records import LabRecord
from lab.views.labs import LabView


def change(ctx: Context, asked: ChangeLab) -> LabView:
    """Change the lease of a lab, from now on, its protection, or its limits of idle time.

    Raises NotFound, and Conflict while the lab is being removed.
    """
    record_of(ctx, asked.lab)
    with ctx.store.transaction():
        refuse_removed(ctx.store.labs.get(asked.lab))
        if fields := changes(asked):
            ctx.store.labs.update(asked.lab, **fields)
    return lab(ctx, asked.lab)


def changes(asked: ChangeLab) -> dict[str, Any]:
    """The fields of a lab's record that a request sets, with their values."""
    fields: dict[str, Any] = {}
    if asked.ttl is not None or asked.endless:
        fields["expires_at"] = None if asked.ttl is None else time.time() + asked.ttl
    if asked.idle is not None:
        fields["idle"] = asked.idle or None
    if asked.asleep_after is not None:
        fields["asleep_after"] = asked.asleep_after
    if asked.protected is not None:
        fields["protected"] = asked.protected
    return fields


def refuse_removed(record: LabRecord) -> None:
    """Raise Conflict if a lab is being removed, which a longer lease would not stop.

    It is certain only in the transaction that changes the lease.
    """
    if record.state == "removing":
        raise Conflict(
            f"the lab {record.name} is being removed", hint="create it again under this name later"
        )
