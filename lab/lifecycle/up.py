"""``lab up``: the straight line from what was asked for to a lab that can be used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lab.blueprints import Blueprint, blueprint
from lab.errors import Conflict, InvalidSpec, LabError
from lab.lifecycle import image as images
from lab.lifecycle import template
from lab.lifecycle.clone import clone
from lab.lifecycle.context import Context
from lab.lifecycle.engine import choose
from lab.lifecycle.form import Formation, form, until_formed
from lab.lifecycle.handover import hand_over
from lab.lifecycle.identify import USER, Prepared, make_password, prepare
from lab.lifecycle.look import lab as look_at
from lab.lifecycle.nodes import Image, Node, plan
from lab.lifecycle.ports import reserve_ports, reserve_segment
from lab.lifecycle.power import start
from lab.lifecycle.preflight import preflight
from lab.lifecycle.remove import forget
from lab.lifecycle.sql import Account
from lab.lifecycle.turn import turn
from lab.lifecycle.views import FIRST_USE, LabView
from lab.locks import lock
from lab.names import Owner
from lab.spec import LabSpec, format_size
from lab.state.records import LabRecord, NodeRecord
from lab.wait import Deadline


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
    already and as asked for, started if it was stopped. ``timeout``: seconds that nodes may take
    to get ready once they were started, those of a template to be made and then the lab's own.

    Nothing is left when it fails, unless ``keep_failed``. Raises InvalidSpec, Conflict (name
    taken), HostUnfit, NotReady, CommandFailed.
    """
    began = time.time()
    plan_ = blueprint(spec.blueprint)
    timeout = timeout or ctx.settings.ready_timeout
    if exist_ok:
        found = _existing(ctx, spec, timeout)
        if found is not None:
            return found
    with ctx.progress.step("preflight"):
        preflight(ctx, spec)
    with _claimed(ctx, spec, plan_, timeout) as job:
        try:
            _make(ctx, job, cold=cold)
            took = time.time() - began - ctx.progress.spent(*FIRST_USE)
            ctx.store.labs.update(job.owner.name, state="ready", ready_seconds=took)
            return look_at(ctx, job.owner.name, steps=ctx.progress.steps)
        except BaseException as error:
            _give_up(ctx, job, error, keep=keep_failed)
            raise


def _existing(ctx: Context, spec: LabSpec, timeout: float) -> LabView | None:
    record = ctx.store.labs.find(spec.name or spec.blueprint)
    if record is None or record.state in ("creating", "removing"):
        return None
    profile = ctx.settings.profile_of(spec.profile).name
    asked = (spec.blueprint, spec.nodes, spec.size.memory, spec.size.cpus, profile)
    there = (record.blueprint, record.node_count, record.memory, record.cpus, record.profile)
    if asked != there:
        raise Conflict(
            f"the lab {record.name} exists and is not what was asked for",
            hint=f"`lab status {record.name}` shows it; `lab down {record.name}` removes it",
        )
    found = look_at(ctx, record.name)
    return found if found.state == "ready" else start(ctx, record.name, timeout=timeout)


@contextmanager
def _claimed(ctx: Context, spec: LabSpec, plan_: Blueprint, timeout: float) -> Iterator[_Job]:
    """Take a name, in the record and by its lock; raises Conflict."""
    deadline = Deadline.after(timeout)
    with ExitStack() as held:
        while True:
            name = spec.name or ctx.store.free_name(spec.blueprint)
            try:
                held.enter_context(lock(ctx.home, "lab", name, wait=False))
                _clear_remains(ctx, Owner("lab", name))
                _record(ctx, name, spec, plan_)
            except Conflict:
                held.pop_all().close()
                if spec.name or deadline.passed:
                    raise
            else:
                break
        yield _Job(spec, plan_, Owner("lab", name), timeout)


def _clear_remains(ctx: Context, owner: Owner) -> None:
    """Remove what a killed command left of a lab; we hold its lock, so nobody works on it."""
    record = ctx.store.labs.find(owner.name)
    dead = record is not None and record.state in ("creating", "removing")
    if dead or (record is None and ctx.store.resources.of(owner)):
        ctx.progress.note("undo", f"removing what a killed command left of {owner.name}")
        forget(ctx, owner)


