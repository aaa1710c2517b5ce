"""Removal of all resources of an owner (a lab, a template, an image), in any state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lab.errors import Busy, Conflict, HostUnfit, LabError, NotFound
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.locks.named import lock
from lab.names import CaptureRef, GuestName, Owner
from lab.paths import remove_directory, writing
from lab.schedule import FORMER
from lab.storage import Volume
from lab.wait import Deadline, until

_REMOVED_BY_ANOTHER = 10.0
"""Seconds for which a removal by another process is waited for."""


def release(ctx: Context, owner: Owner) -> list[str]:
    """Remove the guests, volumes, files and ports of ``owner``, recorded or only tagged.

    The caller holds the owner's lock. Returns what was removed, a line each. What cannot
    be removed stays recorded: raises the first error after everything was tried. Raises
    Conflict if volumes of other owners are clones of this one's; its guests are gone then.
    """
    guests = release_guests(ctx, owner)
    volumes = [volume for volume in ctx.storage.volumes() if volume.name.owner == owner]
    volumes.sort(key=lambda volume: volume.name.volume != FORMER)  # a clone of another one
    removed = [f"guest {guest}" for guest in guests]
    removed += _destroy(ctx, volumes)
    removed += _files(ctx, owner, guests)
    ctx.store.resources.all_gone(owner)
    return removed


def forget(ctx: Context, owner: Owner) -> list[str]:
    """``release`` a lab and remove its record, last of all; its lock is held."""
    if ctx.store.labs.find(owner.name) is not None:
        mark_removing(ctx, owner.name)
        if ctx.store.standbys.find(owner.name) is not None:
            with lock(ctx.home, "standby", owner.name):
                pass  # who makes one sees that the lab is removed, and ends
    removed = release(ctx, owner)
    if ctx.store.labs.find(owner.name) is not None:
        ctx.store.labs.remove(owner.name)
    return removed


def mark_removing(ctx: Context, name: str) -> None:
    """Record that a lab is being removed: from now on nobody can extend its lease."""
    try:
        ctx.store.labs.update(name, state="removing")
    except HostUnfit:
        # The removal of its volumes frees the space that the record needs.
        if not ctx.home.full:
            raise


def branches(ctx: Context, name: str) -> list[str]:
    """The labs that are clones of a capture of a lab."""
    owner = Owner("lab", name)
    labs = ctx.store.labs.all()
    return [lab.name for lab in labs if lab.parent and CaptureRef.parse(lab.parent).owner == owner]


def leave_to_branches(ctx: Context, name: str) -> None:
    """Remove the guests of a lab whose disks its branches need; its lock is held.

    The rest is removed with the last of them.
    """
    needed = branches(ctx, name)
    ctx.store.labs.update(name, state="removing")
    release_guests(ctx, Owner("lab", name))
    ctx.progress.note("down", f"{name} is removed with its last branch: {', '.join(needed)}")


def remove_deferred(remove: Callable[[], object], gone: Callable[[], bool]) -> None:
    """Remove what waited for its last user, which is gone; ``remove`` takes its lock.

    ``lab gc`` and the sweep of the service look for the same: if one of them is faster, this
    returns when it has done it. What another command works on otherwise is left to them.
    """
    try:
        remove()
    except Busy:
        until(gone, Deadline.after(_REMOVED_BY_ANOTHER))
    except (Conflict, NotFound):
        pass


def release_guests(ctx: Context, owner: Owner) -> list[GuestName]:
    """Remove the guests of ``owner``, recorded or only tagged; which. Its lock is held."""
    guests = _guests(ctx, owner)
    each(lambda guest: ctx.hypervisor.stop(guest, force=True), guests)
    return guests


def _guests(ctx: Context, owner: Owner) -> list[GuestName]:
    return sorted(
        name
        for name, guest in ctx.hypervisor.guests().items()
        if guest.tags.get("owner") == str(owner)
    )


def _destroy(ctx: Context, volumes: list[Volume]) -> list[str]:
    failures: list[LabError] = []
    removed = []
    for volume in volumes:
        try:
            ctx.storage.destroy(volume.name)
            removed.append(f"volume {volume.name}")
        except LabError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return removed


def forget_guests(ctx: Context, guests: Iterable[GuestName]) -> None:
    """Remove the logs of guests that ended."""
    ended = list(guests)
    for guest in ended:
        for log in ctx.home.console_logs(guest):
            with writing(log):
                log.unlink(missing_ok=True)
    ctx.hypervisor.forget(ended)


def lost_logs(ctx: Context) -> list[Path]:
    """Logs of guests' consoles that belong to no guest that is there or recorded."""
    logs = sorted(ctx.home.console_log("x").parent.iterdir())
    # Listed before: a guest is recorded before it writes.
    guests = {r.ref for r in ctx.store.resources.all() if r.kind == "guest"}
    guests.update(ctx.hypervisor.guests())
    kept = {log for guest in guests for log in ctx.home.console_logs(guest)}
    return [log for log in logs if log not in kept]


def _files(ctx: Context, owner: Owner, guests: list[GuestName]) -> list[str]:
    recorded = {GuestName(r.ref) for r in ctx.store.resources.of(owner) if r.kind == "guest"}
    forget_guests(ctx, sorted(recorded.union(guests)))
    directory = ctx.home.directory(owner)
    if not directory.exists():
        return []
    with writing(directory):
        remove_directory(directory)
    return [f"files {directory}"]
