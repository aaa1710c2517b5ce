"""Which engine `pxc` gets: Percona's if it can be had, else MariaDB, in one visible line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lab.errors import InvalidSpec
from lab.imagebuild.recipe import load
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image
from lab.lifecycle.images.order import choose, out_of_reach, resolve
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.up import up
from lab.spec import LabSpec
from lab.views.labs import LabView
from tests.support.lifecycle_world import World, lab_request

PERCONA = "percona-xtradb-cluster"
LINE = "Percona's repository is out of reach: using MariaDB with Galera"


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    """Where Percona's repository was just found out of reach."""
    with world.open() as opened:
        remember(opened, answer=False)
        yield opened


def remember(ctx: Context, *, answer: bool) -> None:
    repository = load(PERCONA).repository
    assert repository is not None
    known = json.dumps({repository.urls[0]: [time.time(), answer]})
    (ctx.home.root / "reachable.json").write_text(known)


def chosen(ctx: Context, plan: str, engine: str = "") -> str:
    return choose(ctx, resolve(ctx, LabSpec(plan, engine=engine)))[0].name


def make(ctx: Context, name: str, **values: Any) -> LabView:
    return up(ctx, lab_request("pxc", name, **{"nodes": 2, **values}))


def test_percona_if_it_can_be_had(world: World, ctx: Context) -> None:
    remember(ctx, answer=True)
    assert chosen(ctx, "pxc") == PERCONA
    assert make(ctx, "a").engine == "percona"
    assert not [note for note in world.notes if "MariaDB" in note]


def test_mariadb_otherwise_in_one_line(world: World, ctx: Context) -> None:
    assert chosen(ctx, "pxc") == "mariadb"
    assert make(ctx, "a").engine == "mariadb"
    assert world.notes.count(LINE) == 1
    assert len(LINE) < 72


def test_the_line_is_shown_where_something_is_made_of_it(world: World, ctx: Context) -> None:
    """At the first use, of the image or of a template; a warm start has nothing to say."""
    make(ctx, "a")
    world.notes.clear()
    make(ctx, "b")
    make(ctx, "c", engine="mariadb", nodes=3)
    assert LINE not in world.notes
    make(ctx, "d", nodes=1)
    assert world.notes.count(LINE) == 1
    world.notes.clear()
    make(ctx, "e", nodes=1)
    assert LINE not in world.notes
    preview(ctx, lab_request("pxc", nodes=1))
    assert LINE not in world.notes


def test_a_required_engine_is_used_whatever_was_found(world: World, ctx: Context) -> None:
    """The build then tries the repository, whatever was found before."""
    assert chosen(ctx, "pxc", "percona") == PERCONA
    assert chosen(ctx, "pxc", "mariadb") == "mariadb"
    assert chosen(ctx, "galera") == "mariadb"
    assert world.notes == []
    with pytest.raises(InvalidSpec, match="cannot run on"):
        chosen(ctx, "galera", "percona")


def test_an_image_that_is_there_needs_no_repository(world: World, ctx: Context) -> None:
    image.build(ctx, PERCONA)
    world.notes.clear()
    assert chosen(ctx, "pxc") == PERCONA
    assert world.notes == []


def test_an_image_of_an_older_recipe_is_none(world: World, ctx: Context) -> None:
    """It would have to be built again, from a repository that cannot be reached."""
    image.build(ctx, PERCONA)
    record = ctx.store.images.all()[0]
    ctx.store.images.remove(record.key)
    ctx.store.images.add(replace(record, key=f"{PERCONA}-0123456789abcdef"))
    assert chosen(ctx, "pxc") == "mariadb"
    make(ctx, "a")
    assert LINE in world.notes


@pytest.mark.parametrize(
    ("recipe", "whose"),
    [
        (PERCONA, "Percona's repository"),
        ("mysql-8.4", "MySQL's repository"),
        ("mariadb-11.4", "MariaDB's repository"),
    ],
)
def test_whose_repository_is_out_of_reach(recipe: str, whose: str) -> None:
    """Protects who looks for the cause: Percona's answers, and another one does not."""
    found = load(recipe)
    assert out_of_reach(found) == f"{whose} is out of reach"
    assert found.repository is not None
    elsewhere = replace(found.repository, urls=("http://apt.example:8080/own/debian",))
    said = out_of_reach(replace(found, repository=elsewhere))
    assert said == "the repository at apt.example is out of reach"