def _record(ctx: Context, name: str, spec: LabSpec, plan_: Blueprint) -> None:
    now = time.time()
    with ctx.store.transaction():
        ctx.store.labs.add(
            LabRecord(
                name=name,
                blueprint=plan_.name,
                engine="",
                engine_version="",
                image="",
                node_count=spec.nodes,
                memory=spec.size.memory,
                cpus=spec.size.cpus,
                disk=spec.size.disk,
                profile=ctx.settings.profile_of(spec.profile).name,
                state="creating",
                password="",
                user="",
                owner=ctx.settings.owner,
                created_at=now,
                expires_at=None if spec.ttl is None else now + spec.ttl,
            )
        )


def _make(ctx: Context, job: _Job, *, cold: bool) -> None:
    choice = choose(ctx, job.plan, job.spec)
    profile = ctx.settings.profile_of(job.spec.profile)
    with images.using(ctx, choice.recipe, profile) as image:
        _check_disk(ctx, job.spec, image)
        _make_of(ctx, job, image, cold=cold)


def _make_of(ctx: Context, job: _Job, image: Image, *, cold: bool) -> None:
    profile = ctx.settings.profile_of(job.spec.profile)
    if cold:
        allotted = _allot(ctx, job, image, template_key=None, why_cold="asked for")
        formation = Formation(
            job.owner, image, job.plan, job.spec.size, profile, allotted.nodes, allotted.segment
        )
        with turn(ctx):
            deadline = form(ctx, formation, job.timeout)
            prepared = prepare(ctx, job.owner, allotted.nodes)
            _hand_over(ctx, job, image, allotted, prepared, deadline)
        return
    using = template.using(ctx, image, job.plan, job.spec, job.timeout)
    with using as manifest, turn(ctx):
        why_cold = "" if manifest.warm else ctx.hypervisor.capabilities().why_cold
        allotted = _allot(ctx, job, image, template_key=manifest.key, why_cold=why_cold)
        prepared = clone(ctx, manifest, image, job.spec, allotted.nodes, allotted.segment)
        deadline = Deadline.after(job.timeout)
        if not manifest.warm:
            until_formed(ctx, allotted.nodes, job.plan, deadline)
        _hand_over(ctx, job, image, allotted, prepared, deadline)


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


def _check_disk(ctx: Context, spec: LabSpec, image: Image) -> None:
    least = images.snapshots(ctx, image)[image.grows].size
    if 0 < spec.size.disk < least:
        raise InvalidSpec(
            f"a node's disk cannot be {format_size(spec.size.disk)}: the image has"
            f" {format_size(least)}",
            hint="ask for more, or leave --disk out",
        )


@dataclass(frozen=True)
class _Allotted:
    """What the lab was given: nodes with ports, a private segment, an account."""

    nodes: tuple[Node, ...]
    segment: int
    account: Account


def _allot(
    ctx: Context, job: _Job, image: Image, *, template_key: str | None, why_cold: str
) -> _Allotted:
    roles = job.plan.roles(job.spec.nodes)
    account = Account(USER, make_password())
    with ctx.store.transaction():
        ports = reserve_ports(ctx, job.owner, 2 * len(roles))
        segment = reserve_segment(ctx, job.owner)
        nodes = tuple(plan(job.owner, roles, ports))
        ctx.store.labs.update(
            job.owner.name,
            engine=image.engine.name,
            engine_version=image.engine.version,
            image=image.key,
            template=template_key,
            password=account.password,
            user=account.user,
            segment=segment,
            started="cold" if why_cold else "warm",
            why_cold=why_cold,
        )
        ctx.store.nodes.add(
            [
                NodeRecord(job.owner.name, n.name, n.index, n.role, n.guest, n.sql_port, n.ssh_port)
                for n in nodes
            ]
        )
    return _Allotted(nodes, segment, account)


def _give_up(ctx: Context, job: _Job, error: BaseException, *, keep: bool) -> None:
    """Undo everything, or keep the guests for a look; ``error`` stays the one that is told."""
    try:
        if keep:
            ctx.store.labs.update(job.owner.name, state="failed")
            return
        with ctx.progress.step("undo", "removing what was made"):
            forget(ctx, job.owner)
    except LabError as failed:
        if not isinstance(error, LabError):
            raise
        error.details += (f"not undone: {failed}", "`lab gc` removes what is left")
