"""Where no engine is required, one that cannot be used is replaced by the next one.

Protects `make up` on a machine with internet access from the repository of others. The failure is
shown in full and recorded for a day; whoever requires the engine gets the failure.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.errors import CommandFailed, HostUnfit, Interrupted, NotReady, OutOfReach, RecipeFailed
from lab.fake import images
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe, load
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.doctor import doctor
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import failures, image
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.up import up
from lab.lifecycle.service import pool
from lab.options import OptionFile
from lab.requests.labs import CreateLab
from tests.support.lifecycle_world import (
    World,
    at,
    codes,
    in_process,
    lab_request,
    raising,
    remove_new,
)

PERCONA = "percona-xtradb-cluster"


def pxc(name: str, *, nodes: int = 2, **values: Any) -> CreateLab:
    return lab_request("pxc", name, nodes=nodes, **values)


REQUEST = pxc("shop")
USUAL = CreateLab(blueprint="pxc", name="shop", nodes=2)
BROKEN = CommandFailed(
    ["mmdebstrap"], 100, stderr="E: Unable to correct problems\nqpress: not installable",
    hint="the whole build log is there",
)  # fmt: skip
UNREACHABLE = RecipeFailed("cannot reach the key", hint="try again")
LOG = rf"/logs/images/{PERCONA}-\w+\.log"
LINE = re.compile(
    rf"{PERCONA} could not be built on \d{{4}}-\d\d-\d\d \d\d:\d\d \(log: .*{LOG}\)"
    rf': using MariaDB with Galera; "lab image build {PERCONA}" tries again'
)


@dataclass
class Builder:
    """The fake builder; ``failing``: what recipes fail with. ``built``: a line for each try."""

    built: Path
    failing: dict[str, BaseException] = field(default_factory=dict)
    slowly: float = 0.0

    def __call__(self, recipe: Recipe, out: Path, **how: Any) -> BuiltImage:
        with self.built.open("a") as file:
            file.write(f"{recipe.name}\n")
        if recipe.name in self.failing:
            with how["progress"].step("bootstrap", "installing"):
                time.sleep(self.slowly)
                raise self.failing[recipe.name]
        return images.build(recipe, out, **how)

    @property
    def tries(self) -> list[str]:
        return self.built.read_text().split() if self.built.exists() else []


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "built", {PERCONA: BROKEN})


@pytest.fixture
def world(tmp_path: Path, builder: Builder) -> World:
    """Where Percona's repository answers, and its image cannot be built."""
    found = World(tmp_path / "home", build=builder)
    found.home.create()
    repository = load(PERCONA).repository
    assert repository is not None
    known = json.dumps({repository.urls[0]: [time.time(), True]})
    (found.root / "reachable.json").write_text(known)
    return found


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as opened:
        yield opened


def test_the_next_engine_is_used(ctx: Context, builder: Builder) -> None:
    view = up(ctx, REQUEST)
    assert (view.state, view.engine) == ("ready", "mariadb")
    assert builder.tries == [PERCONA, "mariadb"]
    assert not [record for record in ctx.store.images.all() if record.recipe == PERCONA]
    assert not list(ctx.home.builds.iterdir())


def test_the_failure_is_shown_in_full_and_then_the_line(world: World, ctx: Context) -> None:
    up(ctx, REQUEST)
    shown = [note for note in world.notes if PERCONA in note or "qpress" in note or "E: " in note]
    assert shown[0] == (
        f"{PERCONA} could not be built, step bootstrap: mmdebstrap failed with status 100"
    )
    assert shown[1:3] == ["  E: Unable to correct problems", "  qpress: not installable"]
    assert "hint: the whole build log is there" in world.notes
    assert [note for note in world.notes if LINE.fullmatch(note)] == shown[3:]
    assert len(shown) == 4
    log = re.search(r"log: (.*?)\)", shown[3])
    assert log is not None
    assert "qpress: not installable" in Path(log[1]).read_text()


