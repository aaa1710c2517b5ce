"""``lab up --matrix``: one command with a lab of each of several engines."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lab.cli import flags
from lab.cli.flags import added_here
from lab.cli.terminal.child import find, run_several
from lab.cli.terminal.output import Format, emit
from lab.cli.terminal.show import seconds_or_dash
from lab.cli.terminal.table import table
from lab.errors import Interrupted, InvalidSpec
from lab.views.runs import RunReport

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.config.settings import Settings
    from lab.spec import LabSpec

_EXAMPLE = "lab up --matrix mariadb:11.8,mysql:9.7 -- make test"
_BLUEPRINT = "single"
"""Which runs on all families but Percona XtraDB Cluster."""
_NOT_WITH = ("engine", "image", "node", "name")
_MAIN = "import sys; sys.path[:] = {!r}; from lab.cli import program; program()"
"""This program again: not the directory ``lab`` that the working directory may have."""


def matrix(
    app: App, cluster: flags.Cluster, creation: flags.Creation, engines: str, how: Format
) -> int:
    """Run the command with a lab of each engine, and print a table; see ``lab up``.

    The exit code is that of the first engine, in their order, with which it is not 0.
    """
    argv, names = app.command(_EXAMPLE), flags.engine_list("--matrix", engines)
    find(argv[0])
    given = {**vars(cluster), "name": creation.name}
    for flag in _NOT_WITH:
        if given[flag]:
            raise InvalidSpec(
                f"--matrix and --{flag} exclude each other",
                hint="the engines are those of --matrix, and each lab has a name of its own",
            )
    settings = app.settings()
    spec = flags.wanted(settings, _with_blueprint(cluster), creation)
    specs = _specs(settings, spec, names)
    with tempfile.TemporaryDirectory(prefix="lab-matrix-") as directory:
        files = {name: Path(directory) / str(at) for at, name in enumerate(specs)}
        commands = [
            [*_lab(app), "run", *flags.words(_of(cluster, one)), *flags.words(creation),
             "--report", str(files[name]), "--", *argv]
            for name, one in specs.items()
        ]  # fmt: skip
        codes = run_several(
            commands, app.interrupts, at_once=_at_once(settings, spec, len(specs)),
            hear=_printer(list(specs)),
        )  # fmt: skip
        ended = dict(zip(specs, codes, strict=True))
        found = [_report(name, files[name], code) for name, code in ended.items()]
    emit(found, how, table=lambda: _text(found), names=lambda: names)
    if app.interrupts.came:
        return Interrupted.exit_code
    return next(filter(None, codes), 0)


def _with_blueprint(cluster: flags.Cluster) -> flags.Cluster:
    from lab.config import labfile

    others = set(labfile.KEYS) - {"blueprint"}
    known = cluster.blueprint or labfile.read(labfile.here(), others).get("blueprint")
    return cluster if known else replace(cluster, blueprint=_BLUEPRINT)


def _specs(settings: Settings, spec: LabSpec, names: Sequence[str]) -> dict[str, LabSpec]:
    """The labs, by engine; raises InvalidSpec."""
    from lab.blueprints import planned

    there = added_here(settings)
    if there is not None:
        planned(spec, there)
    return {name: flags.on_engine(spec, name, there) for name in names}


def _at_once(settings: Settings, spec: LabSpec, wanted: int) -> int:
    """How many labs there may be at the same time: as many as fit into this host's memory.

    A service elsewhere decides by itself.
    """
    from lab import host
    from lab.blueprints import planned

    there = added_here(settings)
    if there is None or not wanted:
        return max(1, wanted)
    each = sum(node.size.memory for node in planned(spec, there))
    free = host.memory().available - settings.memory_floor
    return max(1, min(wanted, free // each))


def _lab(app: App) -> list[str]:
    """The words for this program, with the global flags that were given."""
    found = [sys.executable, "-c", _MAIN.format([one for one in sys.path if one])]
    found += ["--home", app.home] if app.home else []
    found += ["--remote", app.remote] if app.remote else []
    return found + ["--debug"] * app.debug + ["--quiet"] * app.quiet


def _of(cluster: flags.Cluster, spec: LabSpec) -> flags.Cluster:
    """The flags of one of the labs."""
    return replace(cluster, blueprint=spec.blueprint, engine=spec.engine, dataset=spec.dataset)


def _printer(names: Sequence[str]) -> Callable[[int, str], None]:
    """What prints lines on stderr, each with the engine that it is about: stdout has the table."""
    lock, width = threading.Lock(), max(map(len, names), default=0)

    def hear(number: int, line: str) -> None:
        with lock, contextlib.suppress(OSError):
            sys.stderr.write(f"{names[number]:<{width}} | {line}\n")
            sys.stderr.flush()

    return hear


def _report(name: str, path: Path, code: int | None) -> RunReport:
    """What `lab run` has reported, which ended with ``code``; None: it was not started."""
    import msgspec

    if code is None or not path.exists():
        why = "interrupted" if code in (None, Interrupted.exit_code) else f"lab run: status {code}"
        return RunReport(name, error=why)
    found = msgspec.json.decode(path.read_bytes(), type=RunReport)
    if code and found.code == 0:
        found = replace(found, error=f"the lab was not removed: status {code}")
    return replace(found, engine=name)


def _text(found: Sequence[RunReport]) -> str:
    rows = [
        (
            one.engine,
            ", ".join(one.servers) or "-",
            _result(one),
            seconds_or_dash(one.ready_seconds or 0.0),
            seconds_or_dash(one.seconds or 0.0),
        )
        for one in found
    ]
    reasons = "".join(f"{one.engine}: {one.error}\n" for one in found if one.error)
    return table(("ENGINE", "SERVER", "RESULT", "READY", "COMMAND"), rows, right={3, 4}) + reasons


def _result(report: RunReport) -> str:
    if report.code is None:
        return "not run"
    return "ok" if report.code == 0 else f"exit {report.code}"
