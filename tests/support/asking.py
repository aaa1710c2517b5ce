"""A context whose servers are slow, silent or counted: a hook ahead of each question to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lab.lifecycle.core.context import Context
from lab.observe.account import Account
from lab.observe.ways import Rows


def asking(ctx: Context, before: Callable[[int, float], object]) -> Context:
    """``ctx``, where ``before`` is called with port and time limit first; it may wait, or raise."""

    def sql_all(
        account: Account, port: int, statements: Sequence[str], *, timeout: float, **how: Any
    ) -> list[Rows]:
        before(port, timeout)
        return ctx.sql_all(account, port, statements, timeout=timeout, **how)

    return replace(ctx, sql_all=sql_all)
