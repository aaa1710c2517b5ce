"""What a host has of each engine, and labs of a series that is not the default."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab.config import enginefile
from lab.errors import InvalidSpec, NotFound, RecipeFailed
from lab.imagebuild.recipe import load
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets.engine import check_engine
from lab.lifecycle.host.engines import engines
from lab.lifecycle.images import failures, image
from lab.lifecycle.labs import configuration
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import record_of
from lab.requests.labs import CreateLab
from lab.views.catalog import EngineView
from tests.support.lifecycle_world import World, lab_request


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    """Where all repositories were just found out of reach."""
    with world.open() as opened:
        named = [name for family in enginefile.families() for _, name in family.series]
        answers = {
            recipe.repository.urls[0]: [time.time(), False]
            for recipe in map(load, named)
            if recipe.repository
        }
        (opened.home.root / "reachable.json").write_text(json.dumps(answers))
        yield opened


def listed(ctx: Context) -> dict[str, EngineView]:
    """By recipe."""
    return {view.recipe: view for view in engines(ctx)}


def asked(blueprint: str, engine: str, nodes: int = 2) -> CreateLab:
    return lab_request(blueprint, nodes=nodes, engine=engine)


def test_what_there_is_of_each_engine(ctx: Context) -> None:
    """Protects the answer to "what can I have here", which asks nobody and builds nothing."""
    found = listed(ctx)
    plain = found["mariadb-10.11"]
    assert (plain.name, plain.server, plain.default) == ("mariadb:10.11", "MariaDB 10.11", False)
    assert plain.blueprints == ("pxc", "galera", "single", "replication", "galera-dr", "pxc-dr")
    assert plain.packages == ("Debian bookworm",)
    assert (plain.build, plain.why, plain.images, plain.templates) == ("yes", "", (), ())
    server = found["percona-server"]
    assert (server.name, server.default) == ("percona:8.4", True)
    assert server.blueprints == ("single", "replication", "group")
    assert server.build == "unreachable"
    assert "ps-84-lts" in server.why
    assert found["percona-xtradb-cluster-8.0"].blueprints == ("pxc", "pxc-dr")
    assert sum(view.default for view in found.values()) == 4
    assert ctx.store.images.all() == []


def test_what_was_built_is_listed(ctx: Context) -> None:
    up(ctx, asked("galera", "mariadb:10.11"))
    found = listed(ctx)
    assert [key.rpartition("-")[0] for key in found["mariadb-10.11"].images] == ["mariadb-10.11"]
    [template] = found["mariadb-10.11"].templates
    assert ctx.store.templates.get(template).image in found["mariadb-10.11"].images
    assert (found["mariadb"].images, found["mariadb"].templates) == ((), ())


def test_a_failure_of_the_last_day_is_reported(ctx: Context) -> None:
    """With the command that tries again; the other series is not affected."""
    recipe = load("mariadb-10.11")
    log = ctx.home.root / "log"
    with (
        pytest.raises(RecipeFailed),
        failures.recorded(ctx, recipe, failures.UNBUILT, log, RecipeFailed),
    ):
        raise RecipeFailed("a package is missing")
    found = listed(ctx)
    assert found["mariadb-10.11"].build == "failed"
    assert '"lab image build mariadb-10.11" tries again' in found["mariadb-10.11"].why
    assert found["mariadb"].build == "yes"
    image.build(ctx, "mariadb:10.11")
    assert listed(ctx)["mariadb-10.11"].build == "yes"


def test_a_lab_of_a_series(world: World, ctx: Context) -> None:
    """Its image and its template are its own, and a lab of the default series shares neither."""
    old = up(ctx, asked("galera", "mariadb:10.11"))
    new = up(ctx, asked("galera", "mariadb"))
    assert (old.engine, new.engine) == ("mariadb", "mariadb")
    images = [record_of(ctx, lab.name).image.rpartition("-")[0] for lab in (old, new)]
    assert images == ["mariadb-10.11", "mariadb"]
    assert record_of(ctx, old.name).template != record_of(ctx, new.name).template
    assert preview(ctx, asked("galera", "mariadb:10.11")).image == record_of(ctx, old.name).image
    assert not [note for note in world.notes if "using" in note]


def test_a_lab_that_exists_is_of_the_requested_series(ctx: Context) -> None:
    """Protects `--exist-ok` and pools from handing out another series."""
    record = record_of(ctx, up(ctx, asked("galera", "mariadb:10.11")).name)
    there = configuration.of_record(record)

    def differs(engine: str) -> list[str]:
        requested = configuration.requested(asked("galera", engine), profile=record.profile)
        return configuration.differs(there, requested)

    assert differs("mariadb:10.11") == []
    assert differs("") == []
    assert differs("mariadb") == ["recipe mariadb-10.11, requested mariadb"]


def test_an_image_of_a_series_can_be_required_by_its_key(ctx: Context) -> None:
    key = image.build(ctx, "mariadb:10.11").key
    made = up(ctx, lab_request("single", image=key))
    assert record_of(ctx, made.name).image == key
    with pytest.raises(InvalidSpec, match="cannot use the image"):
        up(ctx, lab_request("group", nodes=3, image=key))


def test_a_server_of_a_dialect_that_is_there(ctx: Context) -> None:
    """Percona Server in MySQL's place, without a line of code of a blueprint."""
    for blueprint, nodes in (("single", 1), ("group", 3)):
        made = up(ctx, asked(blueprint, "percona:8.0", nodes))
        record = record_of(ctx, made.name)
        assert made.engine == "percona-server"
        assert record.image.startswith("percona-server-8.0-")


def test_what_is_no_engine(ctx: Context) -> None:
    with pytest.raises(InvalidSpec, match=r"no series '10\.1' of mariadb for galera"):
        up(ctx, asked("galera", "mariadb:10.1"))
    with pytest.raises(NotFound, match="no image recipe"):
        image.build(ctx, "oracle")
    assert ctx.store.labs.all() == []


def test_datasets_name_an_engine_that_loads_them(ctx: Context) -> None:
    """Protects from a load that fails when the image is built."""
    assert check_engine(ctx.home, "", "mariadb:10.11").blueprint == "galera"
    assert check_engine(ctx.home, "", "mysql").blueprint == "replication"
    assert check_engine(ctx.home, "", "percona-server-8.0").blueprint == "replication"
    assert check_engine(ctx.home, "", "percona").blueprint == "pxc"
    assert check_engine(ctx.home, "group", "mysql").blueprint == "group"
    with pytest.raises(InvalidSpec, match="galera cannot run on the engine 'mysql'"):
        check_engine(ctx.home, "galera", "mysql")
    with pytest.raises(InvalidSpec, match="no series"):
        check_engine(ctx.home, "galera", "mariadb:1")
    with pytest.raises(InvalidSpec, match="no series"):
        check_engine(ctx.home, "", "mysql:1")
    with pytest.raises(InvalidSpec, match="there is no engine 'mysq'") as error:
        check_engine(ctx.home, "", "mysq")
    assert "mysql" in error.value.hint
