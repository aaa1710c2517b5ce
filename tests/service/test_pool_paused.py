"""Labs of a warm pool are paused while they wait."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from lab.lifecycle.nodes.inspect import labs as look_at_labs
from lab.names import GuestName
from tests.service.test_pool import claim
from tests.support.pool_world import members, pool, until, until_full
from tests.support.serve_world import site


def test_members_are_paused_and_resumed_with_the_right_time(tmp_path: Path) -> None:
    """Protects the processors while labs wait, and who claims one: it runs, and all at once."""
    with site(tmp_path, pool=(replace(pool(3), running=1),)) as here:
        until_full(here, 3)

        def states() -> list[set[str]]:
            with here.service.core.contexts.use() as ctx:
                guests = ctx.hypervisor.guests()
                there = [[guests[GuestName(n.guest)].state for n in ctx.store.nodes.of(lab.name)]
                         for lab in members(here)]  # fmt: skip
            return sorted((set(one) for one in there), key=str)

        until(lambda: states() == [{"paused"}, {"paused"}, {"running"}], "two are paused")
        with here.service.core.contexts.use() as ctx:
            assert {view.state for view in look_at_labs(ctx)} == {"pooled"}
        for _ in range(3):
            lab = claim(here)
            assert lab["state"] == "ready"
            with here.service.core.contexts.use() as ctx:
                guests = ctx.hypervisor.guests()
                for node in lab["nodes"]:
                    assert guests[node["guest"]].state == "running"
                    clock = ctx.hypervisor.channel(node["guest"]).clock(timeout=5.0)
                    assert abs(clock - time.time()) < 2
