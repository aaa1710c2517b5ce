"""The images and templates of this host, and which of them requests still use.

Their keys contain everything that must fit. So when a recipe, QEMU, a profile or the program
changes, new ones are made next to the old ones, which no request uses any more.
"""

from __future__ import annotations

from dataclasses import replace

from lab.errors import HostUnfit, LabError
from lab.lifecycle.captures import template as captured
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as built
from lab.lifecycle.images.order import find, resolve
from lab.names import Owner
from lab.state.records import TemplateRecord
from lab.views.catalog import ImageView, TemplateView, Use


def images(ctx: Context) -> list[ImageView]:
    """All images, by key, and whether they are in use."""
    current = current_images(ctx)
    return [_image(ctx, view, current) for view in built.images(ctx)]


def image(ctx: Context, key_or_recipe: str) -> ImageView:
    """One image, by key or by the recipe it was built from; raises NotFound."""
    return _image(ctx, built.image(ctx, key_or_recipe), current_images(ctx))


def templates(ctx: Context) -> list[TemplateView]:
    """All templates, by key, and whether they are in use."""
    current = current_images(ctx)
    users = {lab.template for lab in ctx.store.labs.all()}
    return [
        replace(view, use=_use(view.key in users, fits=_fits(ctx, view.key, current)))
        for view in captured.templates(ctx)
    ]


def unused(ctx: Context, before: float) -> list[Owner]:
    """Unused images and templates, last used before ``before``; clones before origins."""
    old_templates = [t for t in templates(ctx) if t.use == "unused" and t.state == "ready"]
    old = [Owner("template", t.key) for t in old_templates if t.used_at <= before]
    going = {f"template {owner.name}" for owner in old}
    old_images = [i for i in images(ctx) if i.use != "current" and i.state == "ready"]
    return old + [
        Owner("image", i.key)
        for i in old_images
        if i.used_at <= before and going.issuperset(i.used_by)
    ]


def current_images(ctx: Context) -> set[str]:
    """The keys of the images that would be used now, of the recipes of those that are there.

    Versions of datasets are: they go when they are removed, or replaced by newer ones.
    """
    records, profiles = ctx.store.images.all(), ctx.settings.all_profiles().values()
    loaded = {record.key for record in records if record.dataset}
    recipes = {record.recipe for record in records if not record.dataset}
    return loaded | {
        spec.key for recipe in recipes for spec in built.specs_of(ctx, recipe, profiles)
    }


def _image(ctx: Context, view: ImageView, current: set[str]) -> ImageView:
    uses = [r.used_at for r in ctx.store.templates.all() if view.key in r.images]
    uses += [r.lab.created_at for r in ctx.store.labs_with_nodes() if view.key in r.images]
    use = _use(bool(view.used_by), fits=view.key in current)
    return replace(view, use=use, used_at=max([view.created_at, *uses]))


def _use(used: bool, *, fits: bool) -> Use:
    return "current" if fits else "stale" if used else "unused"


def _fits(ctx: Context, key: str, current: set[str]) -> bool:
    """Whether a request with the specification of this template uses it."""
    record = ctx.store.templates.get(key)
    if record.source or not record.images <= current:
        return False
    try:
        return captured.is_for(key, _key_now(ctx, record))
    except HostUnfit:
        return True  # QEMU's version is unknown now
    except LabError:
        return False  # its image, its blueprint or its profile is gone


def _key_now(ctx: Context, record: TemplateRecord) -> str:
    order = resolve(ctx, record.spec)
    return captured.key_of(ctx, order, find(ctx, order, record.image))
