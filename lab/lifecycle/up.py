"""``lab up``: the straight line from what was asked for to a lab that can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from lab.blueprints import Blueprint, blueprint
from lab.errors import (
    Busy,
    Conflict,
    HostUnfit,
    LabError,
    NotReady,
    PortTaken,
    RestoreFailed,
)
from lab.lifecycle.captures import template
from lab.lifecycle.captures.clone import clone, unrestored
from lab.lifecycle.captures.manifests import Manifest
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget, release
from lab.lifecycle.core.sql import Account
from lab.lifecycle.core.views import FIRST_USE, LabView
from lab.lifecycle.images.engine import made_of
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.connection import account_of, warning
from lab.lifecycle.nodes.form import Formation, form, until_formed
from lab.lifecycle.nodes.hand_over import hand_over
from lab.lifecycle.nodes.inspect import lab as look_at
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.personalise import USER, Prepared, make_password, prepare
from lab.lifecycle.nodes.ports import TRIES, allot
from lab.lifecycle.nodes.preflight import preflight
from lab.lifecycle.nodes.start_slots import turn
from lab.lifecycle.reserve import claimed, existing, pin
from lab.names import Owner
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.undo import Undo
from lab.wait import Deadline

T = TypeVar("T")

_KEEP = "`--keep-failed` keeps the guests for inspection"


@dataclass(frozen=True)
class _Job:
    """A lab in the making: its lock is held and its name recorded.

    ``timeout``: seconds that its nodes may take to get ready once they were started.
    """

    spec: LabSpec
    plan: Blueprint
    owner: Owner
    timeout: float


def up(
    ctx: Context,
    spec: LabSpec,
    *,
    cold: bool = False,
    keep_failed: bool = False,
    exist_ok: bool = False,
    timeout: float | None = None,
) -> LabView:
    """Make a lab and return it once every node can be used.

    ``cold`` boots instead of cloning a template; ``exist_ok`` returns the lab if it is there
    already and as asked for, started if it was stopped, waited for if another command makes it.
    ``timeout``: seconds that nodes may take to get ready once they were started, those of a
    template to be made and then the lab's own.

    Nothing is left when it fails, unless ``keep_failed``. Raises InvalidSpec, Conflict (name
    taken), HostUnfit, NotReady, CommandFailed.
    """
    began = time.time()
    plan_ = blueprint(spec.blueprint)
    timeout = timeout or ctx.settings.ready_timeout
    if exist_ok:
        spec = pin(ctx, spec)
    with ExitStack() as held:
        while True:
            if exist_ok and (found := existing(ctx, spec, timeout)) is not None:
                return found
            with ctx.progress.step("preflight"):
                preflight(ctx, spec)
            if told := warning(ctx.settings.publish):
                ctx.progress.note("publish", told)
            for caution in ctx.hypervisor.capabilities().cautions:
                ctx.progress.note(caution.topic, f"{caution.what}; to prevent it: {caution.remedy}")
            try:
                job = _Job(spec, plan_, held.enter_context(claimed(ctx, spec, plan_)), timeout)
                break
            except Conflict as error:
                faster = isinstance(error, Busy) or ctx.store.labs.find(spec.name or "")
                if not exist_ok or not faster:
                    raise
        with _all_or_nothing(ctx, job, keep=keep_failed):
            _make(ctx, job, cold=cold)
            took = time.time() - began - ctx.progress.spent(*FIRST_USE)
            with ctx.store.transaction():
                lease = _lease(job.spec, ctx.store.labs.get(job.owner.name))
                fields = {"state": "ready", "ready_seconds": took, **lease}
                ctx.store.labs.update(job.owner.name, **fields)
            return look_at(ctx, job.owner.name, steps=ctx.progress.steps, proved=True)


@contextmanager
def _all_or_nothing(ctx: Context, job: _Job, *, keep: bool) -> Iterator[None]:
    """If the block fails, remove the lab; or with ``keep`` keep its guests for inspection.

    Interrupts do not end the removal: see ``lab.cli.terminal.signals``.
    """
    with Undo() as undo:
        undo.push(f"lab {job.owner.name}", partial(_remove, ctx, job.owner))
        try:
            yield
            undo.keep()
        except BaseException as error:
            if keep:
                undo.keep()
                _keep(ctx, job, error)
            elif isinstance(error, NotReady):
                error.hint = ", ".join(filter(None, (error.hint, _KEEP)))
            raise


def _lease(spec: LabSpec, record: LabRecord) -> dict[str, float]:
    """What to record of the lease of a lab that is made, or failed: it counts from now.

    Unless it was given another while it was made.
    """
    if spec.ttl is None or record.expires_at != record.created_at + spec.ttl:
        return {}
    return {"expires_at": time.time() + spec.ttl}


def _make(ctx: Context, job: _Job, *, cold: bool) -> None:
    if cold:
        with made_of(ctx, job.plan, job.spec, nullcontext) as (image, _), turn(ctx, longest=None):
            _retried(ctx, job, lambda: _cold(ctx, job, image))
        return
    # A new template is formed once, then its disks boot: a third would fail like the second.
    for refused in (template.mark_broken, template.give_up_ram, template.give_up_ram):
        if _from_template(ctx, job, refused):
            return
    raise HostUnfit(
        "the RAM of three templates in a row could not be restored",
        hint="`lab up --cold` boots without a template; `lab template ls` shows the reasons",
    )


def _from_template(ctx: Context, job: _Job, refused: Callable[[Context, str, str], None]) -> bool:
    """Clone the lab from its template; False if RAM was not restored: ``refused`` records why."""
    source = template.source(ctx, job.plan, job.spec, job.timeout)
    with source as (image, manifest), turn(ctx, warm=manifest.warm, longest=None):
        try:
            made = _retried(ctx, job, lambda: _clone(ctx, job, image, manifest))
        except RestoreFailed as error:
            _clear(ctx, job)
            refused(ctx, manifest.key, unrestored(error))
            return False
        allotted, prepared = made
        deadline = Deadline.after(job.timeout)
        if not manifest.warm:
            until_formed(ctx, allotted.nodes, job.plan, deadline)
        _hand_over(ctx, job, image, allotted, prepared, deadline)
    return True


def _cold(ctx: Context, job: _Job, image: Image) -> None:
    profile = ctx.settings.profile_of(job.spec.profile)
    allotted = _allot(ctx, job, image, template_key=None, why_cold="asked for")
    formation = Formation(
        job.owner, image, job.plan, job.spec.size, profile, allotted.nodes, allotted.segment
    )
    deadline = form(ctx, formation, job.timeout)
    prepared = prepare(ctx, job.owner, allotted.nodes)
    _hand_over(ctx, job, image, allotted, prepared, deadline)


def _clone(ctx: Context, job: _Job, image: Image, manifest: Manifest) -> tuple[_Allotted, Prepared]:
    why_cold = "" if manifest.warm else _why_cold(ctx, manifest)
    allotted = _allot(ctx, job, image, template_key=manifest.key, why_cold=why_cold)
    return allotted, clone(ctx, manifest, image, job.spec, allotted.nodes, allotted.segment)


def _why_cold(ctx: Context, manifest: Manifest) -> str:
    """Why a template without RAM has none; never empty."""
    why = manifest.why_cold or ctx.hypervisor.capabilities().why_cold
    return why or "the template was captured without RAM"


def _retried(ctx: Context, job: _Job, make: Callable[[], T]) -> T:
    """``make`` guests; once more from the start if a port was taken since it was found free."""
    for _ in range(TRIES - 1):
        try:
            return make()
        except PortTaken as error:
            ctx.progress.note("ports", f"{error}; trying others")
            _clear(ctx, job)
    return make()


def _clear(ctx: Context, job: _Job) -> None:
    """Remove the guests, volumes and rows of the lab's nodes, to make them again."""
    release(ctx, job.owner)
    for node in ctx.store.nodes.of(job.owner.name):
        ctx.store.nodes.remove(job.owner.name, node.name)


