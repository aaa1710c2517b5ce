"""Labs that ``lab up`` made ahead: the standbys of a template, where ``standby`` asks for them.

One is a member of the pool ``:up``, as those of a service's pools are: a whole lab, paused, whose
name goes with it. They are made like the lab that a command made last, by a process that it starts
and that ends; nothing else runs. Each has a lease, after which no command takes it, and the next
such process, a service, or ``lab gc`` removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import msgspec

from lab.drafts import replaced
from lab.errors import Busy, Conflict, HostUnfit, Interrupted, InvalidSpec, LabError, NotFound
from lab.hypervisor import memory_of
from lab.lifecycle.core.context import Context, Origin
from lab.lifecycle.core.release import forget
from lab.lifecycle.core.waiting import AHEAD, made_ahead, try_drop
from lab.lifecycle.nodes.inspect import lab, labs
from lab.lifecycle.service import pool as pools
from lab.locks.named import held, lock
from lab.names import Owner
from lab.paths import writing
from lab.request import body_of
from lab.requests.labs import CreateLab
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.undo import Undo
from lab.views.labs import LabView
from lab.wait import Deadline

LEASE = 3600.0
"""Seconds for which one waits."""
UNDO = 30.0
"""Seconds for which who removes them waits until what is being made is undone."""
_NEXT = "ahead-next"


def take(ctx: Context, asked: CreateLab) -> LabView | None:
    """Take a lab that was made ahead, if one is what ``asked`` asks for; it runs, and is ready.

    None, too, where that fails: a lab is made then. Interrupted it takes none.
    """
    if type(asked) is not CreateLab or asked.cold or not pools.may_be_member(asked):
        return None
    waiting = [one for one in made_ahead(ctx) if not _over(one)]
    if not waiting:
        return None
    try:
        wanted = pools.keys(ctx, asked)
    except NotFound:  # its image is to be built first
        return None
    for record in waiting:
        if not pools.fits(ctx.settings, record, asked, wanted):
            continue
        try:
            return _take(ctx, record.name, asked)
        except Interrupted:
            raise
        except Conflict:
            continue  # another command takes it
        except LabError as error:
            # Not the next one: where it is the host that is too busy, that would end as well.
            ctx.progress.note("claim", f"{record.name}, made ahead, is removed: {error}")
            try_drop(ctx, record.name)
            return None
    return None


def _take(ctx: Context, name: str, asked: CreateLab) -> LabView:
    began, ours = time.time(), list[str]()

    def fields() -> dict[str, Any]:
        owner, schedule = ctx.settings.owner, str(asked.schedule)
        return pools.given_to(ctx.origin, owner, asked.ttl, schedule, began)

    with Undo() as undo:
        undo.push(f"lab {name}", lambda: _give_back(ctx, name, taken=bool(ours)))
        with ctx.progress.step("claim", f"{name} was made ahead"):
            pools.claim(ctx, name, AHEAD, fields, lambda _: ours.append(name))
        view = lab(ctx, name, steps=ctx.progress.steps, proved=True)
        undo.keep()
    return view


def _give_back(ctx: Context, name: str, *, taken: bool) -> None:
    """Remove a lab that was ``taken`` for nobody; pause one that still waits."""
    with suppress(Conflict):  # another command works on it
        pools.rest(ctx, name, awake=False)
        record = ctx.store.labs.find(name)
        if taken and record is not None and not record.pool:
            with lock(ctx.home, "lab", name, wait=False):
                forget(ctx, Owner("lab", name))


def want(ctx: Context, asked: CreateLab) -> bool:
    """Record that the next labs are to be as ``asked``; whether some are to be made now.

    Not where a command asked for what none of them can be, such as a name: the next one may as
    well. Nor where a process that was started before has yet to begin. Raises HostUnfit if it
    cannot be written.
    """
    if not ctx.settings.standby or ctx.hypervisor.memory is None:
        return False
    if type(asked) is not CreateLab or asked.cold or not pools.may_be_member(asked):
        return False
    # Who takes one has a lease and a schedule of their own.
    spec = LabSpec.of(asked, name="", ttl=LEASE, snapshots="")
    with replaced(ctx.home.ahead) as draft:  # its options may hold secrets, so only we may read it
        draft.write_bytes(msgspec.json.encode(body_of(CreateLab.of(spec))))
    return not held(ctx.home, "state", _NEXT)


def make(ctx: Context, *, timeout: float) -> list[LabView]:
    """Make the labs that are wanted, until as many wait as the setting says; those that do.

    Others are removed: those whose lease is over, that do not run, and, the oldest first, those
    that are too many or would be. ``timeout``: seconds that this may wait for another process, and
    then the nodes of a lab to get ready. Where a third process waits, it leaves that to the second.
    Nothing incomplete is left if it fails. Raises as ``up``, Interrupted once they are wanted no
    more, InvalidSpec if the setting is 0, and HostUnfit if guests cannot be paused.
    """
    memory_of(ctx.hypervisor)
    if not ctx.settings.standby:
        raise InvalidSpec(
            "the setting standby is 0: no labs are made ahead",
            hint="`LAB_STANDBY=1 lab up pxc`, or `standby = 1` in a config file",
        )
    with ExitStack() as stack:
        try:
            line = stack.enter_context(ExitStack())
            line.enter_context(lock(ctx.home, "state", _NEXT, wait=False))
        except Busy:
            return _views(ctx)
        stack.enter_context(
            lock(ctx.home, "state", "ahead", deadline=Deadline.after(timeout), unless=_halted(ctx))
        )
        line.close()  # who comes now waits, and so sees what is asked for from now on
        for _ in range(ctx.settings.standby):
            spec = _wanted(ctx)
            missing = spec is not None and _tidied(ctx, spec)
            _rest(ctx)
            if spec is None or not missing:
                break
            _make(ctx, spec, timeout)
            _rest(ctx)
        _rest(ctx)
        if _wanted(ctx) is None:
            _drop_all(ctx)
    return _views(ctx)


def _make(ctx: Context, spec: LabSpec, timeout: float) -> None:
    from lab.lifecycle.labs.up import up  # who takes one does without

    def halt() -> None:
        ctx.progress.halt()
        if not ctx.home.ahead.exists():
            raise Interrupted("no labs are wanted ahead any more")

    progress = replace(ctx.progress, halt=halt)
    own = replace(ctx, progress=progress, origin=Origin(pool=AHEAD))
    # As in a pool: a name that nobody chooses, so that it is in nobody's way.
    asked = CreateLab.of(spec, name=pools.new_name(spec.blueprint))
    up(own, asked, timeout=timeout)


def drop(ctx: Context, *, timeout: float) -> list[LabView]:
    """Remove the labs that wait, and let no more be made; those that could not be removed.

    What is being made is undone, for which this waits, ``timeout`` seconds at most; raises Busy
    after that.
    """
    with writing(ctx.home.ahead):
        ctx.home.ahead.unlink(missing_ok=True)
    _drop_all(ctx)
    with lock(ctx.home, "state", "ahead", deadline=Deadline.after(timeout), unless=_halted(ctx)):
        _drop_all(ctx)
    return _views(ctx)


def _drop_all(ctx: Context) -> None:
    for record in made_ahead(ctx):
        try_drop(ctx, record.name)


def _views(ctx: Context) -> list[LabView]:
    names = {record.name for record in made_ahead(ctx)}
    return [view for view in labs(ctx) if view.name in names]


def _halted(ctx: Context) -> Callable[[], bool]:
    def halted() -> bool:
        ctx.progress.halt()
        return False

    return halted


def _rest(ctx: Context) -> None:
    """Pause those that wait: also one that a command resumed, and was interrupted."""
    for record in made_ahead(ctx):
        with suppress(LabError):  # a command takes it, or it has ended meanwhile
            pools.rest(ctx, record.name, awake=False)


def _wanted(ctx: Context) -> LabSpec | None:
    """What the labs are to be; None if nothing is wanted, or another version wrote it."""
    try:
        spec = msgspec.json.decode(ctx.home.ahead.read_bytes(), type=CreateLab)
        pools.check(ctx.settings, spec)
    except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError, InvalidSpec):
        return None
    except OSError as error:
        raise HostUnfit(f"{ctx.home.ahead} cannot be read: {error.strerror}") from error
    return spec


def _tidied(ctx: Context, spec: LabSpec) -> bool:
    """Remove what is of no more use; whether another one is to be made then."""
    guests, most = ctx.hypervisor.guests(), ctx.settings.standby
    for record in made_ahead(ctx):
        if _over(record) or not pools.whole(ctx, record.name, guests):
            try_drop(ctx, record.name)
    try:
        wanted = pools.keys(ctx, spec)
    except NotFound:  # its image is to be built first
        fitting = set()
    else:
        fitting = {
            one.name for one in made_ahead(ctx) if pools.fits(ctx.settings, one, spec, wanted)
        }
    room = most - (len(fitting) < most)
    there = [one.name for one in made_ahead(ctx)]
    by_use = sorted(there, key=lambda name: name in fitting)  # the oldest first of each
    for name in by_use[: max(0, len(there) - room)]:
        try_drop(ctx, name)
    return len(fitting) < most


def _over(record: LabRecord) -> bool:
    return record.expires_at is not None and record.expires_at <= time.time()