def test_it_is_not_tried_again_for_a_day(world: World, ctx: Context, builder: Builder) -> None:
    up(ctx, REQUEST)
    world.notes.clear()
    assert up(ctx, pxc("b")).engine == "mariadb"
    assert builder.tries == [PERCONA, "mariadb"]
    assert not [note for note in world.notes if PERCONA in note], "a warm start shows nothing"
    assert up(ctx, pxc("c", nodes=1)).engine == "mariadb"
    assert [note for note in world.notes if LINE.fullmatch(note)], "a template is made of it"


def outdated(ctx: Context, **changes: object) -> None:
    """Change what is recorded of Percona's failure."""
    path = ctx.home.root / "failures.json"
    [(recipe, (at_, value))] = json.loads(path.read_text()).items()
    at_ -= changes.pop("age", 0)
    path.write_text(json.dumps({recipe: [at_, {**value, **changes}]}))


@pytest.mark.parametrize(
    "change", [{"age": 90_000}, {"content": "another"}, {"unknown": 1}], ids=str
)
def test_it_is_tried_again(ctx: Context, builder: Builder, change: dict[str, object]) -> None:
    """After a day, or where the recipe is another now; a record that cannot be read is none."""
    up(ctx, REQUEST)
    outdated(ctx, **change)
    builder.failing.clear()
    assert up(ctx, pxc("b")).engine == "percona"
    assert failures.recent(ctx.home) == {}


@pytest.mark.parametrize("error", [BROKEN, UNREACHABLE], ids=["build", "repository"])
def test_a_required_engine_is_tried_and_its_failure_is_the_result(
    ctx: Context, builder: Builder, error: Exception
) -> None:
    builder.failing[PERCONA] = error
    up(ctx, REQUEST)
    for _ in range(2):
        with pytest.raises(type(error)):
            up(ctx, pxc("b", engine="percona"))
    assert builder.tries == [PERCONA, "mariadb", PERCONA, PERCONA]
    assert PERCONA in failures.recent(ctx.home)
    builder.failing.clear()
    assert up(ctx, pxc("b", engine="percona")).engine == "percona"
    assert failures.recent(ctx.home) == {}


def test_image_build_tries_again(ctx: Context, builder: Builder) -> None:
    up(ctx, REQUEST)
    before = failures.recent(ctx.home)[PERCONA].at
    with pytest.raises(CommandFailed):
        image.build(ctx, PERCONA)
    assert failures.recent(ctx.home)[PERCONA].at > before
    builder.failing.clear()
    image.build(ctx, PERCONA)
    assert failures.recent(ctx.home) == {}
    assert up(ctx, pxc("b")).engine == "percona"


@pytest.mark.parametrize(
    "error", [HostUnfit("the disk is full"), KeyboardInterrupt(), Interrupted("stopped")], ids=repr
)
def test_what_is_not_the_engines_fault_ends_it(
    world: World, ctx: Context, builder: Builder, error: BaseException
) -> None:
    """Another engine would fail as well, or the command was interrupted."""
    before = world.there()
    builder.failing[PERCONA] = error
    with pytest.raises(type(error)):
        up(ctx, REQUEST)
    assert builder.tries == [PERCONA]
    assert failures.recent(ctx.home) == {}
    assert {name for name in world.there() - before if "logs/" not in name} == set()


@pytest.mark.parametrize("error", [BROKEN, HostUnfit("cannot reach a Debian mirror")], ids=repr)
def test_if_no_engine_works_it_is_not_one_engines_fault(
    ctx: Context, builder: Builder, error: BaseException
) -> None:
    builder.failing["mariadb"] = error
    with pytest.raises(type(error)):
        up(ctx, REQUEST)
    assert builder.tries == [PERCONA, "mariadb"]
    assert failures.recent(ctx.home) == {}


def test_a_host_without_a_network_is_not_the_engines_fault(
    world: World, ctx: Context, builder: Builder
) -> None:
    """Protects the next day: only that the repository does not answer is remembered, for minutes.

    It did answer within the last hour, so a build was begun.
    """
    image.build(ctx, "mariadb")
    builder.failing[PERCONA] = OutOfReach("cannot fetch the key", hint="check the network")
    assert up(ctx, REQUEST).engine == "mariadb"
    assert up(ctx, pxc("b", nodes=1)).engine == "mariadb"
    assert builder.tries == ["mariadb", PERCONA]
    assert failures.recent(ctx.home) == {}
    assert "Percona's repository is out of reach: using MariaDB with Galera" in world.notes
    builder.failing.clear()
    path = ctx.home.root / "reachable.json"
    [(url, (at_, answer))] = json.loads(path.read_text()).items()
    assert (answer, time.time() - at_ < 60) == (False, True)
    path.write_text(json.dumps({url: [time.time(), True]}))
    assert up(ctx, pxc("c")).engine == "percona"


