"""Which engine a lab gets: the blueprint's own, the next one, or what the user requires."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from lab.blueprints import Blueprint, blueprint
from lab.config import enginefile
from lab.errors import Interrupted, InvalidSpec, LabError, OutOfReach
from lab.imagebuild.recipe import Recipe, load
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.lifecycle.images import image as images
from lab.lifecycle.images.ready import Image, Images
from lab.spec import LabSpec
from lab.units import format_size

OUT_OF_REACH = "Percona's repository is out of reach"

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """The recipe to use. ``why``: a line for the user if it is not the preferred one."""

    recipe: str
    why: str = ""


def recipe_of(spec: LabSpec) -> str:
    """The recipe of the engine that ``spec`` requires; as the engine's name if there is none.

    One of another version of lab may be recorded, or requested of a service elsewhere.
    """
    try:
        return required(blueprint(spec.blueprint), spec.engine)
    except InvalidSpec:
        return spec.engine


def required(plan: Blueprint, engine: str) -> str:
    """The recipe of an ``engine``, ENGINE or ENGINE:SERIES; raises InvalidSpec."""
    return enginefile.recipe(engine, plan.engines, plan.name)


def choose(ctx: Context, plan: Blueprint, spec: LabSpec) -> Choice:
    """The recipe for ``plan``; the engine of ``spec``, as mariadb:10.11, is required if given.

    Without it the first of the blueprint's engines that did not fail within the last day
    (failures.py), and whose image exists or whose repository can be reached; else the last of
    them. Raises InvalidSpec.
    """
    if spec.engine:
        return Choice(required(plan, spec.engine))
    passed = remedy = ""
    *preferred, last = plan.engines
    for name in preferred:
        recipe = load(name)
        failure = failures.of(ctx, recipe)
        if failure is not None and failure.failed == failures.UNBUILT and _there(ctx, recipe, spec):
            failure = None  # it was imported since, or built for another profile
        if failure is None and _can_be_had(ctx, recipe, spec):
            return Choice(name, passed and f"{passed}: using {plan.engines[name]}{remedy}")
        if not passed and failure is not None:
            passed, remedy = str(failure), f"; {failure.remedy}"
        passed = passed or OUT_OF_REACH
    return Choice(last, passed and f"{passed}: using {plan.engines[last]}{remedy}")


@contextmanager
def images_with_fallback(
    ctx: Context,
    plan: Blueprint,
    spec: LabSpec,
    capture_of: Callable[[Images], AbstractContextManager[T]],
    missing_template: Callable[[Images], str] = lambda _: "",
) -> Iterator[tuple[Images, T]]:
    """The images for ``spec``, and the result of ``capture_of`` for them, for the block.

    ``capture_of``: enters the template made of the images. ``missing_template``: the key of the
    template that ``capture_of`` would have to make, empty for none.

    They are those of the engine, and of each other recipe that the plan names.
    Where ``spec`` requires neither engine nor image, and an engine cannot be built, or its first
    template does not form, the failure is reported in full and recorded for a day, and the next
    engine is used. failures.py decides which failures are the engine's; those of the host (no
    space, no memory, a tool, Debian's mirror, an interrupt) are raised at once. If every engine
    fails, the last error is raised, and the recorded failures are removed.

    Raises as ``key_for``, ``images.ensure`` and ``capture_of`` do.
    """
    failed: list[str] = []
    with ExitStack() as held:
        found = None
        while found is None:
            began = time.time()
            choice = Choice("") if spec.image else choose(ctx, plan, spec)
            try:
                found = _entered(
                    ctx,
                    plan,
                    spec,
                    choice,
                    capture_of,
                    missing_template,
                    held,
                    fell_back=bool(failed),
                )
            except Interrupted:
                raise
            except LabError as error:
                held.close()
                if not _free(plan, spec) or not _next(
                    ctx, plan, spec, choice, began, failed, error
                ):
                    raise
                failed.append(choice.recipe)
                _show(ctx, load(choice.recipe), error)
        yield found


def _entered(
    ctx: Context,
    plan: Blueprint,
    spec: LabSpec,
    choice: Choice,
    capture_of: Callable[[Images], AbstractContextManager[T]],
    missing_template: Callable[[Images], str],
    held: ExitStack,
    *,
    fell_back: bool,
) -> tuple[Images, T] | None:
    """Image and template of ``choice``; None if the failure of another command changes the choice.

    Its reason is reported if an image or template must be made, or after a fallback.
    """
    if spec.image:
        image = held.enter_context(images.using_key(ctx, key_for(ctx, plan, spec)))
        found = _with_others(ctx, plan, spec, image, held)
        return found, held.enter_context(capture_of(found))
    recipe, profile = load(choice.recipe), ctx.settings.profile_of(spec.profile)
    key = images.key_of(recipe, ctx.settings.layout, profile)
    free = _free(plan, spec)
    record = ctx.store.images.find(key)
    there = record is not None and record.state == "ready"
    if free and not there and _changed(ctx, plan, spec, choice, "image", key):
        return None
    if choice.why and (fell_back or not there):
        ctx.progress.note("engine", choice.why)
    image = held.enter_context(images.using(ctx, recipe, key, profile))
    found = _with_others(ctx, plan, spec, image, held)
    missing = missing_template(found) if free else ""
    if missing and _changed(ctx, plan, spec, choice, "template", missing):
        held.close()
        return None
    if choice.why and missing and there and not fell_back:
        ctx.progress.note("engine", choice.why)
    return found, held.enter_context(capture_of(found))


def _with_others(
    ctx: Context, plan: Blueprint, spec: LabSpec, engine: Image, held: ExitStack
) -> Images:
    """The images of all nodes, those of other recipes than the engine's built first if need be."""
    profile = ctx.settings.profile_of(spec.profile)
    others = {
        recipe: held.enter_context(images.using(ctx, load(recipe), key, profile))
        for recipe, key in other_keys(ctx, plan, spec).items()
    }
    found = Images(engine, others)
    for node in plan.plan(spec):
        _check_disk(ctx, node.size.disk, found.planned(node))
    return found


