"""``lab upgrade``: the servers of a lab become those of another series, one after the other.

As the manuals of MariaDB and MySQL describe it: replicas before their source, with a promotion
before its turn; in a cluster a node leaves, is upgraded, and is Synced again before the next one
leaves. A snapshot is taken before each step, to which a step that fails goes back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from lab.blueprints import Release
from lab.blueprints.dialects import Versioned, dialect_of
from lab.config import enginefile
from lab.config.enginefile import family_of
from lab.datasets.queries import Query
from lab.errors import Busy, Conflict, Interrupted, InvalidSpec, LabError, NotReady
from lab.imagebuild import added
from lab.imagebuild.recipe import load
from lab.lifecycle.captures import system
from lab.lifecycle.captures.capture import parent_of
from lab.lifecycle.core import interrupted
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import check_upgrades, required
from lab.lifecycle.images.ready import Image, engine_units
from lab.lifecycle.labs import power, statements, upgrade_messages
from lab.lifecycle.labs.foreseen import foreseen
from lab.lifecycle.labs.probe import Probe
from lab.lifecycle.labs.promote import promote
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.transfer import came_back
from lab.lifecycle.labs.workload import Workload
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import (
    check_usable,
    images_of,
    lab,
    node_of,
    nodes_of,
    record_of,
)
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.recovery import USUAL
from lab.lifecycle.nodes.start_slots import start_slot
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.observe.ways import Rows
from lab.requests.labs import RollBack, UpgradeLab
from lab.requests.snapshots import TakeSnapshot
from lab.state.records import LabRecord
from lab.values import dataclass
from lab.views.upgrades import OptionView, Partial, Transfer, UpgradeStep, UpgradeView

_SECONDS = 60.0
_UPGRADE_SECONDS = 1800.0
_READ = 500
"""Lines of a server's log that are read, the last ones."""
_LINES = 20
_ACCOUNTS = 100
_WIDTH = 500
"""Characters of a line of a guest that are kept."""
_TELLS = re.compile(r"\[(?:ERROR|Warning)\]")
_LOGS = re.compile(r"\[(?:ERROR|Warning|Note|System)\]")
"""In a line that a server itself has logged: each does when it starts."""
_OURS = "user: 'unauthenticated'"
"""In a line of the log: somebody looked whether its port is open."""
LOCKED_OUT = (
    "SELECT CONCAT(user, '@', host, ' (', plugin, ')') FROM mysql.user WHERE plugin NOT IN"
    " (SELECT plugin_name FROM information_schema.plugins WHERE plugin_status = 'ACTIVE')"
    " AND plugin <> '' LIMIT 101"  # one more than are reported: so it is known if there are more
)
"""Accounts that cannot log in; a role of MariaDB, and its PUBLIC, have no plugin."""
_BY_DUMP = "carry the data over with a dump: `lab dump`, then `lab dataset create --engine`"


def upgrade(ctx: Context, asked: UpgradeLab, *, timeout: float) -> UpgradeView:
    """Upgrade the servers of a lab; writes are made to it meanwhile, and verified at the end.

    A step that fails is the last one: the lab is rolled back to the snapshot before it, unless the
    request says otherwise. Raises NotFound, InvalidSpec for an engine that the lab cannot have,
    Conflict while another command works on the lab, HostUnfit, and NotReady for a lab that is not
    ready. ``timeout``: seconds that a node may take to be ready.
    """
    # Not the lab's own lock, which its steps take: another upgrade would remove our rows.
    with lock(ctx.home, "upgrade", asked.lab, wait=False):
        return _upgrade(ctx, asked, timeout)


def _upgrade(ctx: Context, asked: UpgradeLab, timeout: float) -> UpgradeView:
    record = record_of(ctx, asked.lab)
    _check(ctx, record)
    queries = statements.parsed(asked.statements, "--statements") if asked.statements else []
    began, recipe = time.monotonic(), required(ctx.home, record.plan, asked.to)
    _check_recipe(ctx, record, recipe)
    spec = images.spec_of(ctx, recipe, ctx.settings.profile_of(record.profile))
    with images.using(ctx, spec) as new:
        order = _order(ctx, record, asked.node, new)
        for node in order:
            system.check(ctx, node, new)
        known = foreseen(ctx, record, order, new)
        for line in known:
            ctx.progress.note("upgrade", line)
        workload = Workload(ctx, record.name, asked.workload)
        with Probe(ctx, record) as probe, workload:
            steps: list[UpgradeStep] = []
            for node in order:
                steps.append(_step(ctx, asked, node, new, probe, queries, timeout))
                if steps[-1].state != "upgraded":
                    break
        # What was written since a snapshot is gone with a rollback to it.
        report = probe.report(verify=steps[-1].state == "upgraded")
    return UpgradeView(
        asked.lab, asked.to, tuple(steps), time.monotonic() - began,
        report.written, report.refused, report.lost, report.changed, workload.report,
        report.unchecked, known,
    )  # fmt: skip


