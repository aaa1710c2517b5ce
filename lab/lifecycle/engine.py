"""Which engine a lab gets: the blueprint's own, or what the user insists on."""

from __future__ import annotations

from dataclasses import dataclass

from lab.blueprints import Blueprint
from lab.errors import InvalidSpec
from lab.lifecycle.context import Context
from lab.suggest import did_you_mean

_NAMES = {"percona": "percona-xtradb-cluster", "mariadb": "mariadb"}


@dataclass(frozen=True)
class Choice:
    """The recipe to use. ``why``: a line for the user if it is not the one meant by the name."""

    recipe: str
    why: str = ""


def choose(ctx: Context, plan: Blueprint, engine: str) -> Choice:
    """The recipe for ``plan``; ``engine`` (percona, mariadb) insists.

    Without it the first of the blueprint's engines whose image exists or whose packages can
    be had; what was not possible is told in one line. Raises InvalidSpec.
    """
    if engine:
        recipe = _NAMES.get(engine, engine)
        if recipe not in plan.engines:
            known = [name for name, r in _NAMES.items() if r in plan.engines]
            raise InvalidSpec(
                f"{plan.name} cannot run on the engine {engine!r}",
                hint=did_you_mean(engine, known, otherwise=f"engines: {', '.join(known)}"),
            )
        return Choice(recipe)
    preferred, *others = plan.engines
    if not others or _have_image(ctx, preferred) or _can_build(ctx, preferred):
        return Choice(preferred)
    choice = Choice(
        others[0],
        f"Percona's repository cannot be reached: {plan.name} uses {others[0]} + Galera instead",
    )
    ctx.progress.note("engine", choice.why)
    return choice


def _have_image(ctx: Context, recipe: str) -> bool:
    return any(r.recipe == recipe and r.state == "ready" for r in ctx.store.images.all())


def _can_build(ctx: Context, recipe: str) -> bool:
    from images.reachable import reachable_recently

    return reachable_recently(recipe, ctx.home.root / "reachable.json")
