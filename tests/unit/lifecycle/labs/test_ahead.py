"""Labs that are made ahead: what a command takes, what it does not, and what is left."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from lab import host
from lab.cli.backend.local import LocalSession
from lab.errors import Conflict, HostUnfit, Interrupted, InvalidSpec
from lab.host import Memory
from lab.hypervisor import memory_of
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import AHEAD, made_ahead
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, labs
from lab.lifecycle.perform import perform
from lab.lifecycle.service import ahead
from lab.locks.named import lock
from lab.names import GuestName
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    DeleteLab,
    SleepLab,
    StartLab,
    StopLab,
    WakeLab,
)
from lab.requests.snapshots import TakeSnapshot
from lab.units import MIB
from tests.support.lifecycle_world import (
    REQUEST,
    SIZE,
    World,
    at,
    codes,
    count,
    in_process,
    make_template,
    raising,
)


@pytest.fixture
def eager(world: World) -> World:
    """An installation in which one lab is made ahead, once a lab was made."""
    world.standby = 1
    return world


def make(ctx: Context) -> list[str]:
    return [view.name for view in ahead.make(ctx, timeout=20.0)]


def create(ctx: Context, asked: CreateLab = REQUEST) -> str:
    """As a command does it; the lab's name."""
    view = ahead.take(ctx, asked) or up(ctx, asked, timeout=20.0)
    assert view.state == "ready"
    ahead.want(ctx, asked)
    return view.name


def states(ctx: Context) -> dict[str, str]:
    return {view.name: view.state for view in labs(ctx)}


def test_a_lab_that_was_made_ahead_is_taken(eager: World) -> None:
    """With a lease of its own, and as empty as a new one; another follows."""
    with eager.open() as ctx:
        make_template(ctx)
        assert create(ctx) == "galera"
        (name,) = make(ctx)
        assert states(ctx) == {"galera": "ready", name: "pooled"}
        assert {g.state for n, g in ctx.hypervisor.guests().items() if name in n} == {"paused"}
        assert make(ctx) == [name], "as many as the setting says"
        began = time.time()
        view = ahead.take(ctx, structs.replace(REQUEST, ttl=60.0))
        assert 0.001 < (ctx.store.labs.get(name).ready_seconds or 0) < time.time() - began
        assert view is not None
        assert (view.name, view.state, view.owner, view.started) == (
            name, "ready", "tester", "warm",
        )  # fmt: skip
        assert view.expires_at == pytest.approx(time.time() + 60.0, abs=5)
        assert ahead.take(ctx, REQUEST) is None, "it is taken once"
        assert make(ctx) != [name]
        assert ctx.store.labs.get(create(ctx)).expires_at is None
        down(ctx, "galera")
        assert count_of(ctx, name) == 0


def count_of(ctx: Context, name: str) -> object:
    query(ctx, name, None, "CREATE TABLE t (id INT)")
    return count(ctx, name=name)


def test_what_is_asked_for_is_another_lab(eager: World) -> None:
    """Protects a request for exactly this: no lab is given that is nearly it."""
    others: tuple[dict[str, Any], ...] = (
        {"name": "shop"},
        {"nodes": 3},
        {"cold": True},
        {"profile": "durable"},
        {"options": {"set": ["max_connections=50"]}},
        {"image": "mariadb-0123456789abcdef"},
        {"blueprint": "single", "nodes": 1},
        {"memory": 2 * SIZE.memory},
    )
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        for other in others:
            assert ahead.take(ctx, structs.replace(REQUEST, **other)) is None, other
        published = replace(ctx, settings=replace(ctx.settings, publish="127.0.0.2"))
        assert ahead.take(published, REQUEST) is None
        assert [one.name for one in made_ahead(ctx)] == [name]


def test_a_name_that_may_differ(eager: World) -> None:
    """Protects `lab run` and pytest, whose labs have names that nobody chose."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        view = ahead.take(ctx, structs.replace(REQUEST, name="run-1", accept_pooled_name=True))
        assert view is not None
        assert view.name == name


def test_what_is_over_is_not_taken(eager: World) -> None:
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        ctx.store.labs.update(name, expires_at=time.time() - 1)
        assert ahead.take(ctx, REQUEST) is None
        assert make(ctx) != [name]
        (name,) = make(ctx)
        ctx.store.labs.update(name, expires_at=time.time() - 1)
        assert f"lab:{name}" in " ".join(gc(ctx).removed).replace("lab ", "lab:")
        assert list(states(ctx)) == ["galera"]


def test_one_that_does_not_answer_is_removed(eager: World) -> None:
    """Protects who would get it: the next command makes a lab."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        guest = lab(ctx, name).nodes[0].guest
        ctx.hypervisor.stop(GuestName(guest), force=True)
        assert ahead.take(ctx, REQUEST) is None
        assert list(states(ctx)) == ["galera"]
    assert [note for note in eager.notes if name in note]


