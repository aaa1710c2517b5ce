"""``lab upgrade``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.child import find
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.cli.terminal.upgrade_page import upgrade_page
from lab.errors import HostUnfit, Interrupted, LabError, NotReady
from lab.paths import writing
from lab.texts import printable
from lab.units import counted

if TYPE_CHECKING:
    from lab.cli.backend.session import Session
    from lab.views.upgrades import StatementView, UpgradeView

_EXAMPLE = "lab upgrade shop --to mariadb:11.8 -- ./load.sh"


@manual(
    "lab upgrade shop --to mariadb:11.8",
    "lab upgrade shop --to mariadb:11.8 --node n3",
    "lab upgrade shop --to mariadb:11.8 --branch shop-try    # shop stays as it is",
    "lab upgrade shop --to mariadb:11.8 --statements app.sql --report upgrade.html",
    _EXAMPLE,
    may_take_command=True,
)
def upgrade(
    ctx: typer.Context,
    name: flags.Lab = "",
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ENGINE",
            show_default=False,
            help="The engine, with its series, as `lab engine ls` lists them.",
        ),
    ],
    node: flags.Node = "",
    branch: Annotated[
        str,
        typer.Option(
            "--branch",
            metavar="NAME",
            show_default=False,
            help="Upgrade a branch of the lab, of that name, instead of the lab.",
        ),
    ] = "",
    keep_failed: Annotated[
        bool,
        typer.Option(
            "--keep-failed", help="If a step fails, leave the lab as it is then: no rollback."
        ),
    ] = False,
    statements: Annotated[
        str,
        typer.Option(
            "--statements",
            metavar="FILE",
            show_default=False,
            help="SELECT statements, which are explained and timed before and after.",
        ),
    ] = "",
    report: Annotated[
        str,
        typer.Option(
            "--report",
            metavar="FILE",
            show_default=False,
            help="Write the report to this file too, as HTML.",
        ),
    ] = "",
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Upgrade the servers of a lab, one after the other.

    They become those of another series, or of another build.

    A snapshot is taken before each node (`before-n2`), to which a step that fails goes back. Rows
    are written to the lab meanwhile, in a database of their own, and verified at the end.

    CMD runs on this host from before the first step until after the last one, with the variables
    that `lab env` prints; it is ended then. The exit code is not CMD's, which the report has.
    """
    from lab.datasets.queries import read
    from lab.requests.labs import BranchLab, UpgradeLab

    app = app_of(ctx)
    how, workload = parse_format(output), tuple[str, ...]()
    if app.after_dashes is not None:
        workload = app.command(_EXAMPLE)
        find(workload[0])
    if report and not _may_write(Path(report)):
        raise HostUnfit(
            f"{report} cannot be written", hint="give --report a file in a directory of yours"
        )
    queries = read(Path(statements)) if statements else ""
    limit = flags.timeout(timeout, 0.0) if timeout else None
    ours = "--statements" if queries else "a command" if workload else ""
    here = partial(app.open_here, f"{ours} is for an upgrade by the host of the labs")
    with here() if ours else app.open() as session:
        lab = pick(session, name)
        if branch:
            lab = session.run(BranchLab(lab=lab, name=branch), timeout=limit)[0].name
        app.if_interrupted(f"`lab start {lab}` puts back the node whose upgrade was interrupted")
        only = flags.maybe_node(node) or ""
        asked = UpgradeLab(
            lab=lab, to=to, node=only, keep_failed=keep_failed, workload=workload,
            statements=queries,
        )  # fmt: skip
        try:
            view = session.run(asked, timeout=limit)
        except LabError as error:
            if branch:
                _remove(session, lab, error)
            raise
    emit(view, how, table=lambda: _text(view), names=lambda: [view.lab])
    if report:
        with writing(Path(report)):
            Path(report).write_text(upgrade_page(view), encoding="utf-8")
    if view.failure is not None:
        raise view.failure


