"""Ready means usable: what must hold before a lab is handed out, and the wait for it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab.blueprints import Blueprint
from lab.errors import HostUnfit, LabError, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.nodes.inspect import known_guests
from lab.lifecycle.nodes.nodes import Node
from lab.observe.ask import THROUGH_PORT, WORST, Ask, ask_node
from lab.observe.states import NodeState, Requirement
from lab.observe.target import size_of
from lab.wait import Deadline, attempts

WAIT_LONGER = "`--timeout` waits longer"
_LOG = ("/usr/bin/journalctl", "--no-pager", "-b", "-o", "cat", "-n", "500")
_LOG_SECONDS = 5.0
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
"""What terminals interpret: control sequences (ECMA-48) and titles."""
_PANIC = "Kernel panic - not syncing"
_OF_CRASH = ("BUG:", "Oops", "#PF:", "RIP:", _PANIC)
"""Lines of Linux that say why it crashed (arch/x86/mm/fault.c, kernel/panic.c)."""
_CRASH = 1 << 16
"""Bytes at the end of a console in which a crash is looked for."""
_LINE = 200
"""Characters of a line of it that are shown."""


def until_ready(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    answer: Ask,
    deadline: Deadline,
    *,
    pause: float,
    way: str = THROUGH_PORT,
) -> None:
    """Return once all requirements of all nodes are met.

    ``pause``: the shortest time between two looks at a node, in seconds; ``way``: what it
    means that there is an answer. Raises NotReady, naming node, requirement and the log lines
    that may tell why, when the deadline passes or, at once, when a guest ends; and HostUnfit when
    its kernel crashes.
    """
    missing = first_missing(ctx, nodes, blueprint, answer, deadline, pause=pause, way=way)
    if missing is not None:
        raise not_ready(ctx, nodes, blueprint, missing)


def first_missing(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    answer: Ask,
    deadline: Deadline,
    *,
    pause: float,
    way: str = THROUGH_PORT,
) -> Requirement | None:
    """A requirement that is not met when ``deadline`` passes; None once all are.

    It is of the node that is in the worst state: the others may only lack this one. A proxy has no
    state of its own. As ``until_ready`` otherwise.
    """
    over, size = threading.Event(), size_of(nodes)
    logs = {node.name: ctx.home.console_log(node.guest) for node in nodes}
    ends = {name: _size(log) for name, log in logs.items()}  # before it: earlier boots

    def worst_unmet(node: Node) -> tuple[bool, int, Requirement] | None:
        missing: tuple[Requirement, NodeState] | None = None
        for number in attempts(deadline, first=pause, most=max(0.25, pause)):
            if over.is_set():
                break
            ctx.progress.halt()
            if number % 8 == 7:
                if node.guest not in known_guests(ctx):
                    text = f"{node.name} stopped before it was ready"
                    raise NotReady(text, details=tail(logs[node.name]))
                if said := crash(logs[node.name], ends[node.name]):
                    # Not NotReady: that may be the engine's fault, and another one is used then.
                    raise HostUnfit(
                        f"the kernel of {node.name} crashed before the node was ready",
                        details=said,
                        hint="repeat the command; one that crashes again needs another QEMU, or"
                        " an image with another kernel",
                    )
            missing = ask_node(node, size, blueprint, answer, way).missing
            deadline.saw((node.name, missing))
            if missing is None:
                return None
        return missing and (node.is_proxy, WORST.index(missing[1]), missing[0])

    unmet = [found for found in each(worst_unmet, nodes, over=over.set) if found is not None]
    return min(unmet, key=lambda found: found[:2])[2] if unmet else None


def not_ready(
    ctx: Context, nodes: Sequence[Node], blueprint: Blueprint, missing: Requirement
) -> NotReady:
    """What to raise when a node of ``nodes`` did not meet ``missing`` in time."""
    (node,) = (node for node in nodes if node.name == missing.node)
    conditions = blueprint.requirements(node.role, size_of(nodes))
    hints = [one.hint for one in conditions if one.name == missing.name and one.hint]
    return NotReady(
        f"{node.name} is not ready: required: {missing.what}; found: {missing.found}",
        details=server_errors(ctx, node) or tail(ctx.home.console_log(node.guest)),
        hint=", ".join([*hints, WAIT_LONGER]),
    )


def server_errors(ctx: Context, node: Node) -> list[str]:
    """The last errors that the server of a node logged, if the node can be asked."""
    from lab.lifecycle.images.ready import engine_units

    with suppress(LabError):
        channel = ctx.hypervisor.channel(node.guest)
        if channel.ping(1.0):
            argv = [*_LOG, *engine_units(ctx, node.image)]
            log = channel.run(argv, timeout=_LOG_SECONDS).decode(errors="replace")
            return [line for line in log.splitlines() if "[ERROR]" in line][-5:]
    return []


def tail(log: Path, lines: int = 5) -> list[str]:
    """The last lines of a console log, without control characters; empty if unreadable."""
    return _lines(log, 8192)[-lines:]


def crash(log: Path, begin: int, lines: int = 8) -> list[str]:
    """The lines of a console log, from the byte ``begin`` on, that say why the kernel crashed.

    Empty if it did not, or the log is unreadable.
    """
    found = _lines(log, min(max(_size(log) - begin, 0), _CRASH))
    if not any(_PANIC in line for line in found):
        return []
    telling = [line for line in found if any(word in line for word in _OF_CRASH)]
    return [line[:_LINE] for line in telling if "---[ end" not in line][:lines]


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _lines(log: Path, most: int) -> list[str]:
    """The lines in the last ``most`` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(-min(most, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read(most).decode(errors="replace")
    except OSError:
        return []
    text = _ESCAPES.sub("", text)
    clean = "".join(c for c in text if c.isprintable() or c == "\n")
    return [line for line in clean.splitlines() if line.strip()]
