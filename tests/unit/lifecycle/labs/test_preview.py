"""`lab up --dry-run`: it says what `lab up` then does, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.errors import Conflict, InvalidSpec
from lab.hypervisor import Capabilities
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.up import up
from tests.support.lifecycle_world import World, lab_request, named


def test_a_first_use_is_foretold(world: World) -> None:
    with world.open() as ctx:
        before = world.there()
        found = preview(ctx, named("shop"))
        assert (found.image_exists, found.template, found.start) == (False, "", "warm")
        assert world.there() == before
        view = up(ctx, named("shop"))
        assert (found.name, found.image, found.profile) == (view.name, view.image, view.profile)


def test_what_is_there_is_found(world: World) -> None:
    with world.open() as ctx:
        view = up(ctx, named("shop"))
        found = preview(ctx, named(""))
        assert found.name == "galera"
        assert (found.image_exists, found.template) == (True, view.template)
        assert preview(ctx, named("", nodes=3)).template == ""


def test_a_template_that_would_be_removed_is_named(world: World) -> None:
    """Protects the template of another kind of lab, which takes minutes: before, not after."""
    with world.open() as ctx:
        kept, old = (up(ctx, named(name, nodes=n)).template for name, n in (("a", 2), ("b", 3)))
        down(ctx, "b")
        few = replace(ctx, settings=replace(ctx.settings, max_templates=2))
        assert preview(few, named("", nodes=3)).displaces == (), "it is there"
        assert preview(few, named("", nodes=4)).displaces == (old,)
        assert preview(few, named("", nodes=4, cold=True)).displaces == ()
        assert preview(ctx, named("", nodes=4)).displaces == ()
        up(few, named("c", nodes=4))
        assert ctx.store.templates.find(str(old)) is None
        assert ctx.store.templates.find(str(kept)) is not None


def test_cold_says_why(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        asked = preview(ctx, named("", cold=True))
        assert (asked.start, asked.why_cold, asked.template) == ("cold", "requested", None)
    world.capabilities = Capabilities("fake", "fake", why_cold="it is cold")
    with world.open() as ctx:
        found = preview(ctx, named(""))
        assert (found.start, found.why_cold) == ("cold", "it is cold")


def test_it_fails_as_up_would(world: World) -> None:
    with world.open() as ctx:
        up(ctx, named("shop"))
        with pytest.raises(Conflict, match="exists already"):
            preview(ctx, named("shop"))
        with pytest.raises(InvalidSpec):
            preview(ctx, lab_request("pcx"))
