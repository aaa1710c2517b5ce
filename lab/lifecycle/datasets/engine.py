"""Which engine a dataset has: that of the request, else one of the family of its source."""

from __future__ import annotations

from lab.blueprints import Blueprint, blueprint
from lab.blueprints.dialects import DIALECTS
from lab.config.enginefile import Family, engines, families, family_of
from lab.datasets.source import BackupStream, Source
from lab.datasets.source_dialect import dialect_of_source
from lab.errors import InvalidSpec
from lab.imagebuild import added
from lab.imagebuild.added import Build
from lab.imagebuild.recipe import load as load_recipe
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.image import spec_of
from lab.lifecycle.images.order import lacking, required, unusable
from lab.names import is_engine_name
from lab.paths import Home
from lab.suggest import did_you_mean
from lab.values import dataclass

_BLUEPRINTS = ("galera", "pxc", "replication")
"""What labs are of where a request names no blueprint: the first that runs on the engine."""


@dataclass(frozen=True)
class Chosen:
    """What a dataset is made on."""

    blueprint: str
    """One that labs of it can be of."""
    engine: str
    """ENGINE, ENGINE:SERIES or a recipe."""


def default_engine(plan: Blueprint) -> str:
    """The engine of datasets for a blueprint where nothing says which; raises InvalidSpec."""
    found = next((one.name for one in families() if _loads(one, plan)), None)
    if found is None:
        raise InvalidSpec(f"the blueprint {plan.name} has no engine that loads datasets")
    return found


def check_engine(home: Home, named: str, engine: str) -> Chosen:
    """What a dataset is made on whose request names an ``engine``; raises InvalidSpec.

    ``named``: the blueprint that it names; empty: none.
    """
    name = engine.partition(":")[0]
    build = added.find(home.engines, engine) if is_engine_name(engine) else None
    plans = [named] if named else [one for one in _BLUEPRINTS if _runs(name, build, blueprint(one))]
    if not plans:
        known = engines(added.families(home.engines))
        hint = did_you_mean(engine, known, otherwise=f"engines: {', '.join(known)}")
        raise InvalidSpec(f"there is no engine {engine[:80]!r}", hint=hint)
    recipe = load_recipe(required(home, blueprint(plans[0]), engine), engines=home.engines)
    family = family_of(recipe.engine)
    if not family.loads_datasets:
        loading = " or ".join(one.name for one in families() if one.loads_datasets)
        raise InvalidSpec(
            f"{engine} loads no datasets",
            hint=f"a dataset's engine is {loading}, or a series of it",
        )
    return Chosen(plans[0], engine)


def check_source(source: Source, engine: str) -> None:
    """Raise InvalidSpec for a stream of a backup that a server of the ``engine`` cannot have."""
    family = family_of(engine)
    if isinstance(source, BackupStream) and not DIALECTS[family.dialect].prepares:
        raise InvalidSpec(
            f"{source} is the stream of a backup, which {family.title} cannot prepare here",
            hint="unpack and prepare it (xbstream -x, xtrabackup --prepare), and create the dataset"
            " from the directory; or from a dump",
        )


def choose(ctx: Context, named: str, engine: str, source: Source) -> Chosen:
    """What a dataset of ``source`` is made on; ``named``, ``engine``: by the request, or empty.

    Without an engine it is of the family of the server that the source is of, if its image is
    there or can be built; else a note says why it is another one. Raises InvalidSpec.
    """
    if engine:
        return check_engine(ctx.home, named, engine)
    plans = [blueprint(name) for name in ([named] if named else _BLUEPRINTS)]
    there = [(family, plan.name) for family in families() for plan in plans if _loads(family, plan)]
    origin = dialect_of_source(source)
    own = [(family, plan) for family, plan in there if family.dialect == origin]
    why = ""
    for family, plan in own:
        if not (reason := unusable(ctx, spec_of(ctx, family.name))):
            return Chosen(plan, family.name)
        why = why or reason
    others = [pair for pair in there if pair not in own]
    if not others:
        raise InvalidSpec(
            f"the blueprint {named} has no engine that loads datasets"
            if not there
            else f"{source}: no engine can be had: {why}"
        )
    family, plan = others[0]
    if origin:
        why = why or f"labs of {named} do not run on {family_of(origin).title}"
        text = f"{source} is of {family_of(origin).title}; using {family.title}: {why}"
        ctx.progress.note("dataset", text)
    return Chosen(plan, family.name)


def _loads(family: Family, plan: Blueprint) -> bool:
    return family.loads_datasets and family.suits(plan.engines)


def _runs(engine: str, build: Build | None, plan: Blueprint) -> bool:
    """Whether a blueprint runs on an engine, on the engine of a recipe, or on an added one."""
    if build is not None:
        return family_of(build.family).suits(plan.engines) and not lacking(build, plan)
    some = [family for family in families() if family.suits(plan.engines)]
    return any(engine in (one.engine, *(recipe for _, recipe in one.series)) for one in some)
