"""``lab up``: from what was requested to a lab that can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lab.blueprints import NodePlan
from lab.errors import (
    HostUnfit,
    Interrupted,
    InvalidSpec,
    LabError,
    NotReady,
    PortTaken,
    RestoreFailed,
)
from lab.lifecycle.captures import template
from lab.lifecycle.captures.capture import Capture, unformed
from lab.lifecycle.captures.clone import clone, unrestored
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.release import forget, release
from lab.lifecycle.images.order import Order, resolve
from lab.lifecycle.images.ready import Images
from lab.lifecycle.labs.reserve import new_record, reserved
from lab.lifecycle.nodes import inspect, ports
from lab.lifecycle.nodes.connection import account_of, beyond, unencrypted, warning
from lab.lifecycle.nodes.form import Formation, form, until_formed
from lab.lifecycle.nodes.hand_over import Started, personalise, wait_ready
from lab.lifecycle.nodes.personalise import USER, make_password, prepare
from lab.lifecycle.nodes.preflight import make_room, preflight
from lab.lifecycle.nodes.recovery import until_back_inside
from lab.lifecycle.nodes.start_slots import start_slot
from lab.names import Owner
from lab.observe.account import Account
from lab.requests.labs import CreateLab
from lab.state.records import LabRecord
from lab.undo import Undo
from lab.views.labs import FIRST_USE, LabView

Refuse = Callable[[Context, str, str], None]
"""Records of a template, by its name, why its RAM was not restored."""

_REFUSALS: tuple[Refuse, ...] = (template.mark_broken, template.give_up_ram, template.give_up_ram)
"""A new template is formed once, then its disks boot: a third would fail like the second."""

_KEEP = "`--keep-failed` keeps the guests for inspection"


def up(ctx: Context, asked: CreateLab, *, timeout: float | None = None) -> LabView:
    """Make a lab and return it once every node can be used.

    ``timeout``: seconds that nodes may take to get ready once they were started, those of a new
    template and then the lab's own.

    Nothing is left when it fails, unless the request has ``keep_failed``. Raises InvalidSpec,
    Conflict (name taken), HostUnfit, NotReady, CommandFailed.
    """
    began, timeout = time.time(), timeout or ctx.settings.ready_timeout
    order = resolve(ctx, asked)
    check_host(ctx, order.nodes)
    with reserved(ctx, new_record(ctx, order)) as lab:
        return make(ctx, lab, asked, order, began, timeout)


def make(
    ctx: Context, lab: Owner, asked: CreateLab, order: Order, began: float, timeout: float
) -> LabView:
    """Make the lab whose name is reserved; ``began``: when it was requested."""
    cold = asked.cold
    with all_or_nothing(ctx, lab, order.spec.ttl, keep=asked.keep_failed):
        for refuse in _REFUSALS:
            with (
                template.images_and_capture(ctx, order, timeout, cold=cold) as (images, capture),
                start_slot(ctx, warm=capture is not None and capture.warm) as give_back,
            ):
                try:
                    nodes = start_nodes(ctx, lab, order, images, capture, timeout, give_back)
                except RestoreFailed as error:
                    if capture is None:
                        raise
                    remove_nodes(ctx, lab)
                    refuse(ctx, capture.owner.name, unrestored(error))
                    continue
                personalise(ctx, nodes)
                wait_ready(ctx, nodes)
            return mark_ready(ctx, lab, order.spec.ttl, began)
        raise HostUnfit(
            "the RAM of three templates in a row could not be restored",
            hint="`lab up --cold` boots without a template; `lab template ls` shows why",
        )


def check_host(ctx: Context, nodes: Sequence[NodePlan]) -> None:
    """Raise HostUnfit unless this host can take a lab; note the risks that it would have.

    Labs that were made ahead give up their memory for it.
    """
    with ctx.progress.step("preflight"):
        try:
            preflight(ctx, nodes)
        except HostUnfit:
            if not make_room(ctx, nodes):
                raise
            preflight(ctx, nodes)
    note_risks(ctx)


def note_risks(ctx: Context) -> None:
    """Note the risks that a lab has on this host."""
    if text := warning(ctx.settings.publish):
        ctx.progress.note("publish", text)
    for caution in ctx.hypervisor.capabilities().cautions:
        ctx.progress.note(caution.topic, f"{caution.what}; to prevent it: {caution.remedy}")


def start_nodes(
    ctx: Context,
    lab: Owner,
    order: Order,
    images: Images,
    capture: Capture | None,
    timeout: float,
    formed: Callable[[], None] = lambda: None,
) -> Started:
    """Allot what the nodes of a lab need, clone their disks, and restore or boot them.

    All of it again, with other ports, if another program took a port since it was found free.
    ``capture``: to clone; None boots from the disks of images. ``formed``: see ``until_formed``.
    What was made stays if it fails.
    """
    tries = ports.TRIES
    while True:
        formation, account = allot(ctx, lab, order, images, capture)
        nodes, plan = formation.nodes, formation.blueprint
        try:
            if capture is None:
                deadline = form(ctx, formation, timeout, formed=formed)
                prepared = prepare(ctx, lab, nodes)
            else:
                prepared = clone(ctx, capture, formation)
                deadline = ctx.ready_by(timeout)
                if unformed(ctx, capture.ref):
                    until_formed(ctx, nodes, plan, images, deadline, formed=formed)
                elif not capture.warm:
                    until_back_inside(ctx, nodes, plan, images, deadline)
            return Started(nodes, plan, images, account, prepared, deadline)
        except PortTaken as error:
            tries -= 1
            if not tries:
                raise
            ctx.progress.note("ports", f"{error}; trying others")
            remove_nodes(ctx, lab)


def clone_in_use(
    ctx: Context,
    lab: Owner,
    order: Order,
    images: Images,
    capture: Capture,
    timeout: float,
    *,
    refused: Callable[[str], None],
    seeds: Callable[[], None] = lambda: None,
    keep_sessions: bool = False,
    identity: int = 0,
) -> None:
    """Start the nodes of a lab as clones of a lab in use, and make them usable.

    Where the RAM of ``capture`` is refused, ``refused`` is called with the reason, and its disks
    boot. ``seeds``: gives the nodes their seeds, if these are the lab's own. ``keep_sessions``:
    those of clients are not ended; ``identity``: see ``Started``.
    """
    while True:
        with start_slot(ctx, warm=capture.warm):
            try:
                seeds()
                nodes = start_nodes(ctx, lab, order, images, capture, timeout)
            except RestoreFailed as error:
                why = unrestored(error)
                remove_nodes(ctx, lab)
                refused(why)
                capture = capture.without_ram(why)
                continue
            started = replace(
                nodes, end_sessions=capture.warm and not keep_sessions, identity=identity
            )
            personalise(ctx, started)
            wait_ready(ctx, started)
            return


def allot(
    ctx: Context, lab: Owner, order: Order, images: Images, capture: Capture | None
) -> tuple[Formation, Account]:
    """Reserve ports, a segment and an account for a lab, and record how it is started.

    ``capture``: what it will be a clone of, None if it boots from the disks of images.
    """
    why_cold, password = _why_cold(ctx, capture), make_password()
    record = ctx.store.labs.get(lab.name)
    _check_published(record, order, images)
    nodes, segment = ports.allot(ctx, lab, order.nodes, images, record.address, record.host)
    with ctx.store.transaction():
        ctx.store.labs.update(
            lab.name,
            engine=images.engine.engine.name,
            engine_version=images.engine.engine.version,
            image=images.engine.key,
            **_descent(record, capture),
            password=password,
            user=USER,
            segment=segment,
            started="cold" if why_cold else "warm",
            why_cold=why_cold,
        )
        ctx.store.nodes.add(node.record for node in nodes)
    account = account_of(ctx.home, ctx.store.labs.get(lab.name))
    return Formation(lab, images, order.blueprint, order.profile, nodes, segment), account


def _check_published(record: LabRecord, order: Order, images: Images) -> None:
    """Raise InvalidSpec if others could reach a server without TLS."""
    if not beyond(record):
        return
    for node in order.nodes:
        if node.has_server and (why := unencrypted(images.planned(node).engine.release)):
            raise InvalidSpec(
                f"{node.name} cannot be published at {record.address}: {why}",
                hint="labs are published there by the setting publish; at 127.0.0.1 only this host"
                " reaches them",
            )


def _descent(record: LabRecord, capture: Capture | None) -> dict[str, str | None]:
    """What to record of what a lab is a clone of; a branch has that recorded already."""
    if capture is not None and capture.owner.kind == "lab":
        return {"template": record.template, "parent": str(capture.ref)}
    return {"template": None if capture is None else capture.owner.name}


def _why_cold(ctx: Context, capture: Capture | None) -> str:
    """Why the nodes of a lab will boot; empty if their RAM will be restored."""
    if capture is None:
        return "requested"
    if capture.warm:
        return ""
    why = capture.why_cold or ctx.hypervisor.capabilities().why_cold
    return why or "the template was captured without RAM"


def remove_nodes(ctx: Context, lab: Owner) -> None:
    """Remove the guests, volumes and rows of a lab's nodes, so that they can be made again."""
    release(ctx, lab)
    for node in ctx.store.nodes.of(lab.name):
        ctx.store.nodes.remove(lab.name, node.name)


