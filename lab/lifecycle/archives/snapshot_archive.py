"""``lab snapshot export`` and ``import``: a lab as it was, on another host.

What is imported is a template that was captured from a lab in use: no ``lab up`` uses it, labs are
made of it by its key alone.
"""

from __future__ import annotations

import time
from functools import partial
from typing import BinaryIO

from msgspec.structs import replace

from lab.errors import CommandFailed, Conflict, HostUnfit, NotReady
from lab.exchange import talk
from lab.lifecycle.archives import export
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.captures import system, template
from lab.lifecycle.captures.capture import from_use, parent_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.order import resolve
from lab.lifecycle.labs.reserve import new_record, reserved
from lab.lifecycle.labs.up import all_or_nothing, check_host, clone_in_use, mark_failed, mark_ready
from lab.lifecycle.nodes import inspect
from lab.lifecycle.nodes.form import seed_of
from lab.lifecycle.nodes.inspect import images_of, record_of
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.names import GuestName, Owner, check_lab_name
from lab.requests.archives import AS_EXPORTED, ExportArchive, ImportSnapshot
from lab.schedule import ORIGIN
from lab.views.archives import ExportView, ImportView
from lab.views.labs import LabView


def export_snapshot(ctx: Context, asked: ExportArchive) -> ExportView:
    """Write a snapshot of a lab as an archive that is complete in itself.

    Another host makes a lab of it. No other command works on the lab meanwhile; its nodes keep
    running. The rest, and what is raised, as for ``export``; Conflict for a lab's origin as well.
    """
    name = asked.lab
    with lock(ctx.home, "lab", name, shared=True, wait=False):
        record = record_of(ctx, name)
        capture = snapshot.find(ctx, name, asked.which)
        if capture.label == ORIGIN:
            formed = record.template and not from_use(ctx, record)
            raise Conflict(
                f"the origin of {name} is what it was cloned from, and is not exported",
                hint=f"`lab template export {record.template}`"
                if formed
                else f"`lab snapshot take {name}`, and export that",
            )
        if not asked.ram:
            capture = capture.without_ram("`--cold` was given")
        elif not capture.warm:
            ctx.progress.note("export", f"{name}@{capture.label} has no RAM: {capture.why_cold}")
        record, nodes = system.as_captured(ctx, record, capture)
        seeds = {n.name: seed_of(ctx, n, parent_of(record), record.segment) for n in nodes}
        all_ = images_of(ctx, record, nodes)
        contents = export.snapshot_contents(
            ctx, record, capture, all_, seeds, with_image=asked.image
        )
        return export.deliver(ctx, contents, asked)


def import_snapshot(
    ctx: Context,
    source: BinaryIO,
    asked: ImportSnapshot = AS_EXPORTED,
    *,
    timeout: float,
    speaker: talk.Speaker | None = None,
    keep_failed: bool = False,
) -> LabView:
    """Import the archive of a snapshot, and return a lab that is a clone of it once it is ready.

    ``timeout``: seconds that its nodes may take to get ready. The rest, and what is raised, as for
    ``import_archive`` and ``up``. Where the lab fails, what was imported stays, and the next import
    of the same uses it. ``keep_failed``: a lab whose nodes were started and do not get ready is
    returned as failed, with a note that says why.
    """
    if asked.name and ctx.store.labs.find(check_lab_name(asked.name)) is not None:
        raise Conflict(f"lab {asked.name} exists", hint="give the lab another name")
    made: list[LabView] = []

    def make(ctx: Context, done: ImportView) -> str:
        made.append(_clone(ctx, done.key, asked, timeout, keep_failed=keep_failed))
        return made[0].name

    import_archive(ctx, "snapshot", source, asked.how, speaker=speaker, then=make)
    return made[0]


def _clone(
    ctx: Context, key: str, asked: ImportSnapshot, timeout: float, *, keep_failed: bool
) -> LabView:
    """A lab that is a clone of the template ``key``, which was captured from a lab in use."""
    began = time.time()
    record = ctx.store.templates.get(key)
    order = resolve(ctx, replace(record.spec, name=asked.name, ttl=asked.ttl))
    check_host(ctx, order.nodes)
    with (
        reserved(ctx, new_record(ctx, order), stem=record.source.partition("@")[0]) as lab,
        all_or_nothing(ctx, lab, asked.ttl, keep=False),
        template.images_kept(ctx, record) as images,
        template.kept(ctx, key, images) as capture,
    ):
        if capture is None:
            raise Conflict(
                f"the template {key} of {record.source} is damaged",
                hint="import the archive again",
            )
        if asked.how.warm_only and not capture.warm:
            raise HostUnfit(
                f"the RAM of {record.source} is not restored here: {capture.why_cold}",
                hint="without --warm-only the lab boots from its disks",
            )
        ctx.store.templates.update(key, used_at=time.time())
        try:
            clone_in_use(
                ctx,
                lab,
                order,
                images,
                capture,
                timeout,
                refused=partial(template.give_up_ram, ctx, key),
                keep_sessions=asked.keep_sessions,
            )
        except (NotReady, CommandFailed) as error:
            if not keep_failed or not _all_run(ctx, lab):
                raise
            mark_failed(ctx, lab, asked.ttl, error)
            ctx.progress.note("failed", f"{lab.name} is kept as it is: {error}")
            return inspect.lab(ctx, lab.name)
        return mark_ready(ctx, lab, asked.ttl, began)


def _all_run(ctx: Context, lab: Owner) -> bool:
    """Whether all nodes of a lab were started, and their guests run."""
    guests, nodes = ctx.hypervisor.guests(), ctx.store.nodes.of(lab.name)
    found = [guests.get(GuestName(node.guest)) for node in nodes]
    return bool(found) and all(guest and guest.state == "running" for guest in found)
