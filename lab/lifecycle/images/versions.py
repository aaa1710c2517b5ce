"""Versions of datasets: images with data. Which one a request means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.errors import NotFound
from lab.lifecycle.core.context import Context
from lab.names import parse_dataset
from lab.spec import LabSpec
from lab.state.records import ImageRecord
from lab.suggest import did_you_mean


def versions_of(ctx: Context, name: str) -> list[ImageRecord]:
    """The versions of a dataset, also those being made, the oldest first."""
    found = (record for record in ctx.store.images.all() if record.dataset == name)
    return sorted(found, key=lambda record: record.version)


def named(ctx: Context, text: str, *, removing: bool = False) -> ImageRecord:
    """The version that ``shop@2`` means, or ``shop``: the latest; raises NotFound.

    ``removing``: also one that goes with its last lab, if its number is given.
    """
    name, version = parse_dataset(text)
    there = [
        record
        for record in versions_of(ctx, name)
        if record.state == "ready" and (not record.removing or (removing and version))
    ]
    found = [record for record in there if version in (0, record.version)]
    if not found:
        raise _unknown(ctx, name, version, there)
    return found[-1]


def with_image(ctx: Context, spec: LabSpec) -> LabSpec:
    """``spec`` with the image of its dataset, if it has one; raises NotFound."""
    if not spec.dataset:
        return spec
    return replace(spec, dataset="", image=named(ctx, spec.dataset).key)


def _unknown(ctx: Context, name: str, version: int, there: Sequence[ImageRecord]) -> NotFound:
    if there and ctx.store.labs.suggests:
        known = ", ".join(f"{name}@{record.version}" for record in there)
        return NotFound(f"there is no dataset {f'{name}@{version}'!r}", hint=f"versions: {known}")
    if not ctx.store.labs.suggests:  # a token does not see other projects' datasets
        return NotFound(f"there is no dataset {name!r}")
    names = sorted({r.dataset for r in ctx.store.images.all() if r.dataset and r.state == "ready"})
    otherwise = "`lab dataset create` makes one"
    hint = did_you_mean(name, names, otherwise=otherwise)
    return NotFound(f"there is no dataset {name!r}", hint=hint)
