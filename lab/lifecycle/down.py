"""``lab down``: nothing of a lab is left afterwards."""

from __future__ import annotations

from lab.errors import Conflict, NotFound
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget
from lab.lifecycle.nodes.inspect import tagged
from lab.locks.named import lock
from lab.names import Owner, check_lab_name
from lab.suggest import did_you_mean


def down(ctx: Context, name: str, *, force: bool = False) -> None:
    """Remove a lab; ``force``: a protected one as well.

    Raises NotFound, and Conflict if it is protected or while another command works on it.
    """
    check_lab_name(name)
    owner = Owner("lab", name)
    with lock(ctx.home, "lab", name, wait=False):
        record = ctx.store.labs.find(name)
        if record is not None and record.protected and not force:
            raise Conflict(f"the lab {name} is protected", hint="`--force` removes it anyway")
        known = record is not None
        with ctx.progress.step("down", f"removing the lab {name}"):
            removed = forget(ctx, owner) if known or name in names(ctx) else []
        if not known and not removed:
            others = names(ctx) if ctx.store.labs.suggests else []
            hint = did_you_mean(name, others, otherwise="`lab ls` lists the labs")
            raise NotFound(f"there is no lab {name!r}", hint=hint)


def names(ctx: Context) -> list[str]:
    """All labs, also those of which only guests or volumes with our tags are left."""
    recorded = {record.name for record in ctx.store.labs.all()}
    return sorted(recorded | tagged(ctx, ctx.hypervisor.guests()))