def _remove(session: Session, branch: str, error: LabError) -> None:
    """Remove a branch whose upgrade ended with ``error`` before its first step.

    Each step takes a snapshot first. One that was interrupted, or that a service still works on,
    is left.
    """
    from lab.requests.labs import DeleteLab

    if isinstance(error, Interrupted) or (isinstance(error, NotReady) and error.begun):
        return
    try:
        if not any(one.name.startswith("before-") for one in session.snapshots(branch)):
            session.run(DeleteLab(lab=branch))
    except LabError as failed:
        left = f"the branch {branch} is left ({failed}): `lab down {branch}` removes it"
        error.hint = "; ".join(filter(None, (error.hint, left)))


def _may_write(path: Path) -> bool:
    if path.exists():
        return not path.is_dir() and os.access(path, os.W_OK)
    return os.access(path.absolute().parent, os.W_OK | os.X_OK)


def _text(view: UpgradeView) -> str:
    rows = table(
        ("NODE", "BEFORE", "AFTER", "STATE", "TIME", "NO WRITES FOR", "SNAPSHOT"),
        [
            (
                step.node,
                step.before or "-",
                step.after or "-",
                step.state,
                f"{step.seconds:.1f} s",
                f"{step.outage:.1f} s",
                step.snapshot,
            )
            for step in view.steps
        ],
        right={4, 5},
    )
    written = counted(view.written, "row")
    lost = "unknown how many" if view.lost is None else view.lost
    lines = [f"writes: {written} acknowledged, {lost} lost, {view.refused} refused"]
    lines += [f"not looked for on {one}" for one in view.unchecked]
    lines += [f"known before the first step: {one}" for one in view.foreseen]
    for step in view.steps:
        silent = [f"{name} {seconds:.1f} s" for name, seconds in step.unanswered.items()]
        lines.append(f"{step.node}: longest without an answer: {', '.join(silent)}")
        lines += [
            f"{step.node}: replication from {one.source} to {one.target}: {one.said}"
            for one in step.replicated or ()
            if one.slow
        ]
        lines += [f"{step.node}: {one}" for one in step.cluster]
        for what, found in (
            ("cannot log in", step.locked_out),
            ("rebuild", step.rebuild),
            ("option", [f"{one.name}: {one.state}: {one.said}" for one in step.options or ()]),
            ("log", step.log),
        ):
            lines += [f"{step.node}: {what}: {one}" for one in found or ()]
        gaps = {"there may be more": step.incomplete, "unknown": step.unknown}
        lines += [f"{step.node}: {how}: {', '.join(what)}" for how, what in gaps.items() if what]
        if step.compared or step.statements != ():
            lines.append(f"{step.node}: {step.summary}")
        for one in step.statements or ():
            lines += [f"{step.node}: {line}" for line in _statement(one)]
    if view.workload is not None:
        how = "ended by itself after" if view.workload.by_itself else "ran to the end,"
        took, code = view.workload.seconds, view.workload.code
        lines.append(f"workload: {how} {took:.1f} s, exit code {code}")
        lines += [f"workload: {one}" for one in view.workload.output]
    if view.changed is None:
        lines.append("changed: unknown, as there are no checksums of before and after")
    elif view.changed:
        lines.append(f"changed: {', '.join(view.changed)}")
    return rows + "".join(f"{printable(line)}\n" for line in lines)  # guests wrote some of it


def _statement(one: StatementView) -> list[str]:
    lines = [f"statement {one.number}: {', '.join(one.differs)}: {one.text}"]
    if one.error:
        return [*lines, f"  {one.error}"]
    for when, plan, seconds, read in (
        ("before", one.plan_before, one.seconds_before, one.read_before),
        ("after", one.plan_after, one.seconds_after, one.read_after),
    ):
        lines += [f"  {when}: {seconds * 1000:.1f} ms, {read} rows read; {'; '.join(plan)}"]
    return lines
