"""Labs that wait until they are taken: in a pool of the service, or made ahead by ``lab up``."""

from __future__ import annotations

from contextlib import suppress

from lab.errors import Conflict, LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget
from lab.locks.named import lock
from lab.names import Owner
from lab.state.records import LabRecord

AHEAD = ":up"
"""The pool of labs that were made ahead (``lab.lifecycle.service.ahead``): no pool of a service has
such a name."""


def members(ctx: Context) -> list[LabRecord]:
    """All labs of pools, also those that are being made, the oldest first."""
    found = [record for record in ctx.store.labs.all() if record.pool]
    return sorted(found, key=lambda record: record.created_at)


def made_ahead(ctx: Context) -> list[LabRecord]:
    """The labs that were made ahead and that nobody has taken, the oldest first."""
    return [one for one in members(ctx) if (one.pool, one.state) == (AHEAD, "ready")]


def refuse_waiting(ctx: Context, name: str) -> None:
    """Raise Conflict if a lab waits: whoever takes it is to find it as it was made."""
    record = ctx.store.labs.find(name)
    if record is not None and record.pool:
        ahead = record.pool == AHEAD
        whose = "was made ahead" if ahead else f"is in the warm pool {record.pool} of the service"
        hint = "`lab up` takes it" if ahead else "`POST /v1/labs` takes it"
        raise Conflict(f"the lab {name} {whose}: nobody uses it yet", hint=hint)


def drop(ctx: Context, name: str) -> bool:
    """Remove a member; False if it was claimed meanwhile. Raises Conflict if somebody works on it.

    From the first moment on nobody can claim it; what a killed process leaves, ``gc`` removes.
    """
    with lock(ctx.home, "lab", name, wait=False):
        with ctx.store.transaction():
            record = ctx.store.labs.find(name)
            if record is None or not record.pool:
                return False
            ctx.store.labs.update(name, state="removing")
        forget(ctx, Owner("lab", name))
        return True


def try_drop(ctx: Context, name: str) -> bool:
    """``drop``, where that is possible now; whether it was removed. ``gc`` does the rest later."""
    with suppress(LabError):
        return drop(ctx, name)
    return False
