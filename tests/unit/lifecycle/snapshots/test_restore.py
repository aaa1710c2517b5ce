"""A restore that fails costs time, never the lab: another template is formed, then disks boot.

It was found on hosts with KVM, where a new kernel or microcode may refuse what was captured.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.errors import LabError, NotReady, PortTaken, RestoreFailed
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.names import template_ref
from lab.requests.labs import RollBack
from tests.support.lifecycle_world import (
    Counter,
    World,
    at,
    codes,
    in_process,
    make_template,
    named,
    raising,
    unobserved,
)

QEMU = "qemu-system-x86_64: error: failed to set MSR 0x48f to 0x7fffff00036dfb"
REFUSED = RestoreFailed("lab-shop-n1 could not be restored", details=["QEMU quit", QEMU])


def always(step: str) -> None:
    """A hook: this host restores nothing."""
    if step == "hypervisor.restore":
        raise REFUSED


def spoil(ctx: Context, key: str) -> None:
    """Make what a template's RAM was captured with that of another machine.

    The manifest says that all files are as they were captured, as it would of a template that
    was captured before an update of the host's kernel.
    """
    path = ctx.home.device_state(template_ref(key), "n2")
    _, text, _ = path.read_text().split("\n")
    content = json.loads(text) | {"fingerprint": "another"}
    from lab.fake.memory import write_state

    path.chmod(0o600)  # else only root may write
    write_state(path, content)
    manifest = manifests.read(ctx.home.manifest(template_ref(key)))
    nodes = tuple(
        replace(node, state=manifests.facts(path)) if node.name == "n2" else node
        for node in manifest.nodes
    )
    manifests.write(ctx.home.manifest(template_ref(key)), replace(manifest, nodes=nodes))


def formed(ctx: Context) -> str:
    """A template whose RAM cannot be restored; its key."""
    make_template(ctx)
    (found,) = template.templates(ctx)
    spoil(ctx, found.key)
    return found.key


def states(ctx: Context) -> dict[str, str]:
    return {view.key: view.state for view in template.templates(ctx)}


def test_a_template_that_cannot_be_restored_is_formed_once_more(world: World) -> None:
    """One node of two fails: the lab is warm all the same, and each step is said in a line."""
    with world.open() as ctx:
        key = formed(ctx)
        view = up(ctx, named("shop"))
        assert (view.state, view.started, view.why_cold) == ("ready", "warm", "")
        assert [node.state for node in view.nodes] == ["ready", "ready"]
        assert query(ctx, "shop", "n2", "SELECT 1").rows
        # Nothing was cloned from the broken one, so the new one took its place.
        assert states(ctx) == {key: "ready"}
        assert up(ctx, named("other")).started == "warm"
    notes = [note for note in world.notes if "broken" in note]
    assert len(notes) == 2
    assert key in notes[0]
    assert "the device state is of another machine" in notes[0]
    assert notes[1] == "the previous template is broken: forming a cluster to clone from"


def test_the_first_restore_alone_fails(world: World) -> None:
    """Protects from leftovers of the first attempt: a node of it was restored."""
    with world.open() as ctx:
        make_template(ctx)
        before = world.there()
    with world.open(at("hypervisor.restore", raising(REFUSED))) as ctx:
        assert up(ctx, named("shop")).started == "warm"
        down(ctx, "shop")
        gc(ctx)
    assert world.there() == before


def test_where_no_ram_is_restored_the_lab_boots(world: World) -> None:
    """The second template's disks boot, and those of later labs: nothing is formed again."""
    with world.open() as ctx:
        make_template(ctx)
    with world.open(always) as ctx:
        view = up(ctx, named("shop"))
        assert (view.state, view.started) == ("ready", "cold")
        assert QEMU in view.why_cold
        assert "not restored" in view.why_cold
        assert query(ctx, "shop", "n1", "SELECT 1").rows
        (found,) = template.templates(ctx)
        assert (found.state, found.warm, found.key) == ("ready", False, view.template)
        assert QEMU in found.why
        notes = [note for note in world.notes if QEMU in note]
        assert len(notes) == 2
        assert f"lab template rm {found.key}" in notes[1]
        world.notes.clear()
        later = up(ctx, named("later"))
        assert (later.started, later.why_cold) == ("cold", view.why_cold)
        assert not any("form" in note for note in world.notes)
        planned = preview(ctx, named("next"))
        assert (planned.start, planned.why_cold) == ("cold", view.why_cold)
    with world.open() as ctx:
        for name in ("shop", "later"):
            assert power.stop(ctx, name).state == "stopped"
            assert start(ctx, name, timeout=10).state == "ready"
            down(ctx, name)
        # As the message said: the host may be able to restore RAM now.
        template.remove(ctx, found.key)
        assert up(ctx, named("new")).started == "warm"


