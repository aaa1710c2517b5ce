"""Waiting for a lab that somebody else is making or starting."""

from __future__ import annotations

from contextlib import suppress

from lab.errors import Conflict, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.asleep import awake
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab, nodes_of, record_of
from lab.lifecycle.nodes.personalise import correct_clocks, wrong_clocks
from lab.lifecycle.nodes.readiness import until_ready
from lab.locks.named import held, lock
from lab.observe.ask import through_port
from lab.views.labs import LabView
from lab.wait import Deadline, attempts

_LOOK_EVERY = 0.1  # seconds


def wait(ctx: Context, name: str, *, timeout: float) -> LabView:
    """Return once every node can be used.

    Raises NotFound, and NotReady: after ``timeout`` seconds, or at once if no command works on it.
    """
    deadline = Deadline.after(timeout)
    awake(ctx, name, timeout=timeout)
    for _ in attempts(deadline, first=_LOOK_EVERY):
        # In this order: who finishes in between has left another state.
        working = held(ctx.home, "lab", name)
        found = lab(ctx, name)
        down = [node.name for node in found.nodes if node.state == "stopped"]
        # A command that works on a stopped lab may start it, and wait for a slot. Its nodes may be
        # used before it is done with them: it gives them new keys, and records the lab as ready.
        starts = working and (down or found.state in ("stopped", "starting"))
        if found.state != "creating" and not starts:
            break
        if not working:
            raise NotReady(
                f"the lab {name} will not become ready: the command that was creating it has ended",
                hint=f"`lab up` creates it again, `lab down {name}` removes what is left",
            )
    else:
        doing = "being created" if found.state == "creating" else found.state
        raise NotReady(
            f"the lab {name} is still {doing} after {timeout:g} s",
            hint="`--timeout` waits longer",
        )
    if found.state == "unrecorded":
        record_of(ctx, name)
    if found.state in ("stopped", "failed", "removing"):
        raise NotReady(
            f"the lab {name} is {found.state}: it will not become ready by itself",
            hint=f"`lab start {name}` or `lab down {name}`",
        )
    if not found.nodes:
        raise NotFound(f"the lab {name} has no nodes")
    if down:  # somebody else may listen at its port
        raise NotReady(
            f"{', '.join(down)} of {name} does not run",
            hint=f"`lab start {name}` starts the stopped nodes",
        )
    plan = record_of(ctx, name).plan
    nodes = nodes_of(ctx, name)
    account = account_of(ctx.home, record_of(ctx, name))
    ask = through_port(ctx.ways, plan, account, nodes, deadline=deadline)
    until_ready(ctx, nodes, plan, ask, deadline, pause=_LOOK_EVERY)
    _note(ctx, name)
    return lab(ctx, name, proved=True)


def _note(ctx: Context, name: str) -> None:
    """Record as ready a lab whose ``start`` was killed or timed out, and correct its clocks.

    Not while another command is working on the lab.
    """
    # Asked without the lock: other commands on the lab fail while it is held.
    if ctx.unanswered is not None:
        return  # nobody can tell the time to its guests
    wrong = wrong_clocks(ctx, nodes_of(ctx, name))
    if not wrong and ctx.store.labs.get(name).state != "stopped":
        return
    with suppress(Conflict), lock(ctx.home, "lab", name, wait=False):
        correct_clocks(ctx, nodes_of(ctx, name))
        if ctx.store.labs.get(name).state == "stopped":
            ctx.store.labs.update(name, state="ready")