def _hand_over(
    ctx: Context,
    job: _Job,
    image: Image,
    allotted: _Allotted,
    prepared: Prepared,
    deadline: Deadline,
) -> None:
    account = allotted.account
    hand_over(ctx, allotted.nodes, job.plan, image.engine, account, prepared, deadline)


@dataclass(frozen=True)
class _Allotted:
    """What the lab was given: nodes with ports, a private segment, an account."""

    nodes: tuple[Node, ...]
    segment: int
    account: Account


def _allot(
    ctx: Context, job: _Job, image: Image, *, template_key: str | None, why_cold: str
) -> _Allotted:
    plans = job.plan.plan(job.spec)
    password = make_password()
    record = ctx.store.labs.get(job.owner.name)
    nodes, segment = allot(ctx, job.owner, plans, record.address, record.host, image=image.key)
    with ctx.store.transaction():
        ctx.store.labs.update(
            job.owner.name,
            engine=image.engine.name,
            engine_version=image.engine.version,
            image=image.key,
            template=template_key,
            password=password,
            user=USER,
            segment=segment,
            started="cold" if why_cold else "warm",
            why_cold=why_cold,
        )
        ctx.store.nodes.add(node.record for node in nodes)
    record = replace(record, user=USER, password=password)
    return _Allotted(nodes, segment, account_of(ctx, record))


def _keep(ctx: Context, job: _Job, error: BaseException) -> None:
    """Record that the lab failed and keeps its guests; ``error`` stays the one that is raised."""
    try:
        lease = _lease(job.spec, ctx.store.labs.get(job.owner.name))
        ctx.store.labs.update(job.owner.name, state="failed", **lease)
    except LabError as failed:
        if not isinstance(error, LabError):
            raise
        error.details += (f"not recorded as failed: {failed}",)


def _remove(ctx: Context, owner: Owner) -> None:
    with ctx.progress.step("undo", "removing what was made"):
        forget(ctx, owner)
