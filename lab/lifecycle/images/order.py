"""What was decided about a requested lab: its order, made once, before anything else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Literal
from urllib.parse import urlsplit

from msgspec import structs

from lab.blueprints import (
    Blueprint,
    Member,
    NodePlan,
    Release,
    blueprint,
    blueprint_of,
    check_kinds,
    planned,
    planned_by,
)
from lab.blueprints.dialects import dialect_of, lacks
from lab.blueprints.versions import cautions
from lab.config import enginefile
from lab.config.profile import Profile
from lab.errors import InvalidSpec, LabError, OutOfReach
from lab.guest.network import inner_address
from lab.imagebuild import added
from lab.imagebuild.added import Build
from lab.imagebuild.recipe import RECIPES, Recipe, load
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.lifecycle.images import image as images
from lab.lifecycle.images.image import ImageSpec
from lab.lifecycle.images.initial import check_initial
from lab.lifecycle.images.ready import Image, Images
from lab.names import is_engine_name
from lab.options import Options
from lab.paths import Home
from lab.spec import LabSpec
from lab.units import format_size
from lab.values import dataclass

_UPGRADE = "upgrade"
"""The feature of builds that have the program by which servers upgrade their system tables."""


@dataclass(frozen=True)
class Order:
    """What a lab is to be made of."""

    spec: LabSpec
    """The request; instead of a dataset it has the image of that."""
    blueprint: Blueprint
    """With the options and the number of nodes of the request."""
    nodes: tuple[NodePlan, ...]
    """The nodes, as the blueprint plans them."""
    profile: Profile
    """The profile of the request, or the default one."""
    choices: tuple[ImageSpec, ...]
    """The images that the lab's engine may come from, best first; just one if the request requires
    an engine or an image, none if its nodes have images."""
    others: tuple[ImageSpec, ...]
    """The images of the nodes with a recipe of their own."""

    @property
    def other_keys(self) -> Mapping[str, str]:
        """The keys of ``others``, by their recipes."""
        return {one.name: one.key for one in self.others}

    def with_images(self, keys: Mapping[str, str]) -> Order:
        """The order with the keys of its nodes' images, by their names."""
        nodes = tuple(replace(node, image=keys.get(node.name, "")) for node in self.nodes)
        return replace(self, nodes=nodes)


def resolve(ctx: Context, spec: LabSpec) -> Order:
    """The order of a lab as ``spec`` requests it.

    Raises InvalidSpec if there can be no such lab, NotFound for its dataset or image.
    """
    spec.check()
    image = image_of(ctx, spec)
    said = pinned(spec.blueprint, spec.chosen).said
    spec = structs.replace(spec, dataset="", image=image, options=said)
    plan, profile = blueprint_of(spec), ctx.settings.profile_of(spec.profile)
    there, layout = added.families(ctx.home.engines), ctx.settings.layout
    nodes = planned_by(plan, spec.size, spec.engine, there)
    for name in {*plan.options.engines.values()} & there.keys():
        required(ctx.home, plan, name)
    recipe = spec.engine and required(ctx.home, plan, spec.engine)
    if image:
        choices = [_required_image(ctx, plan, image, recipe, profile)]
    else:
        names = [recipe] if recipe else _possible(plan, nodes, there)
        choices = [ImageSpec(name, layout, profile, ctx.home.engines) for name in names]
    others = dict.fromkeys(node.recipe for node in nodes if node.recipe)
    return Order(
        spec,
        plan,
        nodes,
        profile,
        tuple(choices),
        tuple(ImageSpec(name, layout, profile, ctx.home.engines) for name in others),
    )


def of_existing(ctx: Context, spec: LabSpec) -> Order:
    """The order of a lab that is there, whose nodes have images already (``with_images``).

    What its engines are called now is not asked: one may have been removed, or replaced, since.
    """
    plan = blueprint_of(spec)
    nodes = planned(structs.replace(spec, options=replace(spec.chosen, node=()).said))
    profile = ctx.settings.profile_of(spec.profile)
    return Order(spec, plan, nodes, profile, choices=(), others=())


