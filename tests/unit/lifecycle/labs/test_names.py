"""Whose a name is: of the command that was first, of another home, or of a lab once recorded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.errors import Conflict, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, labs
from lab.locks.named import lock
from lab.wait import Deadline, until
from tests.support.lifecycle_world import (
    REQUEST,
    World,
    at,
    codes,
    in_process,
    make_lab,
    make_template,
    named,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "home")
    with world.open() as ctx:
        make_template(ctx)
    return world


def give_me(ctx: Context) -> None:
    assert ensure(ctx, named("shop")).state == "ready"


def slowly(step: str) -> None:
    if step == "restore.begin":
        time.sleep(0.5)


def test_exist_ok_waits_for_who_makes_the_lab(world: World) -> None:
    """Two CI jobs that share a lab: who comes second gets it, not an error."""
    children = [in_process(world, give_me, slowly) for _ in range(3)]
    assert codes(children) == [0, 0, 0]
    with world.open() as ctx:
        assert [(view.name, view.state) for view in labs(ctx)] == [("shop", "ready")]


def test_exist_ok_waits_for_who_starts_the_lab(world: World) -> None:
    with world.open() as ctx:
        make_lab(ctx)
        power.stop(ctx, "shop")
    children = [in_process(world, give_me) for _ in range(3)]
    assert codes(children) == [0, 0, 0]


def test_exist_ok_makes_what_another_could_not(world: World) -> None:
    """The one that was waited for failed, and removed all that it had made."""

    def fail(step: str) -> None:
        if step == "restore.begin":
            time.sleep(0.5)
            raise NotReady("no")

    first = in_process(world, make_lab, fail)
    with world.open() as ctx:
        assert until(lambda: ctx.store.labs.find("shop"), Deadline.after(10)) is not None
        give_me(ctx)
    assert codes([first]) == [NotReady.exit_code]
    assert any("waiting for process" in note for note in world.notes)


def test_exist_ok_clears_what_a_killed_one_left(world: World) -> None:
    assert world.killed(give_me, 25)
    with world.open() as ctx:
        give_me(ctx)


def test_exist_ok_does_not_wait_for_ever(world: World) -> None:
    with world.open() as ctx, lock(ctx.home, "lab", "shop"), pytest.raises(NotReady) as late:
        ensure(ctx, named("shop"), timeout=0.3)
    assert "timed out" in str(late.value)


def test_exist_ok_without_a_name_means_one_lab(world: World) -> None:
    with world.open() as ctx:
        first = ensure(ctx, REQUEST)
        assert ensure(ctx, REQUEST).name == first.name == "galera"


def test_exist_ok_is_about_what_was_asked_for(world: World) -> None:
    """What was left open may be anything, what was said must be so."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        for same in (named("shop", engine="mariadb"), named("shop", engine="")):
            assert ensure(ctx, same).name == "shop"
        for other in (
            named("shop", nodes=3),
            named("shop", engine="percona"),
            named("shop", disk=20 << 30),
            named("shop", cpus=2),
        ):
            with pytest.raises(Conflict, match="different configuration"):
                ensure(ctx, other)


def other_home(world: World) -> World:
    """Another home on the same machine: it shares the hypervisor."""
    # Guests of the fake listen nowhere: nobody could see that their ports are taken.
    other = World(world.root.parent / "other", ports=(32000, 32999))
    other.home.create()
    (other.root / "fake-guests").symlink_to(world.root / "fake-guests")
    with other.open() as ctx:
        make_template(ctx)
    return other


def test_names_of_other_homes_are_avoided(world: World) -> None:
    """Guests of all homes share one name space."""
    with world.open() as ctx:
        up(ctx, REQUEST)
    other = other_home(world)
    with other.open() as ctx:
        assert up(ctx, REQUEST).name == "galera-2"
        assert ensure(ctx, REQUEST).name == "galera-2", "`make up` again"
        before = other.there()
        with pytest.raises(Conflict, match="not ours") as refused:
            up(ctx, named("galera"))
        assert "--name" in refused.value.hint
        assert other.there() == before, "nothing was made before it was seen"


def test_a_name_that_another_home_takes_meanwhile(world: World) -> None:
    """Between our look and our guests; another free name is not tried: it is a clear error."""
    other = other_home(world)

    def take() -> None:
        with other.open() as ctx:
            up(ctx, REQUEST)

    with world.open(at("clone.begin", take)) as ctx, pytest.raises(Conflict, match="exists"):
        up(ctx, REQUEST)
    with world.open() as ctx, other.open() as theirs:
        assert labs(ctx) == []
        assert [view.state for view in labs(theirs)] == ["ready"]


def test_names_of_unrecorded_labs_are_avoided(world: World) -> None:
    """After the loss of the state file, with and without guests that run."""
    with world.open() as ctx:
        up(ctx, REQUEST)
        up(ctx, named("shop"))
        for guest in ctx.hypervisor.guests():
            if "galera" in guest:
                ctx.hypervisor.stop(guest, force=True)
    for file in world.root.glob("state.db*"):
        file.unlink()
    world.ports = (33000, 33999)  # as in other_home
    world.notes.clear()
    with world.open() as ctx:
        assert up(ctx, REQUEST).name == "galera-2"
        # What the labs were made of is found again, too.
        assert sum("registered the image" in note for note in world.notes) == 1
        assert sum("registered the image" in note for note in world.notes) == 1
        assert not any("first use" in note for note in world.notes)
        for name in ("galera", "shop"):
            with pytest.raises(Conflict, match="is missing from the state database") as refused:
                up(ctx, named(name))
            assert f"lab down {name}" in refused.value.hint
            down(ctx, name)
            assert up(ctx, named(name)).state == "ready"
        assert lab(ctx, "galera-2").state == "ready"
