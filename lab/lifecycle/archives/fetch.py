"""What a lab is cloned from, between two hosts: what this one lacks, and what it gives another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

from lab.errors import InvalidSpec, NotFound
from lab.exchange import talk
from lab.lifecycle.archives.export import Contents, converse, image_contents, template_contents
from lab.lifecycle.archives.import_template import SAVED_ELSEWHERE
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures import template as templates
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.captures.template_record import base
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import Order, choose, find, is_there, resolve
from lab.names import template_ref
from lab.request import filled
from lab.requests.images import BuildTemplate
from lab.spec import LabSpec
from lab.state.records import TemplateRecord
from lab.values import dataclass

Fetched = Literal["image", "dataset", "template"]


@dataclass(frozen=True)
class Fetch:
    """What one host asks another one for."""

    kind: Fetched
    which: str = ""
    """The key of an image, or a dataset as ``shop@2``."""
    cluster: Mapping[str, Any] | None = None
    """The fields of the request for the template: keys of templates differ between hosts."""
    images: tuple[str, ...] = ()
    """The keys of the images that its nodes must have."""
    project: str | None = None
    """The project for which it is; None: an administrator's, or the service's."""
    owner: str = ""
    """The project whose dataset it is, as the other host has said; empty: it is for all."""


@dataclass(frozen=True)
class Lacking:
    """What of a requested lab is not here. ``images``: keys."""

    engine: str
    """The key of its engine's image."""
    all: tuple[str, ...]
    """The keys of all its images."""
    images: tuple[str, ...]
    template: bool


def lacking(ctx: Context, spec: LabSpec, elsewhere: Collection[str] = ()) -> Lacking:
    """What would have to be made here before a lab can be cloned; raises as ``resolve`` does.

    ``elsewhere``: the keys of images that can be fetched.
    """
    order = resolve(ctx, spec)
    choice, _ = choose(ctx, order, elsewhere)
    wanted = {one.key: one for one in (choice, *order.others)}
    absent = tuple(key for key, one in wanted.items() if not is_there(ctx, one))
    template = bool(absent) or _named(ctx, order, choice.key) is None
    return Lacking(choice.key, tuple(wanted), absent, template)


def _named(ctx: Context, order: Order, engine: str) -> str | None:
    """The template of an order that is here, ``engine``: the key of its image, which is here."""
    return templates.current(ctx, templates.key_of(ctx, order, find(ctx, order, engine)))


def give(ctx: Context, asked: Fetch, remote: talk.Remote) -> int:
    """Send another host what it asks for, as far as it has not got it; the bytes that it took.

    Raises NotFound, also for a dataset of another project.
    """
    with _contents(ctx, asked) as contents:
        _, _, size = converse(ctx, contents, remote)
    return size


@contextmanager
def _contents(ctx: Context, asked: Fetch) -> Iterator[Contents]:
    if asked.kind == "template":
        with template_contents(ctx, _wanted(ctx, asked)) as contents:
            yield contents
        return
    if asked.kind == "dataset":
        record = images.version_named(ctx, asked.which)
    else:
        record = images.named(ctx, asked.which)
    _check(asked, record.dataset, record.project)
    is_data = asked.kind == "dataset"
    if bool(record.dataset) != is_data or (is_data and record.project != asked.owner):
        raise _not_here(asked)
    with image_contents(ctx, record) as contents:
        yield contents


def _wanted(ctx: Context, asked: Fetch) -> str:
    """The name of the template that is asked for; raises NotFound."""
    if asked.cluster is None or not asked.images:
        raise _not_here(asked)
    try:
        spec = msgspec.convert(filled(BuildTemplate, asked.cluster), BuildTemplate)
    except msgspec.ValidationError as error:  # of another version
        raise InvalidSpec(f"the requested template is not understood here: {error}") from None
    spec.check()
    if spec.dataset:
        record = images.version_named(ctx, spec.dataset)
        _check(asked, record.dataset, record.project)
    order = resolve(ctx, spec)
    name = None
    if {asked.images[0], *order.other_keys.values()} == set(asked.images):
        name = _named(ctx, order, asked.images[0])
    if name is None:
        raise _not_here(asked)
    return name


def _check(asked: Fetch, dataset: str, project: str) -> None:
    if dataset and asked.project is not None and project not in ("", asked.project):
        raise _not_here(asked)


def _not_here(asked: Fetch) -> NotFound:
    return NotFound(f"there is no such {asked.kind} here {asked.which}".rstrip())


def unfit(ctx: Context, but: Collection[str] = ()) -> list[TemplateRecord]:
    """The templates whose labs boot, as their RAM was saved by another hypervisor; without ``but``.

    Those of snapshots are no matter of this: nothing is formed for them.
    """
    if ctx.hypervisor.memory is None:
        return []
    found = []
    for record in ctx.store.templates.all():
        if record.state != "ready" or record.warm or record.source or record.key in but:
            continue
        with suppress(Damaged):
            capture = manifests.read(ctx.home.manifest(template_ref(record.key)))
            now = templates.current(ctx, base(record.key))
            if capture.why_cold.startswith(SAVED_ELSEWHERE) and now == record.key:
                found.append(record)
    return found
