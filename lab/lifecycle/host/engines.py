"""The engines that labs can run on, and what this host has or can build of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypedDict

from lab.blueprints import KNOWN, Blueprint, blueprint
from lab.config import enginefile
from lab.errors import HostUnfit
from lab.imagebuild.added import Build, builds
from lab.imagebuild.build import tools
from lab.imagebuild.in_guest.builder import NO_BUILDER
from lab.imagebuild.reachable import reachable_recently
from lab.imagebuild.recipe import Recipe, load, of_build
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.lifecycle.images.order import lacking
from lab.run import require
from lab.state.records import ImageRecord, TemplateRecord
from lab.views.catalog import Buildable, EngineView


class _State(TypedDict):
    build: Buildable
    why: str


def engines(ctx: Context) -> list[EngineView]:
    """Every series of every engine, in the order of their file, then the added ones.

    Nothing is built or started.

    Whether repositories answer is cached, as for `lab up`: where it is not, all are asked at once.
    Raises NotFound and InvalidSpec for a line of the file whose recipe is not there or not sound.
    """
    families = enginefile.families()
    recipes = [load(name) for family in families for _, name in family.series]
    memory = failures.answers(ctx.home)
    with ThreadPoolExecutor(len(recipes)) as threads:
        answers = list(threads.map(lambda recipe: reachable_recently(recipe, memory), recipes))
    reached = {recipe.name: answer for recipe, answer in zip(recipes, answers, strict=True)}
    loaded = {recipe.name: recipe for recipe in recipes}
    records = ctx.store.images.all(), ctx.store.templates.all()
    found = []
    for family in families:
        runs_on = tuple(plan.name for plan in _plans() if family.suits(plan.engines))
        for place, (series, name) in enumerate(family.series):
            view = EngineView(
                name=f"{family.engine}:{series}",
                server=f"{family.title} {series}",
                default=place == 0,
                recipe=name,
                blueprints=runs_on,
                packages=_packages(loaded[name]),
                tested=dict(family.run).get(series, ""),
                **_state(ctx, loaded[name], reached=reached[name]),
            )
            found.append(_with_made(view, *records))
    return found + [_of_build(ctx, build, *records) for build in builds(ctx.home.engines)]


def view_of(ctx: Context, build: Build) -> EngineView:
    """An added engine, as it is shown."""
    return _of_build(ctx, build, ctx.store.images.all(), ctx.store.templates.all())


def _of_build(
    ctx: Context,
    build: Build,
    images: Sequence[ImageRecord],
    templates: Sequence[TemplateRecord],
) -> EngineView:
    family = enginefile.family_of(build.family)
    recipe = of_build(build)
    view = EngineView(
        name=build.name,
        server=f"{family.title} {build.version}",
        default=False,
        recipe=build.name,
        blueprints=tuple(
            plan.name
            for plan in _plans()
            if family.suits(plan.engines) and not lacking(build, plan)
        ),
        packages=(*_packages(recipe), "an added build"),
        features=build.features,
        content=build.content,
        source=build.source,
        **_state(ctx, recipe, reached=True),
    )
    return _with_made(view, images, templates)


def _plans() -> list[Blueprint]:
    return [blueprint(name) for name in KNOWN]


def _with_made(
    view: EngineView, images: Sequence[ImageRecord], templates: Sequence[TemplateRecord]
) -> EngineView:
    """An engine with what is there of it."""
    of_recipe = (i for i in images if i.recipe == view.recipe)
    keys = {i.key for i in of_recipe if i.state == "ready" and not i.dataset}
    formed = [t for t in templates if t.image in keys and t.state == "ready" and not t.source]
    return replace(
        view,
        images=tuple(sorted(keys)),
        templates=tuple(sorted(template.key for template in formed)),
        formed_at=max((template.created_at for template in formed), default=0.0),
    )


def _packages(recipe: Recipe) -> tuple[str, ...]:
    """Where a recipe's packages come from."""
    urls: Sequence[str] = recipe.repository.urls if recipe.repository else ()
    return (f"Debian {recipe.suite}", *urls)


def _state(ctx: Context, recipe: Recipe, *, reached: bool) -> _State:
    build, why = _build(ctx, recipe, reached=reached)
    return {"build": build, "why": why}


def _build(ctx: Context, recipe: Recipe, *, reached: bool) -> tuple[Buildable, str]:
    """Whether this host can build a recipe now, and why not."""
    failure = failures.failure_of(ctx, recipe)
    if failure is not None:
        return "failed", f"{failure}; {failure.remedy}"
    if not reached:
        url = recipe.repository.urls[0] if recipe.repository else "its repository"
        return "unreachable", f"{url} did not answer"
    if recipe.build is not None and ctx.settings.builder is not None:
        return "unfit", NO_BUILDER
    here = ctx.settings.builder is None and ctx.settings.hypervisor != "fake"
    for tool, package in tools(recipe).items() if here else ():
        try:
            require(tool, package=package)
        except HostUnfit as error:
            return "unfit", f"{error}; {error.hint}"
    return "yes", ""
