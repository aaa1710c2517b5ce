"""Leases: how long a lab may live."""

from __future__ import annotations

import time

from lab.lifecycle.context import Context
from lab.lifecycle.look import lab, record_of
from lab.lifecycle.views import LabView


def extend(ctx: Context, name: str, ttl: float | None) -> LabView:
    """Let the lab live ``ttl`` seconds from now, or without end if None; raises NotFound."""
    record_of(ctx, name)
    ctx.store.labs.update(name, expires_at=None if ttl is None else time.time() + ttl)
    return lab(ctx, name)