def test_a_broken_template_stays_while_labs_are_clones_of_it(world: World) -> None:
    """``lab template ls`` shows it with the reason; ``gc`` removes it with its last lab."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        up(ctx, named("old"))
        spoil(ctx, found.key)
        new = up(ctx, named("shop"))
        assert new.started == "warm"
        assert states(ctx) == {found.key: "broken", new.template: "ready"}
        (broken,) = [view for view in template.templates(ctx) if view.state == "broken"]
        assert "the device state is of another machine" in broken.why
        gc(ctx)
        assert lab(ctx, "old").state == "ready"
        down(ctx, "old")
        assert any(found.key in line for line in gc(ctx).removed)
        assert states(ctx) == {new.template: "ready"}


def test_damage_is_a_reason_too(world: World) -> None:
    """Protects: whatever broke a template, ``lab template ls`` says it."""
    with world.open() as ctx:
        make_template(ctx)
        (found,) = template.templates(ctx)
        up(ctx, named("old"))
        ctx.home.device_state(template_ref(found.key), "n1").unlink()
        up(ctx, named("shop"))
        (broken,) = [view for view in template.templates(ctx) if view.state == "broken"]
        assert "n1.state is gone" in broken.why


@pytest.mark.parametrize("error", [PortTaken("taken"), NotReady("slow")])
def test_other_failures_break_no_template(world: World, error: LabError) -> None:
    """Protects templates: a port, a slow guest or a full disk say nothing of their RAM."""
    with world.open() as ctx:
        make_template(ctx)
        before = states(ctx)
    with world.open(at("hypervisor.restore", raising(error))) as ctx:
        with suppress(NotReady):
            up(ctx, named("shop"))
        assert states(ctx) == before
        assert not any("broken" in note for note in world.notes)


def test_going_back_boots_where_ram_is_not_restored(world: World) -> None:
    """Protects the lab: its own disks are as sound as before, so it is not lost."""
    with world.open() as ctx:
        up(ctx, named("shop"))
    hook = at("hypervisor.restore", raising(REFUSED))
    with world.open(hook) as ctx:
        before = lab(ctx, "shop")
        view = rollback(ctx, RollBack(lab="shop"), timeout=20.0)
        assert (view.state, view.started) == ("ready", "cold")
        assert QEMU in view.why_cold
        assert view.password == before.password
        assert unobserved(view) == unobserved(before)
        assert query(ctx, "shop", "n2", "SELECT 1").rows
        assert list(states(ctx).values()) == ["broken"]
        assert len([note for note in world.notes if QEMU in note and "boots" in note]) == 1
        assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).started == "cold", (
            "the template is broken"
        )


def test_going_back_warm_is_recorded(world: World) -> None:
    """``lab status`` shows whether the last start was warm, not the first."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        ctx.store.labs.update("shop", started="cold", why_cold="an earlier kernel")
        view = rollback(ctx, RollBack(lab="shop"), timeout=20.0)
        assert (view.started, view.why_cold) == ("warm", "")


