"""Logs of guests' consoles go with their guests, the parts that virtlogd rotated too."""

from __future__ import annotations

from pathlib import Path

from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.up import up
from lab.names import GuestName
from lab.requests.host import CollectGarbage
from tests.support.lifecycle_world import World, named

DRY_RUN = CollectGarbage(dry_run=True)


def _rotated(ctx: Context, guest: str) -> list[Path]:
    """The log of a guest, as virtlogd leaves it once there was more than 2 MiB."""
    log = ctx.home.console_log(GuestName(guest))
    parts = [log, *(log.with_name(f"{log.name}.{number}") for number in range(3))]
    for part in parts:
        part.write_text("what it said\n")
    return parts


def test_all_of_a_removed_lab_s_logs_go(world: World) -> None:
    """Protects what guests wrote to their consoles from being kept forever."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        up(ctx, named("shop-n1"))
        parts, others = _rotated(ctx, "lab-shop-n1"), _rotated(ctx, "lab-shop-n1-n1")
        down(ctx, "shop")
        assert not any(part.exists() for part in parts)
        assert all(part.exists() for part in others)


def test_logs_of_guests_that_nobody_knows_are_found(world: World) -> None:
    """Protects from what earlier versions left."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        lost, kept = _rotated(ctx, "lab-gone-n1"), _rotated(ctx, "lab-shop-n1")
        assert not [line for line in gc(ctx, DRY_RUN).removed if "console log" in line]
        report = gc(ctx)
        assert [line for line in report.removed if "console log" in line] == [
            f"console log {path}" for path in sorted(lost)
        ]
        assert not any(part.exists() for part in lost)
        assert all(part.exists() for part in kept)
        assert not [line for line in gc(ctx).removed if "console log" in line]