def _check(ctx: Context, record: LabRecord) -> None:
    check_usable(record)
    interrupted.check(ctx, record.name)
    if parent_of(record) is None:
        raise InvalidSpec(
            f"{record.name} was made without a template: its nodes cannot be upgraded",
            hint="labs of a host that captures RAM can be",
        )
    guests = ctx.hypervisor.guests()
    running = {name for name, guest in guests.items() if guest.state == "running"}
    absent = [node.name for node in nodes_of(ctx, record.name) if node.guest not in running]
    if absent:
        raise NotReady(
            f"{', '.join(absent)} of {record.name} does not run",
            hint=f"`lab start {record.name}` first",
        )


def _order(ctx: Context, record: LabRecord, only: str, new: Image) -> list[Node]:
    """The nodes to be upgraded, in order: who takes the writes is the last; raises InvalidSpec."""
    nodes = [node for node in nodes_of(ctx, record.name) if node.has_server]
    if only:
        nodes = [node_of(ctx, record.name, only)]
        if not nodes[0].has_server:
            raise InvalidSpec(f"{only} of {record.name} has no server of its own")
    found = images_of(ctx, record, nodes)
    _check_upgrades(f"{new.key} is", new.engine)
    for node in nodes:
        _check_upgrades(f"{node.name} runs", found[node.image].engine)
        _check_version(node.name, found[node.image].engine.version, new.engine.version)
    left = [node for node in nodes if node.image != new.key]
    if not left:
        raise Conflict(f"{only or record.name} has the image {new.key} already")
    roles = {node.name: node.role for node in lab(ctx, record.name).nodes}
    return sorted(left, key=lambda n: (roles[n.name] in record.plan.writers, -n.index))


def _check_recipe(ctx: Context, record: LabRecord, recipe: str) -> None:
    """Raise InvalidSpec, before an image is built, if no server of a lab can become one of it."""
    was, series = images.find(ctx, record.image), enginefile.series_of(recipe)
    there = added.families(ctx.home.engines)
    # Not by the name of its recipe: that may be of no engine any more, or of another one.
    if family_of(was.engine.name).kind != enginefile.kind_of(recipe, there):
        raise InvalidSpec(
            f"{record.name} runs {was.recipe} ({was.engine.name} {was.engine.version}),"
            f" which cannot become {recipe}",
            hint=_BY_DUMP,
        )
    check_upgrades(ctx.home, recipe)
    _check_upgrades(f"{record.name} runs", was.engine)
    build = added.find(ctx.home.engines, recipe)
    new = build.version if build else series
    if new:
        family = build.family if build else load(recipe).engine
        _check_upgrades(f"{recipe} is", Release(family, new))
    if new and not f"{was.engine.version}.".startswith(f"{new}."):
        _check_version(record.name, was.engine.version, new)


def _check_upgrades(what: str, server: Versioned) -> None:
    """Raise InvalidSpec for a server that no other one becomes, and that becomes no other one."""
    if not dialect_of(server).upgrades:
        title = family_of(server.name).title
        raise InvalidSpec(
            f"{what} {title} {server.version}: `lab upgrade` upgrades neither to nor from {title}"
            " before 8.0.16, which needs mysql_upgrade and other accounts",
            hint=_BY_DUMP,
        )


def _check_version(what: str, was: str, new: str) -> None:
    """Raise InvalidSpec if ``what`` would go back from the version ``was`` to ``new``."""
    if enginefile.numbers(new) < enginefile.numbers(was):
        raise InvalidSpec(
            f"{what} runs {was}; servers are not downgraded to {new}",
            hint="`lab rollback` goes back to a snapshot of before an upgrade",
        )