@pytest.mark.parametrize(
    ("step", "times"),
    [("template.note", 1), ("template.note", 3), ("restore.begin", 2), ("start.begin", 1),
     ("ready.begin", 1)],
)  # fmt: skip
def test_interrupting_it_leaves_no_lab(world: World, step: str, times: int) -> None:
    """Ctrl-C after the first and the second refusal, and while the disks boot."""
    with world.open() as ctx:
        make_template(ctx)
    left = [times]

    def hook(now: str) -> None:
        if now == step:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        always(now)

    with world.open(hook) as ctx:
        with pytest.raises(KeyboardInterrupt):
            up(ctx, named("shop"))
        assert ctx.store.labs.all() == []
        assert ctx.hypervisor.guests() == {}
        assert not [v for v in ctx.storage.volumes() if v.name.owner.kind == "lab"]
        gc(ctx)
        assert set(states(ctx).values()) <= {"ready"}


@pytest.mark.rare
def test_interrupting_it_leaves_nothing(world: World) -> None:
    """Ctrl-C at each step of an ``up`` that fails to restore twice and boots.

    That is from the first restore on, and not while a template is formed: the rest is as for
    any ``up``, and is tested with those.
    """
    with world.open() as ctx:
        make_template(ctx)
    baseline = world.there()
    seen: list[str] = []
    while True:
        stop = Counter(len(seen), raising(KeyboardInterrupt()))
        forming = True
        done = False

        def hook(now: str, stop: Counter = stop) -> None:
            nonlocal forming
            if threading.current_thread() is threading.main_thread():
                forming = forming or now == "template.begin"
                forming = forming and now not in ("template.end", "restore.begin")
                if not forming:
                    stop(now)
            always(now)

        with world.open(hook) as ctx, suppress(KeyboardInterrupt):
            up(ctx, named("shop"))
            done = True
        with world.open() as ctx:
            if done:
                down(ctx, "shop")
            assert ctx.store.labs.all() == [], f"interrupted at {stop.done}"
            assert ctx.hypervisor.guests() == {}
            gc(ctx)
            for view in template.templates(ctx):
                template.remove(ctx, view.key)
            make_template(ctx)
        assert world.there() == baseline, f"interrupted at {stop.done}"
        if not stop.done:
            break
        seen.append(stop.done)
    assert seen.count("template.note") == 3
    assert seen.count("restore.begin") == 2
    assert seen.count("start.begin") == 1
    assert {"undo.begin", "ready.begin"} & set(seen) == {"ready.begin"}


def test_two_at_once_form_it_once(world: World) -> None:
    """Both meet the same broken template: one forms another, one waits and uses that."""
    with world.open() as ctx:
        key = formed(ctx)
    children = [in_process(world, partial(up, asked=named(name))) for name in ("a", "b")]
    assert codes(children) == [0, 0]
    with world.open() as ctx:
        assert {lab(ctx, name).started for name in ("a", "b")} == {"warm"}
        used = {lab(ctx, name).template for name in ("a", "b")}
        assert len(used) == 1
        gc(ctx)
        assert len(states(ctx)) == 1, f"{states(ctx)}, the broken one was {key}"


def test_a_job_forms_the_template_once_more(tmp_path: Path) -> None:
    """Protects clients of the service: a restore that fails is no failed job."""
    from tests.support.killed_service import hooked
    from tests.support.serve_world import site

    hook = at("hypervisor.restore", raising(REFUSED))
    with site(tmp_path / "home", hooked(tmp_path / "home", hook)) as here:
        made = here.make("shop")
        assert (made["state"], made["started"], made["why_cold"]) == ("ready", "warm", "")
        events = here.stream(f"/v1/jobs/{made['job']}/events")
        assert len([e for e in events if QEMU in e.get("text", "")]) == 1


def test_a_job_boots_where_no_ram_is_restored(tmp_path: Path) -> None:
    """Protects clients of the service: the lab is ready, and says why it was booted."""
    from tests.support.killed_service import hooked
    from tests.support.serve_world import site

    with site(tmp_path / "home", hooked(tmp_path / "home", always)) as here:
        made = here.make("shop")
        assert (made["state"], made["started"]) == ("ready", "cold")
        assert QEMU in made["why_cold"]
        (found,) = here.ask("GET", "/v1/templates").json()
        assert QEMU in found["why"]
        assert not found["warm"]
