"""``lab gc``: what expired, and what commands that were killed left behind.

Only what the record says is ours and unfinished is removed, and only while no command holds
its lock. Tagged things that the record does not know (it may have been lost) are reported and
left alone, unless the user asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from images import isolate
from lab.errors import Conflict, LabError
from lab.lifecycle import image, template
from lab.lifecycle.context import Context
from lab.lifecycle.remove import forget, release
from lab.lifecycle.views import GcReport
from lab.locks import LockKind, lock
from lab.names import Owner

_SOCKET_SECONDS = 120.0

_Task = tuple[Owner, str, Callable[[], object]]


def gc(ctx: Context, *, dry_run: bool = False, orphans: bool = False) -> GcReport:
    """Remove what expired or was left over; ``orphans``: unrecorded things with our tags too.

    ``dry_run`` only says what would be removed. Nothing that a running command works on is
    touched.
    """
    removed: list[str] = []
    left: list[str] = []
    for owner, why, remove in list(_tasks(ctx)):
        _do(ctx, owner, why, remove, removed, left, dry_run=dry_run)
    for owner in _unrecorded(ctx):
        if orphans:
            _do(ctx, owner, "not recorded", _releaser(ctx, owner), removed, left, dry_run=dry_run)
        else:
            left.append(f"{owner}: not recorded; `lab gc --orphans` or `lab down` removes it")
    if not dry_run:
        removed += ctx.storage.sweep()
        removed += _scratch(ctx)
    return GcReport(tuple(removed), tuple(left))


def _tasks(ctx: Context) -> Iterator[_Task]:
    now = time.time()
    for lab in ctx.store.labs.all():
        owner = Owner("lab", lab.name)
        expired = lab.expires_at is not None and lab.expires_at <= now
        if expired or lab.state in ("creating", "removing"):
            why = "expired" if expired else f"left in state {lab.state}"
            yield owner, why, _forgetter(ctx, owner)
    for record in ctx.store.templates.all():
        if record.state != "ready":
            key = record.key
            yield Owner("template", key), f"left in state {record.state}", _discarder(ctx, key)
    for built in ctx.store.images.all():
        if built.state != "ready":
            yield Owner("image", built.key), "left unfinished", _undo_image(ctx, built.key)
    known = _known(ctx)
    for owner in ctx.store.resources.owners():
        if owner not in known:
            yield owner, "left without a record", _releaser(ctx, owner)


def _forgetter(ctx: Context, owner: Owner) -> Callable[[], object]:
    return lambda: forget(ctx, owner)


def _releaser(ctx: Context, owner: Owner) -> Callable[[], object]:
    return lambda: release(ctx, owner)


def _discarder(ctx: Context, key: str) -> Callable[[], object]:
    return lambda: template.discard(ctx, key)


def _undo_image(ctx: Context, key: str) -> Callable[[], object]:
    return lambda: image.discard(ctx, key)


def _do(
    ctx: Context,
    owner: Owner,
    why: str,
    remove: Callable[[], object],
    removed: list[str],
    left: list[str],
    *,
    dry_run: bool,
) -> None:
    """Remove one thing under its lock; what is busy or cannot be removed is noted."""
    kind: LockKind = owner.kind
    # A template's makers lock its key, whatever number its name ends in.
    name = owner.name.partition(".")[0] if owner.kind == "template" else owner.name
    try:
        with lock(ctx.home, kind, name, wait=False):
            if not dry_run:
                remove()
    except Conflict as error:
        left.append(f"{owner}: {why}, but {error}")
    except LabError as error:
        left.append(f"{owner}: {why}, not removed: {error}")
    else:
        removed.append(f"{owner}: {why}")


def _known(ctx: Context) -> set[Owner]:
    known = {Owner("lab", lab.name) for lab in ctx.store.labs.all()}
    known |= {Owner("template", record.key) for record in ctx.store.templates.all()}
    return known | {Owner("image", record.key) for record in ctx.store.images.all()}


def _unrecorded(ctx: Context) -> list[Owner]:
    owners = {guest.tags.get("owner", "") for guest in ctx.hypervisor.guests().values()}
    found = {Owner.parse(owner) for owner in owners if owner}
    found |= {volume.name.owner for volume in ctx.storage.volumes()}
    return sorted(found - _known(ctx) - set(ctx.store.resources.owners()))


def _scratch(ctx: Context) -> list[str]:
    """Remove build directories nobody works in, and sockets nobody has used for a while."""
    removed = []
    for directory in sorted(ctx.home.builds.iterdir()):
        try:
            with lock(ctx.home, "image", directory.name, wait=False):
                isolate.remove_tree(directory)
        except Conflict:
            continue
        removed.append(f"build files {directory}")
    for path in ctx.home.sockets.glob("*.sock"):
        if time.time() - path.lstat().st_mtime > _SOCKET_SECONDS:
            path.unlink(missing_ok=True)
            removed.append(f"socket {path}")
    return removed