def image_of(ctx: Context, spec: LabSpec) -> str:
    """The image that ``spec`` requires: the one it names, or that of its dataset; else empty.

    Raises NotFound, InvalidSpec.
    """
    if not spec.dataset:
        return spec.image
    recipe = required(ctx.home, blueprint_of(spec), spec.engine) if spec.engine else ""
    return images.version_named(ctx, spec.dataset, recipe=recipe, engine=spec.engine).key


def pinned(blueprint_name: str, options: Options) -> Options:
    """``options`` with the series of each node's engine, as ENGINE alone means another one later.

    An engine that is not known stays as it is: the plan of the nodes refuses it.
    """
    if not options.node:
        return options
    found = []
    for node, engine in options.engines.items():
        with suppress(InvalidSpec):
            plan = blueprint(blueprint_name)
            recipe = enginefile.recipe(engine, plan.engines, plan.name)
            engine = enginefile.named(recipe)  # noqa: PLW2901
        found.append(f"{node}={engine}")
    return replace(options, node=tuple(found))


def _possible(plan: Blueprint, nodes: Sequence[NodePlan], there: Mapping[str, str]) -> list[str]:
    """The recipes that the lab's engine may have, best first, beside the engines of nodes."""
    given = [node for node in nodes if node.name in plan.options.engines]
    if given and all(node in given for node in nodes if node.has_server):
        return [given[0].recipe]
    kinds = {enginefile.kind_of(node.recipe, there) for node in given}
    return [name for name in plan.engines if not kinds or enginefile.kind_of(name) in kinds]


def _required_image(
    ctx: Context, plan: Blueprint, image: str, recipe: str, profile: Profile
) -> ImageSpec:
    """The image ``image``, which must be there, and of ``recipe`` unless that is empty.

    It may have been made from another version of its recipe, or on another host.
    """
    record = images.named(ctx, image)
    recipes = (recipe,) if recipe else enginefile.recipes_of(plan.engines)
    # That of a build which was added elsewhere, or removed, is of the family that its record names.
    of_family = not recipe and enginefile.family_of(record.engine).suits(plan.engines)
    if record.recipe not in recipes and not of_family:
        raise InvalidSpec(
            f"{plan.name} cannot use the image {record.key}",
            hint=f"one of these recipes: {', '.join(recipes)}",
        )
    if record.dataset and plan.options.node:
        raise InvalidSpec(
            f"{record.key} is the image of the dataset {record.dataset}, and all servers have it",
            hint="leave out the engines of nodes",
        )
    engines = [required(ctx.home, plan, one) for one in plan.options.engines.values()]
    there = added.families(ctx.home.engines)
    if record.recipe in there:
        check_features(added.named(ctx.home.engines, record.recipe), plan)
    kinds = {enginefile.kind_of(name, there): name for name in engines}
    check_kinds({enginefile.family_of(record.engine).kind: record.recipe, **kinds})
    layout = ctx.settings.layout
    return ImageSpec(record.recipe, layout, profile, ctx.home.engines, record.key)


def required(home: Home, plan: Blueprint, engine: str) -> str:
    """The recipe of an ``engine``: ENGINE, ENGINE:SERIES, or one that was added to the home.

    Raises InvalidSpec, also for a build that lacks what the blueprint needs.
    """
    there = added.families(home.engines)
    if is_engine_name(engine) and engine not in there:
        added.find(home.engines, engine)  # says why one that is there cannot be used
    name = enginefile.recipe(engine, plan.engines, plan.name, there)
    if name in there:
        check_features(added.named(home.engines, name), plan)
    return name


def check_features(build: Build, plan: Blueprint) -> None:
    """Raise InvalidSpec if a build lacks what a blueprint needs."""
    how = " with --semi-sync" if plan.options.semi_sync else ""
    _check_has(build, lacking(build, plan), f"cannot run in {plan.name}{how}")


def check_upgrades(home: Home, recipe: str) -> None:
    """Raise InvalidSpec if servers of a recipe could not upgrade data of an older series."""
    build = added.find(home.engines, recipe)
    if build is None or not enginefile.family_of(build.family).upgrade:
        return
    absent = [_UPGRADE] if _UPGRADE not in build.features else []
    _check_has(build, absent, "cannot have data of an older server")