def test_an_interrupt_while_the_next_is_built_keeps_the_record(
    ctx: Context, builder: Builder
) -> None:
    """The next command does not spend those minutes again."""
    builder.failing["mariadb"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        up(ctx, REQUEST)
    del builder.failing["mariadb"]
    assert up(ctx, REQUEST).engine == "mariadb"
    assert builder.tries == [PERCONA, "mariadb", "mariadb"]


def test_an_image_that_is_there_is_used(ctx: Context, builder: Builder) -> None:
    """A build that failed is no matter once the image was imported, or for another profile."""
    builder.failing.clear()
    up(ctx, REQUEST)
    log = ctx.home.root / "log"
    with (
        suppress(CommandFailed),
        failures.recorded(ctx, load(PERCONA), failures.UNBUILT, log, CommandFailed),
    ):
        raise BROKEN
    assert up(ctx, pxc("b")).engine == "percona"


def test_templates_pools_and_previews_do_the_same(
    world: World, ctx: Context, builder: Builder
) -> None:
    template.build(ctx, REQUEST)
    [made] = ctx.store.templates.all()
    assert pool.keys(ctx, REQUEST).image == made.image
    world.notes.clear()
    assert preview(ctx, REQUEST).engine == "mariadb"
    assert not world.notes, "nothing is to be built"
    assert builder.tries == [PERCONA, "mariadb"]


def test_members_of_a_pool_stay_until_others_can_be_made(ctx: Context, builder: Builder) -> None:
    """Protects a full pool when the record of a failure expires: the engine may fail again."""
    up(ctx, REQUEST)
    member = ctx.store.labs.get("shop")

    def fits() -> bool:
        return pool.fits(ctx.settings, member, REQUEST, pool.keys(ctx, REQUEST))

    assert fits()
    outdated(ctx, age=90_000)
    assert preview(ctx, pxc("b")).engine == "percona"
    assert fits(), "there is no image of the other engine yet"
    builder.failing.clear()
    image.build(ctx, PERCONA)
    assert fits(), "nor a template"
    assert up(ctx, pxc("b")).engine == "percona"
    assert not fits()
    member = ctx.store.labs.get("b")
    assert fits()


def test_cold_starts_too(ctx: Context) -> None:
    assert up(ctx, pxc("shop", cold=True)).engine == "mariadb"


NOT_READY = NotReady("n1 is not ready: required: Synced; found: nothing", details=["[ERROR] x"])


def test_a_first_template_that_does_not_form(world: World, builder: Builder) -> None:
    builder.failing.clear()
    small = structs.replace(USUAL, memory=USUAL.memory // 2)
    with world.open(at("form.begin", raising(NOT_READY))) as ctx:
        with pytest.raises(NotReady):
            up(ctx, small)  # a server may need more memory: not the engine's fault
        assert failures.recent(ctx.home) == {}
    with world.open(at("form.begin", raising(NOT_READY))) as ctx:
        assert up(ctx, USUAL).engine == "mariadb"
        failure = failures.recent(ctx.home)[PERCONA]
        assert f"{PERCONA} could not form a cluster on " in str(failure)
        assert "[ERROR] x" in Path(failure.log).read_text()
        assert {r.recipe for r in ctx.store.images.all()} == {PERCONA, "mariadb"}
        assert len(ctx.store.templates.all()) == 1, "nothing is left of the template that failed"
    assert "  [ERROR] x" in world.notes
    assert [note for note in world.notes if "using MariaDB with Galera" in note]
    with world.open() as ctx:
        assert up(ctx, structs.replace(USUAL, name="b")).engine == "mariadb"
        image.build(ctx, PERCONA)
        assert up(ctx, structs.replace(USUAL, name="c")).engine == "percona"


def test_a_short_timeout_is_not_the_engines_fault(world: World, builder: Builder) -> None:
    """`--timeout 5s` would else have all labs of the next day made of the next engine."""
    builder.failing.clear()
    with world.open(at("form.begin", raising(NOT_READY))) as ctx:
        with pytest.raises(NotReady):
            up(ctx, REQUEST, timeout=ctx.settings.ready_timeout / 2)
        assert failures.recent(ctx.home) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"set": ("wsrep_on=OFF",)},
        {"my_cnf": (OptionFile("[mysqld]\nwsrep_on=OFF\n"),)},
        {"init": "SELECT SLEEP(9999)"},
    ],
)
def test_what_the_user_chose_is_not_the_engines_fault(
    world: World, builder: Builder, options: dict[str, Any]
) -> None:
    """An option that keeps nodes from being ready is not tried on every engine."""
    builder.failing.clear()
    with world.open(at("form.begin", raising(NOT_READY))) as ctx:
        with pytest.raises(NotReady):
            up(ctx, pxc("shop", **options))
        assert failures.recent(ctx.home) == {}


