"""Runs a verb on real guests and kills itself, as `kill -9` would, at a given moment.

    crash_child.py VERB MOMENT [COUNT]

VERB is one of ``up``, ``template``, ``image``. MOMENT is a method of storage or hypervisor,
before the COUNT-th call of which it dies; or ``sql``, the first question to a server; or
``guest``, as soon as libvirt knows a first guest; or the name of a step, such as
``bootstrap``, which dies at the first note that the step gives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Any, NoReturn

from lab.config.settings import load
from lab.fake import images
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.images import image
from lab.lifecycle.up import up
from lab.progress import Event
from lab.wait import Deadline, attempts
from tests.e2e.e2e_site import CRASH_NAME, PXC_SPEC


def die() -> NoReturn:
    """The end, without any cleaning up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class DiesBefore:
    """Stands for ``real`` until ``method`` is called for the ``count``-th time."""

    def __init__(self, real: object, method: str, count: int) -> None:
        self._real, self._method, self._left = real, method, count
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if found is self._real:  # a driver is its own ``memory``
            return self
        if name != self._method:
            return found

        def counted(*args: Any, **named: Any) -> Any:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    die()
            return found(*args, **named)

        return counted


def watch(ctx: Context) -> None:
    """Die as soon as there is a guest."""

    def look() -> None:
        for _ in attempts(Deadline.after(120), first=0.01, most=0.01):
            if ctx.hypervisor.guests():
                die()

    threading.Thread(target=look, daemon=True).start()


def main(verb: str, moment: str, count: int) -> None:
    """Run and die."""

    def hear(event: Event) -> None:
        if event.step == moment and event.state == "note":
            die()

    with open_context(load(), hear) as opened:
        ctx = replace(
            opened,
            storage=DiesBefore(opened.storage, moment, count),
            hypervisor=DiesBefore(opened.hypervisor, moment, count),
            sql_all=(lambda *_, **__: die()) if moment == "sql" else opened.sql_all,
        )
        if moment == "guest":
            watch(opened)
        if verb == "up":
            up(ctx, replace(PXC_SPEC, name=os.environ[CRASH_NAME]))
        elif verb == "template":
            template.build(ctx, replace(PXC_SPEC, nodes=2))
        elif moment == "bootstrap":
            image.build(ctx, "mariadb", rebuild=False)
        else:
            # What is built does not matter for its publication: the storage is the real one.
            image.build(replace(ctx, build=images.build), "percona-xtradb-cluster")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
