"""An order: what is decided about a lab before anything of it is made, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs

from lab import blueprints
from lab.blueprints import NodePlan
from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image
from lab.lifecycle.images.order import choose, resolve
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.up import up
from lab.lifecycle.service import pool
from lab.requests.labs import BranchLab, CreateLab
from lab.sizes import NodeSize
from tests.support.lifecycle_world import World, lab_request
from tests.support.mixed import FRONT, Mixed, register

REQUEST = lab_request("mixed", "two", nodes=2)
PLANNED: list[str] = []


@dataclass(frozen=True)
class Counted(Mixed):
    """Says how often its nodes are planned."""

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        PLANNED.append(self.name)
        return super().plan(size)


COUNTED = Counted()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    register(monkeypatch)
    monkeypatch.setitem(blueprints.KNOWN, "mixed", f"{__name__}:COUNTED")
    return World(tmp_path)


@pytest.mark.parametrize(
    "verb",
    [
        lambda ctx: up(ctx, structs.replace(REQUEST, name="one")),
        lambda ctx: up(ctx, structs.replace(REQUEST, name="one", cold=True)),
        lambda ctx: preview(ctx, structs.replace(REQUEST, name="one")),
        lambda ctx: template.build(ctx, REQUEST),
        lambda ctx: pool.keys(ctx, REQUEST),
        lambda ctx: branch(ctx, BranchLab(lab="two"), timeout=10),
    ],
    ids=["up", "up --cold", "up --dry-run", "template build", "pool", "branch"],
)
def test_nodes_are_planned_once(world: World, verb: Callable[[Context], object]) -> None:
    """Protects from parts of a verb that see other nodes than the rest of it."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        PLANNED.clear()
        verb(ctx)
        assert len(PLANNED) == 1


def test_an_order_has_all_that_follows_from_a_request(world: World) -> None:
    with world.open() as ctx:
        order = resolve(ctx, REQUEST)
        assert [node.name for node in order.nodes] == ["n1", "n2"]
        assert order.profile == ctx.settings.profile_of("")
        assert [one.name for one in order.others] == [FRONT.recipe]
        made = up(ctx, REQUEST)
        assert choose(ctx, order)[0].key == made.image
        assert order.other_keys == {FRONT.recipe: made.nodes[1].image}


def test_an_image_that_is_named_is_the_only_choice(world: World) -> None:
    with world.open() as ctx:
        key = image.build(ctx, "mariadb").key
        (choice,) = resolve(ctx, structs.replace(REQUEST, image=key)).choices
        assert (choice.key, choice.named) == (key, key)
        with pytest.raises(NotFound):
            resolve(ctx, structs.replace(REQUEST, image="mariadb-0000"))
        other = image.build(ctx, "haproxy").key
        with pytest.raises(InvalidSpec, match="cannot use the image"):
            resolve(ctx, structs.replace(REQUEST, image=other))


@pytest.mark.parametrize(
    "verb",
    [up, preview, template.build, pool.keys],
    ids=["up", "preview", "template", "pool"],
)
def test_no_image_is_built_for_options_that_its_server_cannot_have(
    tmp_path: Path, verb: Callable[[Context, CreateLab], object]
) -> None:
    """Protects from minutes of a build whose end is the refusal of an option."""
    asked = lab_request("single", "one", set=("innodb_page_size=4k",))
    with World(tmp_path).open() as ctx:
        with pytest.raises(InvalidSpec, match="data directory was initialised with"):
            verb(ctx, asked)
        assert not ctx.store.images.all()
