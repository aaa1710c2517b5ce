"""Runs a verb on real guests and kills itself, as `kill -9` would, at a given moment.

    crash_child.py VERB MOMENT [COUNT [VICTIM]]

VERB is one of ``up``, ``template``, ``image``, and ``snapshot``, ``rollback``, ``branch`` of a lab.
MOMENT is a method of storage or hypervisor, before the COUNT-th call of which it dies; or
``sql``, the first question to a server; or ``guest``, as soon as libvirt knows a first guest; or
the name of a step, such as ``bootstrap``, which dies at the first note that the step gives. VICTIM
is the id of a process that is killed in its place; the verb continues without that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from lab.config.settings import load
from lab.fake import images
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.images import image
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.up import up
from lab.lifecycle.snapshots import snapshot
from lab.progress import Event
from lab.requests.images import BuildTemplate
from lab.requests.labs import BranchLab, CreateLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.wait import Deadline, attempts
from tests.e2e.e2e_site import CRASH_NAME


def die(victim: int = 0) -> None:
    """The end, without any cleaning up, or that of ``victim``."""
    os.kill(victim or os.getpid(), signal.SIGKILL)
    while victim and Path(f"/proc/{victim}/exe").exists():
        time.sleep(0.01)


def no_sql(*_: Any, **__: Any) -> NoReturn:
    """In place of ``Context.sql_all``."""
    die()
    raise AssertionError


class DiesBefore:
    """Stands for ``real`` until ``method`` is called for the ``count``-th time."""

    def __init__(self, real: object, method: str, count: int, victim: int) -> None:
        self._real, self._method, self._left, self._victim = real, method, count, victim
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
                    die(self._victim)
            return found(*args, **named)

        return counted


def watch(ctx: Context) -> None:
    """Die as soon as there is a guest."""

    def look() -> None:
        for _ in attempts(Deadline.after(120), first=0.01, most=0.01):
            if ctx.hypervisor.guests():
                die()

    threading.Thread(target=look, daemon=True).start()


def main(verb: str, moment: str, count: int, victim: int) -> None:
    """Run and die."""

    def hear(event: Event) -> None:
        if event.step == moment and event.state == "note":
            die()

    with open_context(load(), hear) as opened:
        ctx = replace(
            opened,
            storage=DiesBefore(opened.storage, moment, count, victim),
            hypervisor=DiesBefore(opened.hypervisor, moment, count, victim),
            sql_all=no_sql if moment == "sql" else opened.sql_all,
        )
        if moment == "guest":
            watch(opened)
        name = os.environ[CRASH_NAME]
        if verb == "up":
            up(ctx, CreateLab(blueprint="pxc", name=name, nodes=3, engine="mariadb"))
        elif verb == "snapshot":
            snapshot.take(ctx, TakeSnapshot(lab=name, name="cut"))
        elif verb == "rollback":
            rollback(ctx, RollBack(lab=name, to="mine"), timeout=240.0)
        elif verb == "branch":
            branch(ctx, BranchLab(lab=name, name=f"{name}-b", at="mine"), timeout=240.0)
        elif verb == "template":
            # Of a size that no other test uses: there must be none yet.
            asked = BuildTemplate(blueprint="pxc", nodes=2, engine="mariadb", memory=700 << 20)
            template.build(ctx, asked)
        elif moment == "bootstrap":
            image.build(ctx, "mariadb", rebuild=False)
        else:
            # What is built does not matter for its publication: the storage is the real one.
            image.build(replace(ctx, build=images.build), "percona-xtradb-cluster")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[3:]]
    main(sys.argv[1], sys.argv[2], *numbers, *(1, 0)[len(numbers) :])
