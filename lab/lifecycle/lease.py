"""Leases: how long a lab may live."""

from __future__ import annotations

import time

from lab.lifecycle.core.context import Context
from lab.lifecycle.core.views import LabView
from lab.lifecycle.nodes.inspect import lab, record_of


def extend(ctx: Context, name: str, ttl: float | None) -> LabView:
    """Let the lab live ``ttl`` seconds from now, or without end if None; raises NotFound."""
    record_of(ctx, name)
    ctx.store.labs.update(name, expires_at=None if ttl is None else time.time() + ttl)
    return lab(ctx, name)
