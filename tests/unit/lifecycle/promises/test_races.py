"""Two processes at once are normal: commands side by side neither break nor remove each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.errors import Busy, Conflict, LabError, NotFound
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.lease import change
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, labs
from lab.locks.named import lock
from lab.requests.host import CollectGarbage
from lab.requests.labs import ChangeLab
from lab.state.records import LabRecord
from lab.views.labs import LabView
from tests.support.lifecycle_world import (
    REQUEST,
    World,
    at,
    codes,
    in_process,
    make_image,
    make_lab,
    make_template,
    named,
)


def test_one_name_asked_for_twice_is_given_once(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
    children = [in_process(world, make_lab) for _ in range(2)]
    assert codes(children) == [0, Conflict.exit_code]
    with world.open() as ctx:
        assert lab(ctx, "shop").state == "ready"


def test_eight_at_once_without_names(world: World) -> None:
    """The template is made once while seven wait; all get names, ports and segments."""
    with world.open() as ctx:
        make_image(ctx)
    children = [in_process(world, lambda ctx: up(ctx, REQUEST)) for _ in range(8)]
    assert codes(children) == [0] * 8
    with world.open() as ctx:
        found = labs(ctx)
        assert [view.state for view in found] == ["ready"] * 8
        assert len({node.sql_port for view in found for node in view.nodes}) == 16
        assert len({record.segment for record in ctx.store.labs.all()}) == 8
        assert len(ctx.store.templates.all()) == 1
        assert len({view.password for view in found}) == 8


def test_a_name_that_another_command_is_taking_is_left_to_it(world: World) -> None:
    """Protects commands on a busy host: the other may take seconds from its lock to its row."""
    with world.open() as ctx:
        make_template(ctx)
        with lock(ctx.home, "lab", "galera"):
            assert up(ctx, REQUEST).name == "galera-2"


def test_an_image_is_built_once(world: World) -> None:
    children = [
        in_process(world, lambda ctx: image.ensure(ctx, image.spec_of(ctx, "mariadb")))
        for _ in range(4)
    ]
    assert codes(children) == [0] * 4
    with world.open() as ctx:
        assert [view.state for view in image.images(ctx)] == ["ready"]


def test_gc_beside_up_leaves_it_alone(world: World) -> None:
    """At each step of an ``up`` somebody runs ``gc``; the lab gets ready as if nobody did."""
    with world.open() as ctx:
        make_template(ctx)
    removed: list[str] = []

    def collect(_: str) -> None:
        if threading.current_thread() is threading.main_thread() and not removed:
            with world.open() as other:
                removed.extend(gc(other, CollectGarbage(orphans=True)).removed)

    seen: list[str] = []

    def hook(step: str) -> None:
        seen.append(step)
        # Within a transaction gc would wait for us.
        if step.endswith((".begin", ".end")) or step == "hypervisor.restore":
            collect(step)

    with world.open(hook) as ctx:
        assert up(ctx, named("shop")).state == "ready"
    assert removed == []
    assert "restore.end" in seen


def test_gc_does_not_remove_what_got_ready_while_it_looked(world: World) -> None:
    """Protects a lab that was in the making when ``gc`` read the record and is ready now."""
    with world.open() as ctx:
        make_template(ctx)
        ctx.store.labs.add(_creating())

    def finish() -> None:
        with world.open() as other:
            other.store.labs.update("shop", state="ready")

        _list_then(ctx, finish)
        assert [view.name for view in labs(ctx)] == ["shop"]


def _list_then(ctx: Context, act: Callable[[], object]) -> None:
    """Run gc, and ``act`` after it listed what there is to do, before it does it."""
    from lab.lifecycle.host.gc import perform, tasks

    found = list(tasks(ctx))
    assert [owner.name for owner, _ in found] == ["shop"]
    act()
    report = perform(ctx, found)
    assert report.removed == ()


def _creating() -> LabRecord:
    return LabRecord(
        "shop", "mariadb", "", "", "creating", "", "", "me", time.time(),
        blueprint="galera", node_count=2, memory=1, cpus=1, disk=0,
    )  # fmt: skip


def test_gc_respects_a_lease_that_was_just_extended(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        up(ctx, named("shop", ttl=60.0))
        ctx.store.labs.update("shop", expires_at=time.time() - 1)
        _list_then(ctx, lambda: change(ctx, ChangeLab(lab="shop", ttl=3600.0)))
        assert lab(ctx, "shop").state == "ready"


def test_a_lease_is_not_extended_while_the_lab_is_removed(world: World) -> None:
    """Protects whoever keeps a lab by heartbeats: an extended lease holds, or it is refused."""
    with world.open() as ctx:
        make_template(ctx)
        up(ctx, named("shop", ttl=60.0))
        ctx.store.labs.update("shop", expires_at=time.time() - 1)
    answers: list[str] = []

    def prolong(step: str) -> None:
        if threading.current_thread() is not threading.main_thread() or step.startswith("state."):
            return
        with world.open() as other:
            record = other.store.labs.find("shop")
            if record is None or record.state != "removing":
                return
            try:
                change(other, ChangeLab(lab="shop", ttl=3600.0))
            except LabError as error:
                answers.append(str(error))
            else:
                answers.append("extended")

    with world.open(prolong) as ctx:
        assert any("expired" in line for line in gc(ctx).removed)
        assert labs(ctx) == []
    assert set(answers) == {"the lab shop is being removed"}


def test_gc_removes_what_expired(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
        before = world.there()
        up(ctx, named("shop", ttl=60.0))
        up(ctx, named("kept"))
        ctx.store.labs.update("shop", expires_at=time.time() - 1)
        assert "lab:shop" in gc(ctx, CollectGarbage(dry_run=True)).removed[0]
        assert len(labs(ctx)) == 2, "a dry run removes nothing"
        assert any("expired" in line for line in gc(ctx).removed)
        assert [view.name for view in labs(ctx)] == ["kept"]
        down(ctx, "kept")
    assert world.there() == before


def test_down_beside_up_is_refused(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
    answers: list[type] = []

    def try_down() -> None:
        with world.open() as other:
            try:
                down(other, "shop")
            except LabError as error:
                answers.append(type(error))

    with world.open(at("restore.begin", try_down)) as ctx:
        assert up(ctx, named("shop")).state == "ready"
    assert answers == [Busy]


@pytest.mark.parametrize("step", ["clone.begin", "storage.clone", "hypervisor.restore"])
def test_a_template_in_use_is_not_removed(world: World, step: str) -> None:
    """Neither by ``rm`` nor by ``gc``, at any moment between its choice and the clones."""
    with world.open() as ctx:
        make_template(ctx)
        key = template.templates(ctx)[0].key
    answers: list[type] = []

    def try_remove() -> None:
        with world.open() as other:
            gc(other)
            try:
                template.remove(other, key)
            except LabError as error:
                answers.append(type(error))

    with world.open(at(step, try_remove)) as ctx:
        up(ctx, named("shop"))
        assert answers == [Busy]
        with pytest.raises(Conflict, match="shop"):
            template.remove(ctx, key)
        down(ctx, "shop")
        template.remove(ctx, key)
        assert template.templates(ctx) == []


@pytest.mark.parametrize("step", ["template.begin", "clone.begin", "boot.begin"])
def test_an_image_in_use_is_not_removed(world: World, step: str) -> None:
    """Not even before the lab or the template that will need it is recorded."""
    with world.open() as ctx:
        make_image(ctx)
    answers: list[type] = []

    def try_remove() -> None:
        with world.open() as other:
            try:
                image.remove(other, "mariadb")
            except LabError as error:
                answers.append(type(error))

    with world.open(at(step, try_remove)) as ctx:
        assert up(ctx, named("shop")).state == "ready"
    assert answers == [Busy]


def test_a_lost_image_disk_is_told(world: World) -> None:
    """Protects from a traceback: NotFound, not StopIteration."""
    with world.open() as ctx:
        built = image.ensure(ctx, image.spec_of(ctx, "mariadb"))
        image.remove(ctx, "mariadb")
        with pytest.raises(NotFound):
            image.snapshots(ctx, built)


def test_a_half_made_lab_is_not_stopped_or_started(world: World) -> None:
    """Protects gc's right to remove it: its state must stay ``creating``."""
    with world.open() as ctx:
        ctx.store.labs.add(_creating())
        for verb in (power.stop, lambda c, n: start(c, n, timeout=1.0)):
            with pytest.raises(Conflict, match="creating"):
                verb(ctx, "shop")
        assert any("lab:shop" in line for line in gc(ctx).removed)


