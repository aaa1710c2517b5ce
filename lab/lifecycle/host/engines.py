"""The engines that labs can run on, and what this host has or can build of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lab.blueprints import KNOWN, blueprint
from lab.config import enginefile
from lab.errors import HostUnfit
from lab.imagebuild.build import tools
from lab.imagebuild.reachable import reachable_recently
from lab.imagebuild.recipe import Recipe, load
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.run import require
from lab.views.catalog import Buildable, EngineView


def engines(ctx: Context) -> list[EngineView]:
    """Every series of every engine, in the order of their file; nothing is built or started.

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
    images, templates = ctx.store.images.all(), ctx.store.templates.all()
    plans = [blueprint(name) for name in KNOWN]
    found = []
    for family in families:
        runs_on = tuple(plan.name for plan in plans if family.suits(plan.engines))
        for place, (series, name) in enumerate(family.series):
            recipe = loaded[name]
            build, why = _build(ctx, recipe, reached=reached[name])
            built = [i for i in images if i.recipe == name and i.state == "ready" and not i.dataset]
            keys = {image.key for image in built}
            formed = [t for t in templates if t.image in keys and t.state == "ready"]
            own = [template for template in formed if not template.source]
            found.append(
                EngineView(
                    name=f"{family.engine}:{series}",
                    server=f"{family.title} {series}",
                    default=place == 0,
                    recipe=name,
                    blueprints=runs_on,
                    packages=_packages(recipe),
                    build=build,
                    why=why,
                    images=tuple(sorted(keys)),
                    templates=tuple(sorted(template.key for template in own)),
                    tested=dict(family.run).get(series, ""),
                    formed_at=max((template.created_at for template in own), default=0.0),
                )
            )
    return found


def _packages(recipe: Recipe) -> tuple[str, ...]:
    """Where a recipe's packages come from."""
    urls: Sequence[str] = recipe.repository.urls if recipe.repository else ()
    return (f"Debian {recipe.suite}", *urls)


def _build(ctx: Context, recipe: Recipe, *, reached: bool) -> tuple[Buildable, str]:
    """Whether this host can build a recipe now, and why not."""
    failure = failures.failure_of(ctx, recipe)
    if failure is not None:
        return "failed", f"{failure}; {failure.remedy}"
    if not reached:
        url = recipe.repository.urls[0] if recipe.repository else "its repository"
        return "unreachable", f"{url} did not answer"
    here = ctx.settings.builder is None and ctx.settings.hypervisor != "fake"
    for tool, package in tools(recipe).items() if here else ():
        try:
            require(tool, package=package)
        except HostUnfit as error:
            return "unfit", f"{error}; {error.hint}"
    return "yes", ""
