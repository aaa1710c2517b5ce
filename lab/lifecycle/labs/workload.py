"""A program of the user's that uses a lab while the lab is changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field
from types import TracebackType

from lab import run
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.environment import environment
from lab.lifecycle.nodes.inspect import lab
from lab.texts import printable
from lab.values import dataclass
from lab.views.upgrades import WorkloadView

_LINES = 20
_WIDTH = 500


@dataclass
class Workload:
    """Runs ``argv`` in the block, with the variables of ``lab env``; nothing if it is empty.

    It is ended with the block. ``report``: how it ended, after the block.
    """

    ctx: Context
    name: str
    argv: Sequence[str]
    report: WorkloadView | None = None
    _password: str = field(default="", repr=False)
    _running: run.Beside | None = None

    def __enter__(self) -> Workload:
        if self.argv:
            found = lab(self.ctx, self.name)
            env, self._password = {**os.environ, **environment(found)}, found.password
            self._running = run.beside(self.argv, env=env, lines=_LINES)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._running is None:
            return
        found = self._running.end()
        lines = tuple(self._shown(line) for line in found.lines)
        self.report = WorkloadView(found.code, found.by_itself, found.seconds, lines)

    def _shown(self, line: str) -> str:
        """A line for the report, which others read, so without the password of the lab."""
        return printable(line.replace(self._password, "***")[:_WIDTH])
