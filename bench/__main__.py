"""``make bench``: measure, print the table, and leave nothing behind."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from bench import (
    against,
    asleep,
    captures,
    datasets,
    engines,
    firmware,
    fleet,
    growth,
    machine,
    measure,
    other_host,
    readers,
    report,
    resets,
    service,
    topologies,
)
from bench import load as load_
from bench.figures import Figure, Results, Target, ratio
from bench.labs import ROOT, Failed, Home, awake, scratch_home
from bench.measure import FULL, QUICK, Log, Runs
from lab import host
from lab.paths import default_root

PAGE = ROOT / "docs" / "benchmarks.md"
PREFACE = """\
# Benchmarks

`make bench` prints this page's tables for your machine: it builds an image, forms clusters and
clones them in a scratch home that it removes afterwards, in some hours on two cores; a part in
minutes. `.venv/bin/python -m bench --quick` takes fewer runs, `--only captures` measures one
part, `--json FILE` keeps all samples, `--write` renders this page, or the parts of it that were
measured, `--against CHECKOUT` compares with another checkout in turns.
If sysbench is installed, memory and disk use are measured again after a minute of
`oltp_read_write` on all nodes. Targets are for two cores without KVM; figures are medians. A
connection to libvirt is kept open during the benchmark: systemd would otherwise stop libvirtd
between two labs, and the next lab would wait for its start. Parts name the commit and the
processors that they were measured with: machines differ by a factor of two.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked for; 0 unless something failed. Misses of targets are no failure."""
    arguments = _parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with awake(), scratch_home(arguments.scratch) as home:
            if arguments.against:
                with scratch_home(arguments.scratch, arguments.against) as other:
                    rows = against.against(other, home, 5 if arguments.quick else 15, Log(_say))
                    sys.stdout.write(against.text(rows, other, home))
                return 0
            runs = QUICK if arguments.quick else FULL
            measured = {}
            for part in arguments.only or report.TITLES:
                # One for each part: what one has recorded there, the next would find.
                with scratch_home(arguments.scratch) as other:
                    measured[report.TITLES[part]] = run(part, home, other, runs)
    except KeyboardInterrupt:
        _say("interrupted; everything is removed")
        return 130
    except Failed as error:
        _say(f"error: {error}")
        return 1
    sys.stdout.write("\n".join(report.text(results) for results in measured.values()))
    if arguments.json:
        arguments.json.write_text(report.as_json(measured), encoding="utf-8")
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(report.page(PREFACE, measured, old), encoding="utf-8")
    return 1 if any(results.failures for results in measured.values()) else 0


def run(part: str, home: Home, other: Home, runs: Runs) -> Results:
    """Measure a part. ``other``: a second scratch home."""
    log, load = Log(_say), os.getloadavg()
    facts = machine.here(home.run("doctor", "-o", "json").value, load)
    caution = machine.caution(load[0], host.processors())
    if caution:
        _say(f"note: {caution}")
    kinds: dict[str, dict[str, list[float]]] = {}
    figures = _PARTS[part](home, other, runs, log, kinds)
    facts["engine"] = measure.engine(home)
    known = {kind: found for kind, found in kinds.items() if found}
    return Results(facts, figures, known, log.failures, caution)


def _labs(
    home: Home, other: Home, runs: Runs, log: Log, kinds: dict[str, dict[str, list[float]]]
) -> list[Figure]:
    """Images, labs and the service; ``kinds`` gets where the time of a start goes."""
    image = measure.image(home, runs.image, log)
    cold = measure.cold(home, runs.cold, log)
    warm, down, kinds["warm"] = measure.warm(home, runs.warm, log)
    figures = [
        warm,
        ratio("cold to warm", cold, warm, Target(25, 60, at_least=True)),
        cold,
        image,
        down,
        *measure.footprint(home, runs.memory, log),
        *_under_load(home, runs, log),
        *service.over_http(home, runs.service, log),
        service.clients(home, log),
        *service.pipelines(home, runs.pipelines, log),
        measure.listing(other, runs.ls, log),
        measure.at_once(home, runs.at_once, log),
    ]
    clones, kinds["cold"] = firmware.cold_clones(home, runs.firmware, log)
    return [*figures, clones]


_Measure = Callable[[Home, Home, Runs, Log, dict[str, dict[str, list[float]]]], list[Figure]]
_PARTS: dict[str, _Measure] = {
    "labs": _labs,
    "captures": lambda home, _, runs, log, __: [
        *captures.captures(home, runs.captures, log),
        *captures.resets(home, log),
    ],
    "resets": lambda home, _, runs, log, __: resets.resets(home, runs.resets, log),
    "asleep": lambda home, _, runs, log, __: asleep.measured(home, runs.wakes, log),
    "datasets": lambda home, _, runs, log, __: datasets.datasets(
        home, runs.datasets, runs.megabytes, log
    ),
    "topologies": lambda home, _, runs, log, __: topologies.topologies(home, runs.topologies, log),
    "engines": lambda home, _, runs, log, __: engines.warm(home, runs.engines, log),
    "mysql": lambda home, _, runs, log, __: engines.of_mysql(home, runs.megabytes, log),
    "mysql-labs": lambda home, _, runs, log, __: engines.with_data(
        home, runs.engines, runs.megabytes, log
    ),
    "upgrades": lambda home, _, __, log, ___: engines.upgrades(home, log),
    "growth": lambda home, _, runs, log, __: growth.growth(home, runs.growth, log),
    "fleet": lambda home, other, runs, log, _: [
        *other_host.through(home, other, runs.service, log),
        *fleet.simulated(runs.fleet, log),
    ],
    "readers": lambda home, other, runs, log, _: readers.readers(
        home, other, runs.readers, runs.polled, log
    ),
}


def _under_load(home: Home, runs: Runs, log: Log) -> list[Figure]:
    program = load_.sysbench()
    if not program:
        _say("sysbench is not installed: memory and disk use are measured for idle labs only")
        return []
    return load_.under_load(home, runs.load, log, measure.UP, program)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(report.TITLES),
        help="measure this part alone; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument(
        "--write", action="store_true", help=f"render these parts of {PAGE.relative_to(ROOT)}"
    )
    parser.add_argument(
        "--against",
        type=lambda text: Path(text).resolve(),
        metavar="CHECKOUT",
        help="only compare with another checkout of lab that has its .venv, in turns",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        default=default_root().parent,
        help="where the scratch homes are made (default: %(default)s)",
    )
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
