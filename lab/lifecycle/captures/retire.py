"""Versions of datasets that are removed: at once, or with the last lab of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lab.errors import Conflict
from lab.imagebuild import isolate
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.locks.named import lock
from lab.state.records import ImageRecord


def is_over(ctx: Context, record: ImageRecord) -> bool:
    """Whether a version waited for its last lab, which is gone."""
    return record.removing and not any(
        record.key in found.images for found in ctx.store.labs_with_nodes()
    )


def check_unused(ctx: Context, key: str) -> None:
    """Raise Conflict while labs use a version; its templates alone do not keep it."""
    labs = [found.lab.name for found in ctx.store.labs_with_nodes() if key in found.images]
    if labs:
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


def remove_over(ctx: Context, keys: Iterable[str]) -> None:
    """Remove the versions among ``keys`` that waited for a lab which is gone now.

    One that another command works on is left to `lab gc`, or to the service.
    """
    for key in keys:
        record = ctx.store.images.find(key)
        if record is not None and is_over(ctx, record):
            with suppress(Conflict):
                remove(ctx, key)


def _at(ctx: Context, key: str) -> str:
    record = ctx.store.images.get(key)
    return f"{record.dataset}@{record.version}"