def _check_has(build: Build, absent: Sequence[str], otherwise: str) -> None:
    if absent:
        raise InvalidSpec(
            f"{build.name} ({build.family} {build.version}) {otherwise}: the build"
            f" has no {' and no '.join(absent)}",
            hint=f"add a build that has it: {', '.join(map(_file_of(build), absent))}",
        )


def lacking(build: Build, plan: Blueprint) -> list[str]:
    """What a blueprint needs with its options, and a build does not have."""
    server = Release(build.family, build.version)
    needed = list(plan.needs)
    if plan.options.semi_sync and (by := dialect_of(server).links.semi_sync_by):
        needed.append(by)
    old = filter(None, (lacks(server, one) for one in plan.needs))
    return [*(one for one in needed if one not in build.features), *old]


def _file_of(build: Build) -> Callable[[str], str]:
    """The names of the files by which builds of the same family have features."""
    family = enginefile.family_of(build.family)
    files = dict(added.common(RECIPES / family.builds).features)
    return lambda feature: files.get(feature, feature)


def recipe_of(blueprint_name: str, engine: str) -> str:
    """The recipe of a required ``engine``; as the engine's name if there is none.

    One of another version of lab may be recorded, or requested of a service elsewhere; an added one
    has the name of its recipe.
    """
    try:
        plan = blueprint(blueprint_name)
        return enginefile.recipe(engine, plan.engines, plan.name)
    except InvalidSpec:
        return engine


def choose(ctx: Context, order: Order, elsewhere: Collection[str] = ()) -> tuple[ImageSpec, str]:
    """The choice of an order that is to be used now, and why, if it is not the first.

    ``elsewhere``: the keys of images that can be fetched.

    That is the first whose engine did not fail within the last day (failures.py), and whose image
    exists or whose repository can be reached; else the last of them. Raises InvalidSpec for options
    that its server cannot have, before its image is built.
    """
    choice, why = _first_usable(ctx, order, elsewhere)
    servers = [node for node in order.nodes if node.has_server]
    engines = {
        load(node.recipe, engines=ctx.home.engines).engine
        if node.recipe
        else _engine_of(ctx, choice)
        for node in servers
    }
    check_initial(order.blueprint, engines, [node.role for node in servers])
    return choice, why


def _engine_of(ctx: Context, choice: ImageSpec) -> str:
    """The engine of an image; its recipe may not be here if the image is."""
    record = ctx.store.images.find(choice.named) if choice.named else None
    return choice.recipe.engine if record is None else record.engine


def _first_usable(ctx: Context, order: Order, elsewhere: Collection[str]) -> tuple[ImageSpec, str]:
    passed = remedy = ""
    *preferred, last = order.choices
    engines = order.blueprint.engines
    for choice in preferred:
        failure = _failure_of(ctx, choice)
        if failure is None and (choice.key in elsewhere or _can_be_had(ctx, choice)):
            return choice, passed and f"{passed}: using {engines[choice.name]}{remedy}"
        if not passed and failure is not None:
            passed, remedy = str(failure), f"; {failure.remedy}"
        passed = passed or out_of_reach(choice.recipe)
    return last, passed and f"{passed}: using {engines[last.name]}{remedy}"


def unusable(ctx: Context, choice: ImageSpec) -> str:
    """Why an engine cannot be used now, as ``choose`` decides; empty if it can."""
    failure = _failure_of(ctx, choice)
    if failure is not None:
        return f"{failure}; {failure.remedy}"
    return "" if _can_be_had(ctx, choice) else out_of_reach(choice.recipe)


def out_of_reach(recipe: Recipe) -> str:
    """What is said of a recipe whose repository does not answer: whose it is, or where."""
    url = recipe.repository.urls[0] if recipe.repository else ""
    host = urlsplit(url).hostname or recipe.name
    owner, *_ = enginefile.family_of(recipe.engine).title.split()
    whose = f"{owner}'s repository" if owner.lower() in host else f"the repository at {host}"
    return f"{whose} is out of reach"


