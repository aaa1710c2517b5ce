"""Run by ``test_cli_signals``: the real program over fake guests, in a home of its own.

``lab up`` fails when the lab is to become ready, and its removal takes two seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.cli import main
from lab.cli.backend.local import Lifecycle, LocalSession
from lab.cli.backend.session import Session
from lab.config.settings import Settings
from lab.errors import NotReady
from lab.progress import Listener, Progress
from tests.support.lifecycle_world import World, make_template

SECONDS = 2.0


class Failing(Lifecycle):
    """The lifecycle of ``world``; what it is about to do is written to the file ``log``."""

    def __init__(self, world: World, log: Path) -> None:
        self._world, self._log = world, log

    def settings(self, given: object = None) -> Settings:
        del given
        return self._world.settings

    @contextmanager
    def open(self, settings: Settings, listener: Listener) -> Iterator[Session]:
        with self._world.open(self._hook) as ctx:
            listen = ctx.progress.listener

            def both(event: object) -> None:
                listen(event)  # type: ignore[arg-type]
                listener(event)  # type: ignore[arg-type]

            yield LocalSession(replace(ctx, settings=settings, progress=Progress(both)))

    def _hook(self, step: str) -> None:
        if step == "personalise.begin":
            raise NotReady("a node is not ready")
        if step == "undo.begin":
            self._log.write_text("undoing")
            time.sleep(SECONDS)


if __name__ == "__main__":
    root, log = map(Path, sys.argv[1:3])
    world = World(root)
    with world.open() as opened:
        make_template(opened)
    sys.exit(main(["up", "galera", "--nodes", "2", "--memory", "384M", "--name", "shop"],
                  lifecycle=Failing(world, log)))  # fmt: skip
