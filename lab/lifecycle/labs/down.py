"""``lab down``: nothing of a lab is left afterwards."""

from __future__ import annotations

from lab.errors import Conflict, NotFound
from lab.lifecycle.captures import retire
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import branches, forget, leave_to_branches, remove_deferred
from lab.lifecycle.nodes.inspect import known_guests, tagged
from lab.lifecycle.nodes.standby import clear
from lab.locks.named import lock
from lab.names import CaptureRef, Owner, check_lab_name
from lab.suggest import did_you_mean


def down(ctx: Context, name: str, *, force: bool = False, defer: bool = False) -> bool:
    """Remove a lab; whether it is gone. ``force``: a protected one as well.

    A lab that others are branches of is refused, or with ``defer`` its guests are removed now, and
    the rest with the last of its branches. Raises NotFound, and Conflict if it is protected, has
    branches or while another command works on it.
    """
    check_lab_name(name)
    owner = Owner("lab", name)
    with lock(ctx.home, "lab", name, wait=False):
        record = ctx.store.labs.find(name)
        if record is not None and record.protected and not force:
            raise Conflict(f"the lab {name} is protected", hint="`--force` removes it anyway")
        if needed := branches(ctx, name):
            if not defer:
                raise Conflict(
                    f"the lab {name} has branches: {', '.join(needed)}",
                    hint=f"`lab down {' '.join((*needed, name))}` removes them all; `--defer` ends"
                    f" the nodes of {name} now and removes the rest with its last branch",
                )
            with ctx.progress.step("down", f"removing the nodes of {name}"):
                leave_to_branches(ctx, name)
                clear(ctx, name)
            return False
        known = record is not None
        with ctx.progress.step("down", f"removing the lab {name}"):
            removed = forget(ctx, owner) if known or name in names(ctx) else []
        if not known and not removed:
            others = names(ctx) if ctx.store.labs.suggests else []
            hint = did_you_mean(name, others, otherwise="`lab ls` lists the labs")
            raise NotFound(f"there is no lab {name!r}", hint=hint)
    retire.remove_over(ctx)
    if record is not None and record.parent:
        _down_deferred(ctx, CaptureRef.parse(record.parent).owner.name)
    return True


def _down_deferred(ctx: Context, name: str) -> None:
    """Remove a lab whose removal waited for its last branch, which is gone now."""
    record = ctx.store.labs.find(name)
    if record is not None and record.state == "removing" and not branches(ctx, name):
        remove_deferred(
            lambda: down(ctx, name, force=True), lambda: ctx.store.labs.find(name) is None
        )


def names(ctx: Context) -> list[str]:
    """All labs, also those of which only guests or volumes with our tags are left."""
    recorded = {record.name for record in ctx.store.labs.all()}
    return sorted(recorded | tagged(ctx, known_guests(ctx)))
