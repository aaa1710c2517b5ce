"""Versions of datasets that are removed: at once, or with the last lab of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from lab.errors import Conflict
from lab.imagebuild import isolate
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import remove_deferred
from lab.lifecycle.images import image as images
from lab.locks.named import lock
from lab.state.records import ImageRecord


def is_over(ctx: Context, record: ImageRecord) -> bool:
    """Whether a version waited for its last lab, which is gone."""
    return record.removing and not _labs_of(ctx, record.key)


def _labs_of(ctx: Context, key: str) -> list[str]:
    """The labs of a version; its templates alone do not keep it.

    One whose servers were upgraded has other images, and disks that are clones of those of its
    template, as its snapshots are.
    """
    templates = {found.key for found in ctx.store.templates.all() if key in found.images}
    return [
        found.lab.name
        for found in ctx.store.labs_with_nodes()
        if key in found.images or found.lab.template in templates
    ]


def check_unused(ctx: Context, key: str) -> None:
    """Raise Conflict while labs use a version."""
    if labs := _labs_of(ctx, key):
        raise Conflict(
            f"{_at(ctx, key)} is used by {'the lab' if len(labs) == 1 else 'the labs'}"
            f" {', '.join(labs)}",
            hint=f"`lab down {' '.join(labs)}` first; with `--defer` it is removed with the last"
            " lab of it",
        )


def remove(ctx: Context, key: str) -> None:
    """Remove a version and its templates; raises Conflict while labs or commands use it."""
    with lock(ctx.home, "image", key, wait=False):
        discard(ctx, key)


def discard(ctx: Context, key: str) -> None:
    """Remove an image and its templates; the lock of the image is held by the caller."""
    for found in ctx.store.templates.all():
        if key in found.images:
            with suppress(Conflict):  # a lab is a clone of it, which the image's error names
                template.remove(ctx, found.key)
    images.discard(ctx, key)
    isolate.remove_tree(ctx.home.build(key))  # a killed load leaves its SQL there


def remove_over(ctx: Context) -> None:
    """Remove the versions that waited for a lab which is gone now."""
    for record in ctx.store.images.all():
        if is_over(ctx, record):
            remove_deferred(partial(remove, ctx, record.key), partial(_is_gone, ctx, record.key))


def _is_gone(ctx: Context, key: str) -> bool:
    return ctx.store.images.find(key) is None


def _at(ctx: Context, key: str) -> str:
    record = ctx.store.images.get(key)
    return f"{record.dataset}@{record.version}"
