"""All or nothing: whatever fails, and whenever somebody presses Ctrl-C, nothing is left.

Unlike after a kill, no ``lab gc`` is needed: the command that fails undoes what it made.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.config.profile import Layout
from lab.errors import CommandFailed, Conflict, HostUnfit, LabError, NotReady
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import Recipe
from lab.lifecycle.images import image
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.locks.named import held
from lab.progress import Progress
from tests.support.lifecycle_world import (
    Counter,
    Verb,
    World,
    at,
    make_cold,
    make_image,
    make_lab,
    make_template,
    named,
    nothing,
    raising,
    remove_new,
)

FULL = HostUnfit("no space is left", hint="free some")


def sweep(world: World, before: Verb, verb: Verb, error: BaseException) -> int:
    """Let ``verb`` fail at each of its steps; how often it did fail."""
    with world.open() as ctx:
        before(ctx)
    baseline = world.there()
    failed = step = 0
    while True:
        hook = Counter(step, raising(error))
        done = False
        with world.open(hook) as ctx, suppress(LabError, KeyboardInterrupt):
            verb(ctx)
            done = True
        with world.open() as ctx:
            # A poll that fails once is tried again: then the verb continued to its end. An
            # image or template that was finished on the way to a failed lab may stay.
            logs = remove_new(ctx, baseline, labs=done)
        assert world.there() - logs == baseline - logs, f"failed at step {step}, {hook.done}"
        if not hook.done:
            return failed
        failed += not done
        step += 1


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["disk full", "Ctrl-C"])
@pytest.mark.parametrize(
    ("before", "verb", "steps"),
    [
        (make_template, make_lab, 30),
        pytest.param(make_image, make_cold, 25, marks=pytest.mark.rare),
        pytest.param(make_image, make_template, 35, marks=pytest.mark.rare),
        (nothing, make_image, 8),
    ],
    ids=["up warm", "up cold", "template", "image"],
)
def test_a_failing_step_undoes_all(
    world: World, before: Verb, verb: Verb, steps: int, error: BaseException
) -> None:
    assert sweep(world, before, verb, error) >= steps


def test_a_refused_statement_names_the_node(world: World) -> None:
    """What makes a clone itself must not fail silently: it would share its secrets."""
    with world.open() as ctx:
        make_template(ctx)
    refused = CommandFailed(["personalise"], 1, stderr="sql: no", where="lab-shop-n1")
    hook = _At("hypervisor.personalise", raising(refused))
    with world.open(hook) as ctx, pytest.raises(CommandFailed, match="lab-shop-n1"):
        make_lab(ctx)


def test_slow_guests_have_the_time_that_the_user_gives(world: World) -> None:
    """Protects slow hosts: personalising a guest in a guest takes minutes."""
    with world.open() as ctx:
        make_template(ctx)
    with replace(world, own_seconds=500.0).open() as ctx:
        with pytest.raises(NotReady, match="does not answer"):
            up(ctx, named("shop"), timeout=400.0)
        assert up(ctx, named("shop"), timeout=600.0).state == "ready"


def test_keep_failed_keeps_the_guests_and_the_record(world: World) -> None:
    with world.open() as ctx:
        make_template(ctx)
    hook = _At("hypervisor.personalise", raising(FULL))
    with world.open(hook) as ctx:
        with pytest.raises(HostUnfit):
            up(ctx, named("shop", keep_failed=True))
        view = lab(ctx, "shop")
        assert view.state == "failed"
        assert [node.state for node in view.nodes] == ["running", "running"]
        with pytest.raises(Conflict, match="exists"):
            up(ctx, named("shop"))
        down(ctx, "shop")
        assert ctx.hypervisor.guests() == {}


def test_a_disk_that_is_full_for_good_leaves_nothing(tmp_path: Path) -> None:
    """The undo needs no space: it works where nothing else does."""
    world = World(tmp_path)
    with world.open() as ctx:
        make_template(ctx)
    baseline = world.there()
    world.capacity = 0
    with world.open() as ctx, pytest.raises(HostUnfit, match="of disk"):
        make_lab(ctx)
    assert world.there() == baseline


@pytest.mark.parametrize(
    ("before", "make", "step", "path"),
    [
        (make_image, make_cold, "boot.begin", "labs/shop/n1.seed"),
        (make_image, make_template, "capture.end", "templates/*/manifest.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_told(
    world: World, before: Verb, make: Verb, step: str, path: str
) -> None:
    """As on a full disk: what the system says, with a hint, and nothing left."""
    with world.open() as ctx:
        before(ctx)
    baseline = world.there()

    def obstruct() -> None:
        directory, name = path.rsplit("/", 1)
        for place in world.root.glob(directory):
            (place / name).mkdir()

    with world.open(at(step, obstruct)) as ctx, pytest.raises(HostUnfit) as failure:
        make(ctx)
    assert "cannot be written: Is a directory" in str(failure.value)
    assert failure.value.hint
    assert world.there() == baseline


def test_a_failed_lab_without_nodes_is_not_started(world: World) -> None:
    """Protects from waiting for nothing, and from an error about an image without a name."""
    hook = at("image.begin", raising(FULL))
    with world.open(hook) as ctx:
        with pytest.raises(HostUnfit):
            up(ctx, named("shop", keep_failed=True))
        for verb in (power.stop, lambda c, n: start(c, n, timeout=1)):
            with pytest.raises(Conflict, match="before it had nodes") as refused:
                verb(ctx, "shop")
            assert "lab down shop" in refused.value.hint
        down(ctx, "shop")


def test_the_first_error_is_told_though_the_undo_fails_too(world: World) -> None:
    """Protects who must find the cause: the second failure is a detail of the first."""
    with world.open() as ctx:
        make_template(ctx)

    def hook(step: str) -> None:
        if step == "hypervisor.personalise":
            raise CommandFailed(["personalise"], 1, stderr="the cause")
        if step == "storage.destroy":
            raise HostUnfit("the storage is gone too")

    with world.open(hook) as ctx, pytest.raises(CommandFailed) as failure:
        make_lab(ctx)
    assert any("the storage is gone too" in line for line in failure.value.details)
    assert any("the cause" in line for line in failure.value.details)
    with world.open() as ctx:
        assert lab(ctx, "shop").state == "removing", "what could not be undone stays recorded"
        down(ctx, "shop")


@pytest.mark.skipif(os.geteuid() != 0, reason="users' files are removed in a namespace, by rm")
def test_the_error_of_a_build_is_reported_though_its_files_cannot_be_removed(world: World) -> None:
    """Protects diagnosis: a host that cannot build cannot clean up either."""

    def build(
        recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
    ) -> BuiltImage:
        del recipe, layout, progress, log
        out.rmdir()
        out.write_text("no directory: it cannot be removed as one")
        raise HostUnfit("newuidmap is not installed", hint="install the package uidmap")

    with world.open() as ctx:
        with pytest.raises(HostUnfit, match="newuidmap is not installed") as failure:
            image.build(replace(ctx, build=build), "mariadb")
        assert failure.value.hint == "install the package uidmap"
        assert any("not undone: build files" in line for line in failure.value.details)
        assert image.images(ctx) == []


def test_the_error_of_a_template_is_reported_though_it_cannot_be_removed(world: World) -> None:
    """Protects diagnosis where storage fails as well."""
    with world.open() as ctx:
        make_image(ctx)

    def hook(step: str) -> None:
        if step == "capture.begin":
            raise CommandFailed(["capture"], 1, stderr="the cause")
        if step == "storage.destroy":
            raise HostUnfit("the storage is gone too")

    with world.open(hook) as ctx, pytest.raises(CommandFailed) as failure:
        make_template(ctx)
    assert failure.value.details[0] == "the cause"
    assert any("the storage is gone too" in line for line in failure.value.details)


def test_a_node_that_dies_while_forming_ends_the_wait(world: World) -> None:
    """Nobody waits ten minutes for a cluster that has lost a node in the first second."""
    world.boot_seconds = 3600.0
    with world.open() as ctx:
        make_image(ctx)

    def die(step: str) -> None:
        if step == "form.begin":
            with world.open() as other:
                other.hypervisor.stop(sorted(other.hypervisor.guests())[0], force=True)

    began = time.monotonic()
    with world.open(die) as ctx, pytest.raises(NotReady, match="n1 stopped before"):
        make_cold(ctx)
    assert time.monotonic() - began < world.settings.ready_timeout / 2


def test_ctrl_c_while_forming_is_prompt(world: World) -> None:
    """A real signal, while threads wait for nodes that will not be ready for an hour."""
    world.boot_seconds = 3600.0
    with world.open() as ctx:
        make_image(ctx)
    baseline = world.there()

    def interrupt(step: str) -> None:
        if step == "form.begin":
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    began = time.monotonic()
    with world.open(interrupt) as ctx, pytest.raises(KeyboardInterrupt):
        make_cold(ctx)
    assert time.monotonic() - began < world.settings.ready_timeout / 2
    assert world.there() == baseline


def test_time_is_up(world: World) -> None:
    """The failure names the node and the requirement, and shows the console's last lines."""
    world.boot_seconds = 3600.0
    with world.open() as ctx:
        make_image(ctx)
        with pytest.raises(NotReady, match="n1 is not ready: required: SQL answers") as failure:
            up(ctx, named("shop", cold=True), timeout=0.5)
        assert any("boots" in line for line in failure.value.details)
        assert not held(ctx.home, "lab", "shop")


class _At:
    """Does ``act`` whenever ``step`` is about to happen."""

    def __init__(self, step: str, act: Callable[[], object]) -> None:
        self._step, self._act = step, act

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._act()