def _write(ctx: Context, view: LabView, statement: str) -> tuple[tuple[object, ...], ...]:
    from lab.lifecycle.labs.query import query

    return query(ctx, view.name, None, statement).rows


def test_labs_share_memory_and_threads_without_mixing(world: World) -> None:
    """Protects a service that makes labs in threads of one process."""
    with world.open() as ctx:
        make_template(ctx)
        with ThreadPoolExecutor(4) as pool:
            views = list(pool.map(lambda _: up(ctx, REQUEST), range(4)))
        assert len({view.name for view in views}) == 4
        assert {view.state for view in labs(ctx)} == {"ready"}


def test_who_waited_for_a_template_does_not_wait_for_its_users(world: World) -> None:
    """Protects the second of many: those who came later used the template all the time."""
    with world.open() as ctx:
        make_image(ctx)
        key = template.build(ctx, REQUEST).key
        ctx.store.templates.update(key, state="building")  # its maker is not done

        def work() -> str:
            with world.open() as other:
                return up(other, REQUEST).state

        with ThreadPoolExecutor(1) as pool, lock(ctx.home, "template", key, shared=True):
            ready = pool.submit(work)
            time.sleep(0.3)
            ctx.store.templates.update(key, state="ready")
            assert ready.result(30) == "ready"
        assert len(ctx.store.templates.all()) == 1