def mark_ready(ctx: Context, lab: Owner, ttl: float | None, began: float) -> LabView:
    """Record that a lab is ready, ``began`` when it was requested; its lease counts from now."""
    took = time.time() - began - ctx.progress.spent(*FIRST_USE)
    with ctx.store.transaction():
        lease = _lease(ttl, ctx.store.labs.get(lab.name))
        ctx.store.labs.update(lab.name, state="ready", ready_seconds=took, **lease)
    return inspect.lab(ctx, lab.name, steps=ctx.progress.steps, proved=True)


@contextmanager
def all_or_nothing(ctx: Context, lab: Owner, ttl: float | None, *, keep: bool) -> Iterator[None]:
    """If the block fails, remove the lab; or with ``keep`` keep its guests for inspection.

    Interrupts do not end the removal: see ``lab.cli.terminal.signals``.
    """

    def remove() -> None:
        with ctx.progress.step("undo", f"removing the lab {lab.name}"):
            forget(ctx, lab)

    with Undo() as undo:
        undo.push(f"lab {lab.name}", remove)
        try:
            yield
            undo.keep()
        except BaseException as error:
            if keep:
                undo.keep()
                mark_failed(ctx, lab, ttl, error)
            elif isinstance(error, LabError):
                if isinstance(error, NotReady):
                    error.hint = ", ".join(filter(None, (error.hint, _KEEP)))
                _bundle(ctx, lab.name, error)
            raise


def _bundle(ctx: Context, name: str, error: LabError) -> None:
    """Keep what is known of a lab whose nodes were started, and say in ``error`` where it is."""
    if isinstance(error, Interrupted) or not ctx.store.nodes.of(name):
        return
    if not any(
        guest.tags.get("owner") == f"lab:{name}" for guest in ctx.hypervisor.guests().values()
    ):
        return
    from lab.lifecycle.labs import bundle

    bundle.keep(ctx, name, error)


def mark_failed(ctx: Context, lab: Owner, ttl: float | None, error: BaseException) -> None:
    """Record that the lab failed and keeps its guests; ``error`` stays the one that is raised."""
    try:
        lease = _lease(ttl, ctx.store.labs.get(lab.name))
        ctx.store.labs.update(lab.name, state="failed", **lease)
    except LabError as failed:
        if not isinstance(error, LabError):
            raise
        error.details += (f"not recorded as failed: {failed}",)


def _lease(ttl: float | None, record: LabRecord) -> dict[str, float]:
    """What to record of the lease of a lab that became ready, or failed: it counts from now.

    Unless it was given another while it was made.
    """
    if ttl is None or record.expires_at != record.created_at + ttl:
        return {}
    return {"expires_at": time.time() + ttl}