def short(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    found = Memory(total=1 << 40, available=available)
    monkeypatch.setattr(host, "memory", lambda: found)


def test_memory_that_is_short_is_taken_from_them(
    eager: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab that then fits; not for a look at what would be made, nor for what is too large."""
    more, needed = structs.replace(REQUEST, name="more"), 2 * SIZE.memory
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        short(monkeypatch, needed - 1)
        with pytest.raises(HostUnfit):
            preview(ctx, more)
        short(monkeypatch, needed - 2 * 64 * MIB - 1)
        with pytest.raises(HostUnfit):
            up(ctx, more, timeout=20.0)
        assert name in states(ctx)
        left = iter([needed - 1] * 3)  # until it is gone
        found = lambda: Memory(total=1 << 40, available=next(left, needed))  # noqa: E731
        monkeypatch.setattr(host, "memory", found)
        up(ctx, more, timeout=20.0)
        assert set(states(ctx)) == {"galera", "more"}


def test_making_them_has_an_end_where_memory_is_short(
    eager: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager.standby = 2
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name, _) = make(ctx)
        down(ctx, name)
        short(monkeypatch, 2 * SIZE.memory - 1)
        with pytest.raises(HostUnfit):
            make(ctx)
        assert len(made_ahead(ctx)) == 1


def test_as_many_wait_as_the_setting_says(eager: World) -> None:
    """Of all kinds together; the last is wanted most. Those that do not run are replaced."""
    eager.standby = 2
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        first = make(ctx)
        assert len(first) == 2
        ahead.want(ctx, structs.replace(REQUEST, nodes=1))
        second = make(ctx)
        assert len(second) == 2
        assert not set(first) & set(second)
        for node in lab(ctx, second[0]).nodes:
            ctx.hypervisor.stop(GuestName(node.guest), force=True)
        third = make(ctx)
        assert set(third) & set(second) == {second[1]}
        assert len(third) == 2
        paused = [g.state for g in ctx.hypervisor.guests().values() if third[0] in g.name]
        assert paused == ["paused"]


def test_a_smaller_setting_removes_the_oldest(eager: World) -> None:
    eager.standby = 3
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        assert len(make(ctx)) == 3
        first = [one.name for one in made_ahead(ctx)]
    eager.standby = 1
    with eager.open() as ctx:
        assert make(ctx) == first[-1:]


def test_gc_leaves_one_that_is_made_just_now(eager: World) -> None:
    """Protects it in the moment before it is paused, from a service's sweeper as well."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        memory_of(ctx.hypervisor).resume([GuestName(n.guest) for n in lab(ctx, name).nodes])
        with lock(ctx.home, "state", "ahead"):
            gc(ctx)
        assert name in states(ctx)
        gc(ctx)  # nobody works on it: a killed command resumed it
        assert name not in states(ctx)


def test_nobody_uses_one_that_waits(eager: World) -> None:
    """Protects who gets it: it is as it was made."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
        session = LocalSession(ctx)
        for request in (
            StartLab(lab=name), StopLab(lab=name), WakeLab(lab=name), SleepLab(lab=name),
            TakeSnapshot(lab=name), ChangeLab(lab=name, ttl=60.0), BranchLab(lab=name),
        ):  # fmt: skip
            with pytest.raises(Conflict, match="nobody uses it yet"):
                perform(ctx, request)
        with pytest.raises(Conflict, match="nobody uses it yet"):
            session.everywhere(name, "SELECT 1", database="")
        assert session.names() == ["galera"], "none is meant where no name is given"
        assert session.names(waiting=True) == ["galera", name]
        assert perform(ctx, DeleteLab(lab=name))


def test_a_schedule_is_that_of_who_takes_it(eager: World) -> None:
    asked = structs.replace(REQUEST, snapshots="hourly:24")
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx, asked)
        (name,) = make(ctx)
        assert ctx.store.labs.get(name).snapshots == ""
        gc(ctx)
        view = ahead.take(ctx, asked)
        assert view is not None
        assert ctx.store.labs.get(name).snapshots == "hourly:24"


def test_what_another_version_wrote(eager: World) -> None:
    with eager.open() as ctx:
        make_template(ctx)
        for bad in (b"", b"[]", b"\xff", b'{"blueprint":"none"}', b'{"x":1}'):
            ctx.home.ahead.write_bytes(bad)
            assert make(ctx) == [], bad


def test_a_command_that_cannot_write_succeeds(eager: World) -> None:
    """Protects the caller of `lab up`: it is there, and `lab run` removes it."""
    with eager.open() as ctx:
        make_template(ctx)
        eager.home.ahead.mkdir()
        session = LocalSession(ctx)
        assert session.run(REQUEST).state == "ready"
        session.make_ahead(REQUEST)
    assert [note for note in eager.notes if note.startswith("no labs are made ahead")]


@pytest.mark.parametrize("step", ["hypervisor.resume", "state.commit"])
def test_an_interrupt_takes_none(eager: World, step: str) -> None:
    """Protects from a lab that nobody knows of, and from one that runs while it waits."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        (name,) = make(ctx)
    with eager.open(at(step, raising(KeyboardInterrupt()))) as ctx:
        with pytest.raises(KeyboardInterrupt):
            ahead.take(ctx, REQUEST)
        assert [lab.name for lab in ctx.store.labs.all()] == ["galera", name]
        assert ctx.store.labs.get(name).pool == AHEAD
        guests = ctx.hypervisor.guests().values()
        assert {one.state for one in guests if name in one.name} == {"paused"}


def test_an_interrupt_right_after_one_was_taken(eager: World) -> None:
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        make(ctx)
    with eager.open(at("claim.end", raising(KeyboardInterrupt()))) as ctx:
        with pytest.raises(KeyboardInterrupt):
            ahead.take(ctx, REQUEST)
        assert [lab.name for lab in ctx.store.labs.all()] == ["galera"]


def test_a_third_process_leaves_it_to_the_second(eager: World) -> None:
    """Protects the host from a process for each lab of a test suite."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
        with lock(ctx.home, "state", "ahead-next"):
            assert not ahead.want(ctx, REQUEST)
            assert make(ctx) == []
        assert make(ctx)


def test_no_more_are_made_after_all_were_removed(eager: World) -> None:
    """Protects `lab down --all` right after `lab up`: what is being made is undone."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)

        def make_slowly(own: Context) -> None:
            ahead.make(own, timeout=20.0)

        child = in_process(eager, make_slowly, at("hypervisor.start", lambda: time.sleep(1.0)))
        while not [one for one in ctx.store.labs.all() if one.pool == AHEAD]:
            time.sleep(0.01)
        assert ahead.drop(ctx, timeout=20.0) == []
        assert list(states(ctx)) == ["galera"]
        assert codes([child]) == [Interrupted("").exit_code]
        assert make(ctx) == []


def test_nothing_is_asked_for_without_the_setting(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        session = LocalSession(ctx)
        assert session.take(REQUEST) is None
        session.run(REQUEST)
        session.make_ahead(REQUEST)
        assert not world.home.ahead.exists()
        with pytest.raises(InvalidSpec, match="the setting standby is 0"):
            make(ctx)


@pytest.mark.rare
def test_a_kill_at_each_step_leaves_nothing(eager: World) -> None:
    """Protects the host: whatever a process was killed at, `lab gc` and the lease remove it."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
    before = eager.there()
    step, seen = 0, set()
    while name := eager.killed(lambda ctx: ahead.make(ctx, timeout=20.0), step):
        seen.add(name)
        with eager.open() as ctx:
            gc(ctx)
            for one in made_ahead(ctx):  # complete
                ctx.store.labs.update(one.name, expires_at=time.time() - 1)
            gc(ctx)
        assert eager.there() == before, f"after a kill at {name}, step {step}"
        step += 1
    assert "hypervisor.pause" in seen


@pytest.mark.rare
def test_a_kill_at_each_step_of_a_taking(eager: World) -> None:
    """It is somebody's and runs, or it waits and is paused, or it is gone."""
    with eager.open() as ctx:
        make_template(ctx)
        create(ctx)
    step, ends = 0, set()
    while True:
        with eager.open() as ctx:
            ahead.want(ctx, REQUEST)
            (name,) = make(ctx)
        killed = eager.killed(lambda ctx: ahead.take(ctx, REQUEST), step)
        with eager.open() as ctx:
            gc(ctx)
            record = ctx.store.labs.find(name)
            guests = [g.state for n, g in ctx.hypervisor.guests().items() if name in n]
            if record is None:
                end = "gone"
                assert guests == []
            else:
                end = "waits" if record.pool else "taken"
                assert set(guests) == {"paused" if record.pool else "running"}, (killed, step)
                down(ctx, name)
            ends.add(end)
        if not killed:
            break
        step += 1
    assert ends == {"waits", "gone", "taken"}
