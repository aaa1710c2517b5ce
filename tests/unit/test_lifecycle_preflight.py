"""What the host does not have is refused before anything is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lifecycle_world import SPEC, World

from lab.errors import HostUnfit
from lab.lifecycle import template
from lab.lifecycle.up import up
from lab.spec import GIB, NodeSize


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_host_without_memory_or_processors_refuses(world: World) -> None:
    """Before anything is made, for labs and templates alike, with figures."""
    for size, told in (
        (NodeSize(memory=4096 * GIB), "4T"),
        (NodeSize(cpus=64), "64 CPUs"),
        (NodeSize(disk=1 << 50), "2048T"),
    ):
        before = world.there()
        spec = replace(SPEC, size=size)
        with world.open() as ctx:
            for verb in (up, template.build):
                with pytest.raises(HostUnfit, match=told) as refused:
                    verb(ctx, spec)
                assert refused.value.hint
        assert world.there() == before
