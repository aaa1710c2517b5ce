"""A context whose servers are slow, silent or counted: a hook ahead of each question to them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lab.config.settings import Settings
from lab.errors import NotReady
from lab.lifecycle.core.context import Context, open_context
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


@dataclass
class Servers:
    """The fakes' servers: questions are counted, and those at ``silent`` ports take all time."""

    late: float
    """Seconds for which a server is waited for that does not answer."""
    asked: Counter[int] = field(default_factory=Counter)
    silent: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    """Once it is set, the silent ones refuse at once."""

    @contextmanager
    def opener(self, settings: Settings) -> Iterator[Context]:
        """A context in which servers are waited for that long."""
        with open_context(replace(settings, answer_timeout=self.late)) as ctx:
            yield asking(ctx, self._before)

    def _before(self, port: int, timeout: float) -> None:
        self.asked[port] += 1
        if port in self.silent:
            self.over.wait(timeout)
            raise NotReady(f"no SQL at {port}", details=["no answer"])

    def silence(self, lab: dict[str, list[dict[str, int]]]) -> None:
        """The servers of a lab, as the API shows it, answer no more."""
        self.silent.update(node["sql_port"] for node in lab["nodes"])
