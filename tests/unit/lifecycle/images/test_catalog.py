"""Unused images and templates are reported, and can be removed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lab.lifecycle.core.context import Context
from lab.lifecycle.host import catalog
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.down import down
from lab.lifecycle.nodes.inspect import lab
from lab.requests.host import CollectGarbage
from lab.views.catalog import Use
from tests.support.lifecycle_world import World, make_lab, make_template

UNUSED = CollectGarbage(unused=True)


def uses(ctx: Context) -> list[Use]:
    """Of all templates, then of all images."""
    return [v.use for v in catalog.templates(ctx)] + [v.use for v in catalog.images(ctx)]


@contextmanager
def split(world: World) -> Iterator[Context]:
    """The same home with another layout: no image that is there fits."""
    with world.open() as ctx:
        yield replace(ctx, settings=replace(ctx.settings, layout="split"))


def test_what_the_next_lab_is_made_of_is_current(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        assert uses(ctx) == ["current", "current"]
        assert gc(ctx, UNUSED).removed == ()
        made = catalog.images(ctx)[0].used_at
        make_lab(ctx)
        (template,), (image,) = catalog.templates(ctx), catalog.images(ctx)
        assert template.use == "current"
        assert made < template.used_at <= image.used_at
        assert catalog.image(ctx, "mariadb") == image


def test_another_qemu_leaves_a_template_behind(world: World) -> None:
    """Only reported, until its removal is requested; a lab that was cloned keeps it."""
    with world.open() as ctx:
        make_lab(ctx)
    world.version = "2"
    with world.open() as ctx:
        assert uses(ctx) == ["stale", "current"]
        assert gc(ctx, UNUSED).removed == ()
        assert lab(ctx, "shop").state == "ready"
        down(ctx, "shop")
        assert uses(ctx) == ["unused", "current"]
        (line,) = gc(ctx).left
        assert "lab gc --unused" in line
        assert uses(ctx) == ["unused", "current"]
        assert gc(ctx, CollectGarbage(unused=True, age=3600.0)).removed == ()
        (planned,) = gc(ctx, CollectGarbage(unused=True, dry_run=True)).removed
        assert uses(ctx) == ["unused", "current"]
        report = gc(ctx, UNUSED)
        assert report.removed == (planned,)
        assert report.left == ()
        assert uses(ctx) == ["current"]
        make_template(ctx)
        assert uses(ctx) == ["current", "current"]


def test_an_image_goes_with_its_templates(world: World) -> None:
    with world.open() as ctx:
        make_lab(ctx)
    with split(world) as ctx:
        assert uses(ctx) == ["stale", "stale"]
        assert gc(ctx, UNUSED).removed == ()
        down(ctx, "shop")
        assert uses(ctx) == ["unused", "stale"]
        assert [line.partition(":")[0] for line in gc(ctx, UNUSED).removed] == [
            "template", "image",
        ]  # fmt: skip
        assert uses(ctx) == []
        assert ctx.storage.volumes() == []


def test_a_profile_that_is_gone(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        key = ctx.store.templates.all()[0].key
        ctx.store.templates.update(key, profile="mine")
        assert uses(ctx) == ["unused", "current"]


def test_lock_files_do_not_pile_up(world: World) -> None:
    """Shared ones and those of killed commands are left, until gc; those in use stay."""
    with world.open() as ctx:
        make_template(ctx)
    assert world.killed(make_lab, 20)
    assert list(world.home.locks.iterdir())
    with world.open() as ctx:
        gc(ctx)
    assert list(world.home.locks.iterdir()) == []


def test_recipes_that_did_not_change_are_not_hashed_again(world: World) -> None:
    """Protects `GET /v1/images`: a service is asked again and again."""
    hashed = 0

    def count(_frame: object, event: str, arg: object) -> None:
        nonlocal hashed
        hashed += event == "c_call" and getattr(arg, "__name__", "").endswith("sha256")

    with world.open() as ctx:
        make_template(ctx)
        first, before = catalog.images(ctx), sys.getprofile()
        sys.setprofile(count)
        try:
            again = catalog.images(ctx)
        finally:
            sys.setprofile(before)
    assert again == first
    assert hashed == 0