def _failure_of(ctx: Context, choice: ImageSpec) -> failures.Failure | None:
    failure = failures.failure_of(ctx, choice.recipe)
    if failure is not None and failure.failed == failures.UNBUILT and is_there(ctx, choice):
        return None  # it was imported since, or built for another profile
    return failure


def _can_be_had(ctx: Context, choice: ImageSpec) -> bool:
    """Whether an image is there, or may be built."""
    if is_there(ctx, choice):
        return True
    from lab.imagebuild.reachable import reachable_recently

    return reachable_recently(choice.recipe, failures.answers(ctx.home))


def is_there(ctx: Context, choice: ImageSpec) -> bool:
    """Whether an image is recorded as ready."""
    record = ctx.store.images.find(choice.key)
    return record is not None and record.state == "ready"


@contextmanager
def using(ctx: Context, order: Order, choice: ImageSpec) -> Iterator[Images]:
    """The images of an order with the engine of ``choice``, kept from removal in the block.

    Those that are not there are built first.
    """
    with ExitStack() as held:
        others = [one for one in order.others if one.key != choice.key]
        engine, *others_ = [held.enter_context(images.using(ctx, one)) for one in (choice, *others)]
        found = Images(engine, {one.recipe: one for one in others_})
        for node in order.nodes:
            _check_disk(ctx, node.size.disk, found.planned(node))
        if order.spec.chosen.node:
            _warn(ctx, order, found)
        yield found


def _warn(ctx: Context, order: Order, images: Images) -> None:
    """Report what the servers' manuals do not support about servers of several versions."""
    members = [
        Member(node.name, number, inner_address(number), node.role)
        for number, node in enumerate(order.nodes, 1)
    ]
    engines = {n.name: images.planned(n).engine for n in order.nodes if n.has_server}
    for text in cautions(order.blueprint, members, engines):
        ctx.progress.note("engine", text)


def _check_disk(ctx: Context, size: int, image: Image) -> None:
    least = images.snapshots(ctx, image)[image.grows].size
    if 0 < size < least:
        raise InvalidSpec(
            f"a node's disk cannot be {format_size(size)}: the image has {format_size(least)}",
            hint="set a larger --disk, or leave it out",
        )


def find(ctx: Context, order: Order, key: str) -> Images:
    """The images of an order, ``key`` of its engine's; raises NotFound if one is not there."""
    others = {name: images.find(ctx, other) for name, other in order.other_keys.items()}
    return Images(images.find(ctx, key), others)


def changed(
    ctx: Context, order: Order, choice: ImageSpec, kind: Literal["image", "template"], key: str
) -> bool:
    """Whether ``choice`` is outdated: another command that was making ``key`` of it has failed.

    That command is waited for. Where there is one choice, nothing is.
    """
    if len(order.choices) == 1:
        return False
    with build_lock(ctx, kind, key, shared=True):
        return choose(ctx, order)[0] != choice


def falls_back(
    ctx: Context,
    order: Order,
    choice: ImageSpec,
    began: float,
    failed: list[ImageSpec],
    error: LabError,
) -> bool:
    """Whether another choice is to be used after ``choice``, tried since ``began``, failed.

    It is if the failure is the engine's own, as failures.py decides; it is reported in full and
    recorded for a day. Those of the host (no space, no memory, a tool, Debian's mirror) are not.
    ``failed``: the choices that failed before. If there is no other, their recorded failures are
    removed.
    """
    if len(order.choices) == 1:
        return False
    failure = failures.failure_of(ctx, choice.recipe)
    recorded = failure is not None and failure.at >= began
    if (recorded or isinstance(error, OutOfReach)) and choose(ctx, order)[0] != choice:
        if failure is not None:
            _show(ctx, failure, error)
        return True
    for one in [*failed, choice] if recorded else failed:
        failures.withdraw(ctx, one.name)
    return False


def _show(ctx: Context, failure: failures.Failure, error: LabError) -> None:
    lines = [f"{failure.recipe} {failure.failed}, step {failure.step}: {error}"]
    lines += [f"  {line}" for line in error.details]
    lines += [f"hint: {error.hint}"] if error.hint else []
    for line in lines:
        ctx.progress.note("engine", line)
