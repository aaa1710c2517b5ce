"""``lab run``: a disposable lab around a command."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import REMOVING, app_of, create
from lab.cli.manual import manual
from lab.cli.terminal.child import find, run_child
from lab.cli.terminal.failure import report
from lab.cli.terminal.output import as_json
from lab.cli.verbs import on_failure as failures
from lab.errors import Interrupted, LabError, NotFound
from lab.lifecycle.core.environment import environment
from lab.paths import writing
from lab.views.runs import RunReport

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.spec import LabSpec
    from lab.views.labs import LabView


@manual(
    "lab run pxc -- make test",
    "lab run pxc --on-failure keep=2h -- pytest",
    "lab run galera --nodes 1 -- sh -c 'mysql -u \"$LAB_USER\" < schema.sql'",
    takes_command=True,
)
@flags.expand
def run(
    ctx: typer.Context,
    *,
    cluster: flags.Cluster,
    creation: flags.Creation,
    report_to: Annotated[
        str,
        typer.Option(
            "--report",
            metavar="FILE",
            show_default=False,
            help="Write engine, versions, times and exit code to this file, as JSON.",
        ),
    ] = "",
    on_failure: Annotated[
        str,
        typer.Option(
            "--on-failure", metavar=failures.METAVAR, show_default=False, help=failures.HELP
        ),
    ] = "",
) -> int:
    """Create a lab, run a command with it, then remove the lab.

    The environment of the command has the variables that `lab env` prints. The exit code is the
    command's, 128 + n if signal n ended it. Signals are passed to the command first; the lab is
    removed in any case, unless --on-failure keeps it.
    """
    app = app_of(ctx)
    argv = app.command("lab run pxc -- make test")
    find(argv[0])
    url = app.settings().url
    wanted = failures.parse("--on-failure", on_failure, url=url) if on_failure else None
    spec = flags.wanted(app.settings(), cluster, creation)
    try:
        view = _make(app, spec, creation)
    except LabError as error:
        hint = f" ({error.hint})" if error.hint else ""
        _write(report_to, RunReport(spec.engine, error=f"{error.what}{hint}"))
        raise
    began = time.monotonic()
    code = ended = _with_lab(app, view, argv)
    took = time.monotonic() - began
    try:
        found = RunReport(spec.engine, view.engines, view.image, code, view.seconds, took)
        _write(report_to, found)
    except LabError as error:
        code = code or report(error, app.interrupts, debug=app.debug)
    why = f"{argv[0]} ended with exit code {ended}"
    if wanted and ended and not app.interrupts.came and _kept(app, view.name, wanted, why):
        return code
    removed = _removed(app, view.name)
    return code or removed


def _kept(app: App, name: str, wanted: failures.OnFailure, why: str) -> bool:
    """Do what is wanted with the lab of a command that failed; whether the lab is kept.

    Whatever goes wrong is reported, and the lab is removed. So it is after a signal.
    """
    try:
        with app.interrupts.unshielded(REMOVING), app.open(doing=REMOVING) as session:
            return failures.apply(session, name, wanted, why, _line)
    except KeyboardInterrupt:
        return False
    except Exception as error:  # noqa: BLE001  # the command's exit code must survive it
        report(error, app.interrupts, debug=app.debug)
        return False


def _line(text: str) -> None:
    """On stderr, also with ``--quiet``: it is what was asked for."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def _write(path: str, found: RunReport) -> None:
    """Write a report, if that was requested; raises HostUnfit."""
    if path:
        with writing(Path(path)):
            Path(path).write_text(as_json(found), encoding="utf-8")


def _make(app: App, spec: LabSpec, creation: flags.Creation) -> LabView:
    """The lab; from the return of this on, no signal prevents its removal."""
    from msgspec import structs

    limit = creation.limit
    # A unique name: the lab can be removed even if an interrupt comes after its creation and
    # before its name is returned.
    # That of lab.toml is the name of the lab that `lab up` makes.
    ours, asked = not creation.name, flags.creation_of(spec, creation)
    if ours:
        asked = structs.replace(asked, name=f"run-{secrets.token_hex(4)}", accept_pooled_name=True)
    try:
        with app.open(doing=REMOVING) as session:
            return create(app, session, asked, limit, protect=REMOVING)
    except KeyboardInterrupt:
        if ours and not creation.keep_failed:
            with app.interrupts.shield(REMOVING):
                _removed(app, asked.name)
        raise


def _with_lab(app: App, view: LabView, argv: Sequence[str]) -> int:
    """Run the command; an error is reported here, as the lab is still to be removed."""
    if app.interrupts.came:
        return Interrupted.exit_code  # before the command was started
    try:
        env = {**os.environ, **environment(view)}
        return run_child(argv, app.interrupts, env=env, impatient=True)
    except LabError as error:
        return report(error, app.interrupts, debug=app.debug)


def _removed(app: App, name: str) -> int:
    """Remove the lab and return the exit code of that; 0 if it does not exist any more."""
    from lab.requests.labs import DeleteLab

    try:
        with app.open() as session:
            session.run(DeleteLab(lab=name))
    except NotFound:
        return 0
    except Exception as error:  # noqa: BLE001  # the command's exit code must survive it
        return report(error, app.interrupts, debug=app.debug)
    return 0