@dataclass(frozen=True)
class _Findings:
    """What the new server of a node says of the upgrade; None: not known."""

    log: tuple[str, ...] | None
    locked_out: tuple[str, ...] | None
    rebuild: tuple[str, ...] | None
    options: tuple[OptionView, ...] | None
    partial: tuple[Partial, ...]
    """Of which of these there are more, or may be."""
    transfer: Transfer | None


def _step(
    ctx: Context,
    asked: UpgradeLab,
    node: Node,
    new: Image,
    probe: Probe,
    queries: Sequence[Query],
    timeout: float,
) -> UpgradeStep:
    """Upgrade one node; a failure is in the result, and so is what became of the lab then."""
    record = record_of(ctx, asked.lab)
    began, label, touched = time.monotonic(), "", False
    probe.begin_step()
    step = UpgradeStep(node.name, "", "", "upgraded", "", 0.0, 0.0)
    try:
        # Of the servers: an image says what was installed when it was built.
        step = replace(
            step, before=probe.version(node), provider_before=probe.provider(node),
            protocol_before=probe.protocol(node),
        )  # fmt: skip
        old = _measured(ctx, record, node, queries)
        label = snapshot.take(ctx, TakeSnapshot(lab=asked.lab, name=f"before-{node.name}")).label
        _promote_another(ctx, record, node, new, timeout)
        with lock(ctx.home, "lab", asked.lab, wait=False):
            touched = True
            found = _upgraded(ctx, record_of(ctx, asked.lab), node, new, label, timeout)
            node = node_of(ctx, asked.lab, node.name)
            step = replace(
                step, after=probe.version(node), log=found.log, locked_out=found.locked_out,
                rebuild=found.rebuild, options=found.options, partial=found.partial,
                provider_after=probe.provider(node), protocol_after=probe.protocol(node),
                transfer=found.transfer,
            )  # fmt: skip
            with ctx.progress.step("replicate", f"verifying that {node.name} replicates"):
                step = replace(step, replicated=probe.replicated(node))
            for one in step.replicated or ():
                if one.seconds is None:
                    raise NotReady(one.error)
            interrupted.end(ctx, asked.lab)  # until then `lab start` puts the node back
        now = _measured(ctx, record, node, queries)
        step = replace(
            step, statements=statements.compare(queries, old, now),
            compared=sum(not (a.error or b.error) for a, b in zip(old, now, strict=True)),
        )  # fmt: skip
    except Interrupted:
        raise
    except LabError as error:
        log = tuple(line[:_WIDTH] for line in error.details[-_LINES:])
        options = upgrade_messages.options_in([str(error), *error.details], ())
        new_ones: dict[Partial, bool] = {"log": bool(log), "options": bool(options)}
        partial = {one for one in step.partial if not new_ones.get(one)}
        partial |= {"log"} if len(error.details) > _LINES else set()
        partial |= {"options"} if len(options) >= upgrade_messages.MOST_OPTIONS else set()
        step = replace(
            step, state="failed", why=str(error), log=log or step.log,
            options=options or step.options, partial=tuple(sorted(partial)),
            statements=None if queries else (),
        )  # fmt: skip
        # While another command works on the lab nothing is done to it, and nothing goes back.
        touched = touched or not isinstance(error, Busy)
        if label and touched and not asked.keep_failed:
            ctx.progress.note("upgrade", f"{node.name} failed: {error}")
            step = _back(ctx, step, RollBack(lab=asked.lab, to=label), timeout)
    seconds, outages = time.monotonic() - began, probe.end_step()
    return replace(
        step, snapshot=label, seconds=seconds, outage=outages.writes, unanswered=outages.endpoints
    )


def _back(ctx: Context, step: UpgradeStep, to: RollBack, timeout: float) -> UpgradeStep:
    """A step that failed, after a rollback to before it, or with why that failed as well."""
    try:
        rollback(ctx, to, timeout=timeout)
    except Interrupted:
        raise
    except LabError as error:
        return replace(step, why=f"{step.why}; the rollback failed: {error}")
    return replace(step, state="rolled back", after="", provider_after=None, protocol_after=None)


def _measured(
    ctx: Context, record: LabRecord, node: Node, queries: Sequence[Query]
) -> list[statements.Measured]:
    """What the server of a node does with the user's statements now."""
    if not queries:
        return []
    account = account_of(ctx.home, record)

    def ask(asked: Sequence[str], seconds: float) -> list[Rows]:
        return ctx.ways.sql_all(account, node.sql_port, asked, timeout=seconds)

    with ctx.progress.step("statements", f"executing the statements on {node.name}"):
        return statements.measure(ask, dialect_of(node.release).limits, queries)


