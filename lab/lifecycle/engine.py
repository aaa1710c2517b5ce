"""Which engine a lab gets: the blueprint's own, or what the user insists on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from images.recipe import Recipe, load
from lab.blueprints import Blueprint
from lab.errors import InvalidSpec
from lab.lifecycle import image as images
from lab.lifecycle.context import Context
from lab.lifecycle.nodes import Image
from lab.spec import LabSpec
from lab.suggest import did_you_mean

NAMES = {"percona": "percona-xtradb-cluster", "mariadb": "mariadb"}
"""What users call an engine, and the recipe of its image."""


@dataclass(frozen=True)
class Choice:
    """The recipe to use. ``why``: a line for the user if it is not the one meant by the name."""

    recipe: str
    why: str = ""


def recipe_of(engine: str) -> str:
    """The recipe that a user means by ``engine``."""
    return NAMES.get(engine, engine)


def insisted(plan: Blueprint, engine: str) -> str:
    """The recipe that a user means who insists on ``engine``; raises InvalidSpec."""
    recipe = recipe_of(engine)
    if recipe not in plan.engines:
        known = [name for name, r in NAMES.items() if r in plan.engines]
        raise InvalidSpec(
            f"{plan.name} cannot run on the engine {engine!r}",
            hint=did_you_mean(engine, known, otherwise=f"engines: {', '.join(known)}"),
        )
    return recipe


def choose(ctx: Context, plan: Blueprint, spec: LabSpec) -> Choice:
    """The recipe for ``plan``; the engine of ``spec`` (percona, mariadb) insists.

    Without it the first of the blueprint's engines whose image exists or whose packages can
    be had; what was not possible is told in one line. Raises InvalidSpec.
    """
    if spec.engine:
        return Choice(insisted(plan, spec.engine))
    preferred, *others = plan.engines
    if not others or _can_be_had(ctx, load(preferred), spec):
        return Choice(preferred)
    choice = Choice(others[0], "Percona's repository is out of reach: using MariaDB with Galera")
    ctx.progress.note("engine", choice.why)
    return choice


@contextmanager
def image_for(ctx: Context, plan: Blueprint, spec: LabSpec) -> Iterator[Image]:
    """The image for ``spec``, built first if need be; it is kept from removal in the block.

    Raises as ``key_for`` and ``images.ensure`` do.
    """
    if spec.image:
        with images.using_key(ctx, key_for(ctx, plan, spec)) as image:
            yield image
    else:
        recipe, profile = choose(ctx, plan, spec).recipe, ctx.settings.profile_of(spec.profile)
        with images.using(ctx, recipe, profile) as image:
            yield image


def key_for(ctx: Context, plan: Blueprint, spec: LabSpec) -> str:
    """The key of the image for ``spec``, there or not.

    One that ``spec`` names must be there; it may have been made from another version of its
    recipe, or on another host. Raises NotFound, and InvalidSpec where it cannot be used.
    """
    if not spec.image:
        recipe = load(choose(ctx, plan, spec).recipe)
        profile = ctx.settings.profile_of(spec.profile)
        return images.key_of(recipe, ctx.settings.layout, profile)
    record = images.named(ctx, spec.image)
    wanted = [NAMES.get(spec.engine, spec.engine)] if spec.engine else plan.engines
    if record.recipe not in wanted:
        raise InvalidSpec(
            f"{plan.name} cannot be made of the image {record.key}",
            hint=f"one of these recipes: {', '.join(wanted)}",
        )
    return record.key


def _can_be_had(ctx: Context, recipe: Recipe, spec: LabSpec) -> bool:
    """Whether the image of a recipe is there, as the recipe is now, or may be built."""
    records = ctx.store.images.all()
    built = {r.key for r in records if r.recipe == recipe.name and r.state == "ready"}
    profile = ctx.settings.profile_of(spec.profile)
    if built and images.key_of(recipe, ctx.settings.layout, profile) in built:
        return True
    from images.reachable import reachable_recently

    return reachable_recently(recipe, ctx.home.root / "reachable.json")