def _free(plan: Blueprint, spec: LabSpec) -> bool:
    """Whether a fallback is allowed: neither engine nor image is required."""
    return not spec.engine and not spec.image and len(plan.engines) > 1


def _changed(
    ctx: Context,
    plan: Blueprint,
    spec: LabSpec,
    choice: Choice,
    kind: Literal["image", "template"],
    key: str,
) -> bool:
    """Wait for another command that makes it; return whether its failure changed the choice."""
    with build_lock(ctx, kind, key, shared=True):
        return choose(ctx, plan, spec).recipe != choice.recipe


def _next(
    ctx: Context,
    plan: Blueprint,
    spec: LabSpec,
    choice: Choice,
    began: float,
    failed: list[str],
    error: LabError,
) -> bool:
    """Whether another engine is to be used after ``choice``, tried since ``began``, failed."""
    failure = failures.of(ctx, load(choice.recipe))
    recorded = failure is not None and failure.at >= began
    if (recorded or isinstance(error, OutOfReach)) and choose(
        ctx, plan, spec
    ).recipe != choice.recipe:
        return True
    for recipe in [*failed, choice.recipe] if recorded else failed:
        failures.withdraw(ctx, recipe)
    return False


def _show(ctx: Context, recipe: Recipe, error: LabError) -> None:
    failure = failures.of(ctx, recipe)
    if failure is not None:
        lines = [f"{recipe.name} {failure.failed}, step {failure.step}: {error}"]
        lines += [f"  {line}" for line in error.details]
        lines += [f"hint: {error.hint}"] if error.hint else []
        for line in lines:
            ctx.progress.note("engine", line)


def _check_disk(ctx: Context, size: int, image: Image) -> None:
    least = images.snapshots(ctx, image)[image.grows].size
    if 0 < size < least:
        raise InvalidSpec(
            f"a node's disk cannot be {format_size(size)}: the image has {format_size(least)}",
            hint="set a larger --disk, or leave it out",
        )


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
    wanted = [required(plan, spec.engine)] if spec.engine else enginefile.recipes_of(plan.engines)
    if record.recipe not in wanted:
        raise InvalidSpec(
            f"{plan.name} cannot use the image {record.key}",
            hint=f"one of these recipes: {', '.join(wanted)}",
        )
    return record.key


def other_keys(ctx: Context, plan: Blueprint, spec: LabSpec) -> dict[str, str]:
    """The keys of the images of nodes with a recipe of their own, by recipe, there or not."""
    layout, profile = ctx.settings.layout, ctx.settings.profile_of(spec.profile)
    recipes = dict.fromkeys(node.recipe for node in plan.plan(spec) if node.recipe)
    return {name: images.key_of(load(name), layout, profile) for name in recipes}


def find(ctx: Context, plan: Blueprint, spec: LabSpec, key: str) -> Images:
    """The images for ``spec``, ``key`` of its engine's; raises NotFound if one is not there."""
    others = other_keys(ctx, plan, spec).items()
    return Images(
        images.find(ctx, key), {recipe: images.find(ctx, other) for recipe, other in others}
    )


def keys_for(ctx: Context, plan: Blueprint, spec: LabSpec) -> list[str]:
    """The keys of the images that ``spec`` may be made of, the one of ``key_for`` first.

    Raises as that does.
    """
    found = [key_for(ctx, plan, spec)]
    if _free(plan, spec):
        layout, profile = ctx.settings.layout, ctx.settings.profile_of(spec.profile)
        found += [images.key_of(load(name), layout, profile) for name in plan.engines]
    return list(dict.fromkeys(found))


def _can_be_had(ctx: Context, recipe: Recipe, spec: LabSpec) -> bool:
    """Whether the image of a recipe is there, as the recipe is now, or may be built."""
    if _there(ctx, recipe, spec):
        return True
    from lab.imagebuild.reachable import reachable_recently

    return reachable_recently(recipe, failures.answers(ctx.home))


def _there(ctx: Context, recipe: Recipe, spec: LabSpec) -> bool:
    """Whether the image of a recipe is there, as the recipe is now."""
    records = ctx.store.images.all()
    built = {r.key for r in records if r.recipe == recipe.name and r.state == "ready"}
    profile = ctx.settings.profile_of(spec.profile)
    return bool(built) and images.key_of(recipe, ctx.settings.layout, profile) in built