def _promote_another(
    ctx: Context, record: LabRecord, node: Node, new: Image, timeout: float
) -> None:
    """Have another node take the writes, if ``node`` has them and nodes elect.

    One that was upgraded, by an earlier call perhaps, rather than one that was not.
    """
    plan, roles = record.plan, {one.name: one.role for one in lab(ctx, record.name).nodes}
    if not plan.elects or plan.hands_over or roles[node.name] not in plan.writers:
        return
    never = {*plan.writers, *plan.late}
    others = [
        one for one in nodes_of(ctx, record.name) if one.has_server and roles[one.name] not in never
    ]
    others.sort(key=lambda one: (one.image != new.key, -one.index))
    if others:
        promote(ctx, record.name, others[0].name, timeout=timeout)


def _upgraded(
    ctx: Context, record: LabRecord, node: Node, new: Image, label: str, timeout: float
) -> _Findings:
    """Replace the system of ``node``, and have its server upgrade its data; the lock is held."""
    with ctx.progress.step("stop", f"stopping {node.name}"):
        ctx.hypervisor.stop(node.guest, force=False, halt=ctx.progress.halt)
    system.replace_system(ctx, record, node, new, label, timeout)
    record = system.update_lab(ctx, record)
    node = node_of(ctx, record.name, node.name)
    with start_slot(ctx) as give_back:
        power.bring_back(ctx, record, [node], timeout, USUAL, booted=give_back)
    family = family_of(new.engine.name)
    channel = ctx.hypervisor.channel(node.guest)
    rebuild: list[str] | None = None
    if family.upgrade:
        with ctx.progress.step("upgrade", f"upgrading the system tables of {node.name}"):
            printed = channel.run(
                list(family.upgrade), timeout=_UPGRADE_SECONDS, halt=ctx.progress.halt
            ).decode(errors="replace")
        rebuild = [line[:_WIDTH] for line in upgrade_messages.rebuilt_tables(printed)]
    own = upgrade_messages.option_names(record.plan.options.option_file(node.role))
    return _findings(ctx, node, new, rebuild, own)


def _findings(
    ctx: Context, node: Node, new: Image, rebuild: Sequence[str] | None, own: Collection[str]
) -> _Findings:
    """What an upgraded node's server says; ``own``: the options that the user has given it."""
    channel = ctx.hypervisor.channel(node.guest)
    options: tuple[OptionView, ...] | None = None
    log: list[str] | None = None
    transfer: Transfer | None = None
    locked: list[str] | None = None
    partial = set[Partial]()
    with suppress(LabError):
        argv = ["journalctl", "-b", "-o", "cat", "-n", str(_READ), *engine_units(ctx, new.key)]
        text = channel.run(argv, timeout=_SECONDS).decode(errors="replace")
        read = text.splitlines()
        transfer = came_back(read)
        if any(map(_LOGS.search, read)):
            lines = [line for line in read if _TELLS.search(line)]
            options = upgrade_messages.options_in(lines, own)
            log = [line[:_WIDTH] for line in lines if _OURS not in line]
            if len(read) >= _READ:  # what it logged when it started may be before these
                partial |= {"log", "options"} if options else {"log"}
                options = options or None
            partial |= {"log"} if len(log) > _LINES else set()
            partial |= {"options"} if len(options or ()) >= upgrade_messages.MOST_OPTIONS else set()
    with suppress(LabError):
        question = f"{LOCKED_OUT}\n".encode()
        answer = channel.run(["/usr/lib/lab/sql"], stdin=question, timeout=_SECONDS)
        locked = [line[:_WIDTH] for line in answer.decode(errors="replace").splitlines()]
        partial |= {"locked_out"} if len(locked) > _ACCOUNTS else set()
    partial |= {"rebuild"} if len(rebuild or ()) > _LINES else set()
    return _Findings(
        None if log is None else tuple(log[-_LINES:]),
        None if locked is None else tuple(locked[:_ACCOUNTS]),
        None if rebuild is None else tuple(rebuild[:_LINES]),
        options,
        tuple(sorted(partial)),
        transfer,
    )
