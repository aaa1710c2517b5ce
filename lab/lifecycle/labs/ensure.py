"""``lab up --exist-ok``: the lab that is there already, or a new one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from lab import options
from lab.errors import Busy, Conflict, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.image import named
from lab.lifecycle.images.order import image_of, resolve
from lab.lifecycle.labs import configuration
from lab.lifecycle.labs.configuration import Configuration
from lab.lifecycle.labs.reserve import new_record, reserved, traces
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import check_host, make
from lab.lifecycle.nodes import inspect
from lab.lifecycle.nodes.asleep import awake
from lab.locks.named import held, lock
from lab.requests.labs import CreateLab
from lab.state.records import LabRecord
from lab.users import User
from lab.views.labs import LabView
from lab.wait import Deadline

_MADE = ("ready", "stopped", "failed")
_TRIES = 20
"""How often another command may take the name after it was found free."""


def ensure(ctx: Context, asked: CreateLab, *, timeout: float | None = None) -> LabView:
    """The lab that exists with the requested configuration, or a new one, as ``up`` makes it.

    An existing one is started if it was stopped, and waited for if another command is making it.
    Raises as ``up``, and Conflict if the lab of that name is not as requested.
    """
    began, timeout = time.time(), timeout or ctx.settings.ready_timeout
    spec = replace(asked, dataset="", image=image_of(ctx, asked))
    wanted = configuration.requested(
        spec,
        profile=ctx.settings.profile_of(spec.profile).name,
        image=spec.image and named(ctx, spec.image).key,
    )
    name = spec.name or _name(ctx, wanted)
    if (found := _existing(ctx, name, wanted, spec.chosen.user, timeout)) is not None:
        return found
    order = resolve(ctx, replace(spec, name=name))
    check_host(ctx, order.nodes)
    with ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            try:
                lab = stack.enter_context(reserved(ctx, new_record(ctx, order)))
                break
            except Conflict as error:
                taken = isinstance(error, Busy) or ctx.store.labs.find(name)
                if not name or not taken or not left:
                    raise
            if (found := _existing(ctx, name, wanted, spec.chosen.user, timeout)) is not None:
                return found  # another command was faster
        return make(ctx, lab, asked, order, began, timeout)


def _name(ctx: Context, wanted: Configuration) -> str:
    """The name of the lab that is meant where none is requested.

    It is the blueprint's, or if another home has that, the name of the first lab of ours that fits;
    empty if none fits.
    """
    plain = wanted.blueprint
    if ctx.store.labs.find(plain) is not None or plain not in traces(ctx):
        return plain
    labs = (record for record in ctx.store.labs.all() if record.name.startswith(f"{plain}-"))
    fits = (r.name for r in labs if not configuration.differs(configuration.of_record(r), wanted))
    return next(fits, "")


def _existing(
    ctx: Context, name: str, wanted: Configuration, accounts: Sequence[User], timeout: float
) -> LabView | None:
    """The lab that has the name already, once it is ready; None if there is none.

    One that another command is making or starting is waited for. Raises Conflict if it is not
    as ``wanted``, or has other passwords of ``accounts``; NotReady if it takes more than
    ``timeout`` seconds.
    """
    if not name:
        return None
    deadline = Deadline.after(timeout)
    while True:
        record = ctx.store.labs.find(name)
        if record is not None and record.state in _MADE:
            configuration.check(name, configuration.of_record(record), wanted)
            _check_accounts(record, accounts)
            try:
                awake(ctx, name)
                found = inspect.lab(ctx, name)
                return found if found.state == "ready" else start(ctx, name, timeout=timeout)
            except (Busy, NotFound):
                pass
        elif not held(ctx.home, "lab", name):
            return None
        _until_free(ctx, name, deadline)


def _check_accounts(record: LabRecord, accounts: Sequence[User]) -> None:
    """Raise Conflict if the passwords of further accounts are others than those requested."""
    have, wanted = (
        {user.name: user.native for user in users}
        for users in (options.of(record.options).user, accounts)
    )
    if other := sorted(name for name in wanted if wanted[name] != have.get(name)):
        raise Conflict(
            f"lab {record.name} exists, and has another password for {', '.join(other)}",
            hint=f"`lab down {record.name}` removes it",
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
