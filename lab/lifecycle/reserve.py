"""The name of a new lab, reserved for one command; or the lab that has it already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from lab import options
from lab.errors import Busy, Conflict, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import branches, forget
from lab.lifecycle.core.views import LabView
from lab.lifecycle.images.image import named
from lab.lifecycle.nodes import configuration, inspect
from lab.lifecycle.start import start
from lab.locks.named import held, lock
from lab.names import Owner, lab_of
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.wait import Deadline

_MADE = ("ready", "stopped", "failed")
_TRIES = 20
"""Attempts to reserve a free name that other commands may take first."""


@contextmanager
def reserved_name(
    ctx: Context, spec: LabSpec, *, existing_within: float | None = None, stem: str = ""
) -> Iterator[Owner | LabView]:
    """Reserve a name, in the record and by its lock, for the block.

    ``existing_within``: if another command takes the name of ``spec`` meanwhile, give its lab,
    once that is ready, which may take so many seconds. ``stem``: what a name that is not given
    begins with, if not with the blueprint. Raises Conflict if the name is taken: by a
    lab, by a command that works on it (Busy), or by guests or files that are not recorded.
    """
    reserved: Owner | LabView | None = None
    refused: set[str] = set()  # another may hold a name's lock long before it records it
    with ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            name = spec.name or ctx.store.free_name(stem or spec.blueprint, _traces(ctx) | refused)
            try:
                stack.enter_context(lock(ctx.home, "lab", name, wait=False))
                reserved = _reserve(ctx, name, spec)
            except Conflict as error:
                stack.pop_all().close()
                refused.add(name)
                taken = isinstance(error, Busy) or ctx.store.labs.find(name)
                if existing_within is not None and spec.name and taken and left:
                    reserved = existing(ctx, spec, existing_within)
                elif spec.name or not left:
                    raise
            if reserved is not None:
                yield reserved
                return


def _reserve(ctx: Context, name: str, spec: LabSpec) -> Owner:
    """Record a lab of that name, whose lock is held; raises Conflict."""
    owner = Owner("lab", name)
    _clear_remains(ctx, owner)
    if spec.name and not ctx.store.labs.find(name) and name in _traces(ctx):
        raise _taken(ctx, name)
    _record(ctx, name, spec)
    return owner


def with_existing_name(ctx: Context, spec: LabSpec) -> LabSpec:
    """``spec`` with the name of the lab that ``exist_ok`` means, where it has none.

    That is the blueprint's, or if another home has that, the first of ours that fits.
    """
    plain = spec.blueprint
    if spec.name or ctx.store.labs.find(plain) is not None or plain not in _traces(ctx):
        return replace(spec, name=spec.name or plain)
    wanted, numbered = _requested(ctx, spec), f"{plain}-"
    labs = (record for record in ctx.store.labs.all() if record.name.startswith(numbered))
    fits = (r.name for r in labs if not configuration.differs(configuration.of_record(r), wanted))
    return replace(spec, name=next(fits, ""))


def existing(ctx: Context, spec: LabSpec, timeout: float) -> LabView | None:
    """The lab that has the name already, once it is ready; None if there is none.

    One that another command is making or starting is waited for. Raises Conflict if it is not
    what ``spec`` asks for, NotReady if that takes more than ``timeout`` seconds.
    """
    name = spec.name
    if not name:
        return None
    deadline = Deadline.after(timeout)
    while True:
        record = ctx.store.labs.find(name)
        if record is not None and record.state in _MADE:
            configuration.check(name, configuration.of_record(record), _requested(ctx, spec))
            _check_accounts(record, spec)
            try:
                found = inspect.lab(ctx, name)
                return found if found.state == "ready" else start(ctx, name, timeout=timeout)
            except (Busy, NotFound):
                pass
        elif not held(ctx.home, "lab", name):
            return None
        _until_free(ctx, name, deadline)


def _check_accounts(record: LabRecord, spec: LabSpec) -> None:
    """Raise Conflict if the passwords of further accounts are others than those requested."""
    have, wanted = (
        {user.name: user.native for user in of.user}
        for of in (options.of(record.options), spec.options)
    )
    if other := sorted(name for name in wanted if wanted[name] != have.get(name)):
        raise Conflict(
            f"lab {record.name} exists, and has another password for {', '.join(other)}",
            hint=f"`lab down {record.name}` removes it",
        )


def _requested(ctx: Context, spec: LabSpec) -> configuration.Configuration:
    profile = ctx.settings.profile_of(spec.profile).name
    return configuration.asked(
        spec, profile=profile, image=spec.image and named(ctx, spec.image).key
    )


def _until_free(ctx: Context, name: str, deadline: Deadline) -> None:
    """Wait until no command works on the lab; raises NotReady."""

    def note(pid: int | None) -> None:
        ctx.progress.note("wait", f"waiting for process {pid or '?'}, which works on {name}")

    try:
        with lock(ctx.home, "lab", name, deadline=deadline, on_wait=note):
            pass
    except Busy as error:
        raise NotReady(
            f"timed out: lab {name} is locked by another process",
            details=[str(error)],
            hint="`--timeout` waits longer",
        ) from None


def _traces(ctx: Context) -> set[str]:
    """The names of labs that guests or files have, recorded or not, those of other homes too."""
    names = {lab_of(guest) for guest in ctx.hypervisor.names()}
    names |= {path.name for path in ctx.home.labs.iterdir()}
    return {name for name in names if name}


def _taken(ctx: Context, name: str) -> Conflict:
    ours = any(lab_of(guest) == name for guest in ctx.hypervisor.guests())
    if ours or ctx.home.lab(name).exists():
        return Conflict(
            f"lab {name} is missing from the state database; only its guests or files exist",
            hint=f"`lab down {name}` removes it",
        )
    return Conflict(
        f"the name {name} is taken: guests of a lab of that name exist that are not ours",
        hint="choose another --name; `virsh list` shows them, another LAB_HOME owns them",
    )


def _clear_remains(ctx: Context, owner: Owner) -> None:
    """Remove what a killed command left of a lab; we hold its lock, so nobody works on it."""
    record = ctx.store.labs.find(owner.name)
    dead = record is not None and record.state in ("creating", "removing")
    if dead and (needed := branches(ctx, owner.name)):
        raise Conflict(
            f"lab {owner.name} is removed with its last branch: {', '.join(needed)}",
            hint=f"choose another name, or `lab down {' '.join(needed)}` first",
        )
    if dead or (record is None and ctx.store.resources.of(owner)):
        ctx.progress.note("undo", f"removing leftovers of a killed command: {owner.name}")
        forget(ctx, owner)


def _record(ctx: Context, name: str, spec: LabSpec) -> None:
    now = time.time()
    ctx.store.labs.add(
        LabRecord(
            name=name,
            blueprint=spec.blueprint,
            engine=spec.engine.partition(":")[0],  # as requested, until it is chosen
            engine_version=spec.engine.partition(":")[2],
            image="",
            node_count=spec.nodes,
            memory=spec.size.memory,
            cpus=spec.size.cpus,
            disk=spec.size.disk,
            snapshots=str(spec.snapshots),
            options=spec.options.said,
            profile=ctx.settings.profile_of(spec.profile).name,
            state="creating",
            password="",
            user="",
            owner=ctx.settings.owner,
            created_at=now,
            expires_at=None if spec.ttl is None else now + spec.ttl,
            address=ctx.settings.publish,
            host=ctx.settings.published_as,
            **vars(ctx.origin),
        )
    )