def test_an_image_that_has_formed_here_works(world: World, builder: Builder) -> None:
    """What fails then is another number of nodes, or a busy host: no reason for another engine."""
    builder.failing.clear()
    with world.open() as ctx:
        assert up(ctx, REQUEST).engine == "percona"
    with world.open(at("form.begin", raising(NOT_READY))) as ctx:
        with pytest.raises(NotReady):
            up(ctx, pxc("b", nodes=3))
        assert failures.recent(ctx.home) == {}


def test_a_storage_that_fails_is_not_the_engines_fault(world: World, builder: Builder) -> None:
    builder.failing.clear()
    failed = CommandFailed(["zfs", "clone"], 1, stderr="cannot open")
    with world.open(at("storage.clone", raising(failed))) as ctx:
        with pytest.raises(CommandFailed):
            up(ctx, REQUEST)
        assert failures.recent(ctx.home) == {}


def test_two_commands_try_it_once(world: World, builder: Builder) -> None:
    """The one that waited for the other's build does not repeat what failed."""
    builder.slowly = 1.0
    first = in_process(world, lambda ctx: up(ctx, REQUEST))
    while PERCONA not in builder.tries:
        time.sleep(0.02)
    second = in_process(world, lambda ctx: up(ctx, pxc("b")))
    assert codes([first, second]) == [0, 0]
    assert sorted(builder.tries) == ["mariadb", PERCONA]


@pytest.mark.rare
def test_a_kill_at_any_step_leaves_nothing(world: World) -> None:
    """The kill sweep, through the failure of one engine and the making of the next."""
    baseline, step, killed = world.there(), 0, 0
    while world.killed(lambda ctx: up(ctx, REQUEST), step):
        with world.open() as ctx:
            gc(ctx)
            for lab in ctx.store.labs.all():
                assert lab.state == "ready"
                down(ctx, lab.name)
            finished = remove_new(ctx, baseline)
        assert world.there() - finished == baseline, f"after a kill at step {step}"
        (world.root / "failures.json").unlink(missing_ok=True)
        for log in (world.root / "logs/images").iterdir():
            log.unlink()
        step, killed = step + 1, killed + 1
    assert killed > 0


def test_doctor_shows_it_with_what_helps(world: World, ctx: Context) -> None:
    up(ctx, REQUEST)
    [found] = [one for one in doctor(world.settings) if one.topic == PERCONA]
    assert found.level == "warn"
    assert LINE.match(f"{found.value}: using MariaDB with Galera; {found.advice.splitlines()[0]}")
    assert found.why == "step bootstrap: mmdebstrap failed with status 100"


def test_doctor_says_that_the_repository_is_out_of_reach(world: World, ctx: Context) -> None:
    """A warm start does not show it again; it is known here, without asking the network."""
    del ctx
    assert not [one for one in doctor(world.settings) if one.topic == PERCONA]
    memory = world.root / "reachable.json"
    memory.write_text(memory.read_text().replace("true", "false"))
    [found] = [one for one in doctor(world.settings) if one.topic == PERCONA]
    assert (found.level, found.value) == (
        "note",
        "Percona's repository is out of reach: `lab up pxc` uses MariaDB with Galera",
    )
