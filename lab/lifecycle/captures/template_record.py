"""The name and the record of a template, from its making to its removal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from msgspec.structs import replace

from lab.errors import Conflict, LabError, LimitReached
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget_guests, release
from lab.lifecycle.images.order import Order
from lab.lifecycle.images.ready import Images
from lab.locks.named import held, lock
from lab.names import GuestName, Owner
from lab.options import described, shown
from lab.state.records import TemplateRecord, requested
from lab.undo import Undo
from lab.units import counted


def base(name: str) -> str:
    """The key that is in a template's name: a broken one may be followed by ``<key>.2``."""
    return name.partition(".")[0]


@contextmanager
def making(
    ctx: Context,
    name: str,
    order: Order,
    images: Images,
    *,
    warm: bool,
    source: str = "",
) -> Iterator[None]:
    """A template is made in the block, its lock held; nothing is left of it if that fails.

    ``source``: the snapshot of a lab in use that it is captured from, if it is. Raises
    LimitReached if labs use as many as may be made for the requesting project.
    """
    for one in displaced(ctx):
        what, most = _described(ctx, one), ctx.settings.max_templates
        text = f"when the new one is ready, {what} is removed: the limit is {most} (max_templates)"
        ctx.progress.note("template", text)
    with ctx.store.transaction():
        check_quota(ctx)
        began = time.time()
        record = record_for(ctx, name, order, images, warm=warm, began=began, source=source)
        ctx.store.templates.add(record)
    with Undo() as undo:
        undo.push(f"template {name}", lambda: discard(ctx, name))
        yield
        undo.keep()


def _of_project(ctx: Context) -> list[TemplateRecord]:
    """The templates that were made for the requesting project."""
    records = ctx.store.templates.all()
    return [one for one in records if one.project == ctx.origin.project and one.state != "broken"]


def check_quota(ctx: Context) -> None:
    """Raise LimitReached if the requesting project uses as many templates as it may have.

    Unused ones are removed when the new one is ready (``finish``).
    """
    project, most = ctx.origin.project, ctx.templates
    used = [r for r in _of_project(ctx) if r.state == "building" or labs_of(ctx, r.key)]
    if most is not None and len(used) >= most:
        raise LimitReached(
            f"this lab needs a new template: the limit is {most} for the project {project},"
            " and labs use them all",
            hint="use the nodes, memory, CPUs, disk and profile of one of these labs,"
            " or remove a lab",
        )


def finish(ctx: Context, capture: Capture, form_seconds: float) -> None:
    """Write the manifest of a capture, last of all, which makes it a template that can be used.

    Others, used least recently, are removed if there are more than may be (``_evict``).
    """
    name = capture.owner.name
    manifests.write(ctx.home.manifest(capture.ref), capture)
    _only_files_are_left(ctx, Owner("template", name))
    ctx.store.templates.update(
        name, state="ready", form_seconds=form_seconds, size=size_of(ctx, name)
    )
    if ctx.templates is not None:
        siblings = [one for one in _of_project(ctx) if one.key != name]
        _evict(ctx, siblings, ctx.templates - 1, f"those of the project {ctx.origin.project}")
    others = [one for one in ctx.store.templates.all() if one.key != name]
    _evict(ctx, others, ctx.settings.max_templates - 1, "max_templates")


def discard(ctx: Context, name: str) -> None:
    """Remove a template and its record; its lock is held. Raises Conflict if it has clones."""
    release(ctx, Owner("template", name))
    if ctx.store.templates.find(name) is not None:
        ctx.store.templates.remove(name)


def labs_of(ctx: Context, name: str) -> list[str]:
    """The labs that are clones of a template."""
    return [lab.name for lab in ctx.store.labs.all() if lab.template == name]


@contextmanager
def locked(ctx: Context, name: str) -> Iterator[None]:
    """Keep all others from a template: its users lock its name, its makers the key in it.

    Raises Conflict.
    """
    with ExitStack() as stack:
        for part in dict.fromkeys((base(name), name)):
            stack.enter_context(lock(ctx.home, "template", part, wait=False))
        yield


def displaced(ctx: Context) -> list[TemplateRecord]:
    """The templates that are removed if one more is made now, the oldest use first."""
    records = sorted(ctx.store.templates.all(), key=lambda record: record.used_at)
    unused = [record for record in records if not labs_of(ctx, record.key)]
    return unused[: max(0, len(records) + 1 - ctx.settings.max_templates)]


def _described(ctx: Context, record: TemplateRecord) -> str:
    """A template that is removed, with what tells it apart: not to those who may not see it."""
    text = f"the least recently used template {record.key}"
    if ctx.origin.project and record.project not in ("", ctx.origin.project):
        return text
    options = described(shown(record.options))
    facts = [record.blueprint, counted(record.node_count, "node"), *filter(None, [options])]
    return f"{text} ({', '.join(facts)})"


def _evict(ctx: Context, records: Sequence[TemplateRecord], most: int, which: str) -> None:
    """Remove some of ``records``, the least recently used first, until ``most`` are left.

    Those that labs are clones of, or commands work with, stay: there may be more then.
    """
    too_many = len(records) - most
    for record in sorted(records, key=lambda record: record.used_at):
        if too_many <= 0:
            return
        with suppress(LabError), locked(ctx, record.key):
            now = ctx.store.templates.find(record.key)
            if now is None:
                too_many -= 1  # another command removed it
            elif now.used_at == record.used_at and not labs_of(ctx, record.key):
                discard(ctx, record.key)
                text = f"removed {_described(ctx, record)}"
                ctx.progress.note("template", f"{text}: the limit is {most + 1} ({which})")
                too_many -= 1


def vacant(ctx: Context, key: str, *, keep: str = "") -> str:
    """A name for a new template: leftovers are removed, those with clones are passed over.

    So is the template ``keep``.
    """
    name, number = key, 1
    while True:
        ours = name == key and not keep  # its lock is held
        if name != keep and (ours or not held(ctx.home, "template", name)):
            try:
                discard(ctx, name)
            except Conflict:
                pass
            else:
                return name
        number += 1
        name = f"{key}.{number}"


def record_for(
    ctx: Context,
    name: str,
    order: Order,
    images: Images,
    *,
    warm: bool,
    began: float,
    source: str = "",
) -> TemplateRecord:
    """The record of a template that is being made for an order."""
    spec = replace(order.spec, options=order.spec.chosen.of_template.said)
    return TemplateRecord(
        key=name,
        image=images.engine.key,
        fingerprint=base(name),
        state="building",
        warm=warm,
        created_at=began,
        used_at=began,
        project=ctx.origin.project,
        nodes={
            node.name: {"image": images.planned(node).key, **vars(node.size)}
            for node in order.nodes
        },
        source=source,
        **requested(spec, order.profile.name),
    )


def _only_files_are_left(ctx: Context, owner: Owner) -> None:
    """The guests are gone, and with them their console logs and the segment."""
    resources = ctx.store.resources.of(owner)
    forget_guests(ctx, [GuestName(r.ref) for r in resources if r.kind == "guest"])
    for resource in resources:
        if resource.kind in ("guest", "segment"):
            ctx.store.resources.gone(owner, resource.kind, resource.ref)


def size_of(ctx: Context, name: str) -> int:
    """Bytes on disk that a template takes, beyond its image."""
    files = sum(f.stat().st_blocks * 512 for f in ctx.home.template(name).rglob("*") if f.is_file())
    owner = Owner("template", name)
    volumes = [v.name for v in ctx.storage.volumes() if v.name.owner == owner]
    return files + sum(ctx.storage.used(volume) for volume in volumes)
