#!/usr/bin/env python3
"""What ``make test`` and ``make test-all`` run: every part of the tests, and one summary of all.

The parts are the tests that need no guest (``unit``, in several processes), the tests on real
ZFS (``zfs``, in a guest where this host has none), the tests on real guests (``e2e``), and those
of captures once more on the QEMU of another Debian release (``qemu``, with ``make test-all`` only).
An emulated guest with ZFS keeps one core busy, which tests on real guests leave idle half of the
time: it runs in the background of these. It is built before, in the background of ``unit``.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from testvm import host  # noqa: E402
from testvm.beside import Beside  # noqa: E402
from testvm.release import RELEASES, find  # noqa: E402

RESULTS = ROOT / "build" / "test"
"""Where the parts' reports stay: ``unit.xml``, ``e2e.xml``, ``qemu.xml`` (JUnit), ``zfs.log``.

``unit.left-out`` and so on have the number of rare tests left out, ``durations.txt`` the tests
that took longest.
"""
PARTS = ("unit", "zfs", "e2e", "qemu")
QEMU = "trixie"
"""The release whose QEMU the part ``qemu`` runs on."""
ON_QEMU = (
    "tests/contract/test_hypervisor_libvirt.py", "tests/e2e/test_captures.py",
    "tests/e2e/test_restore.py", "tests/e2e/test_served.py",
)  # fmt: skip
"""The tests that depend on the version of QEMU."""
PLATFORM = "tests/platform"
_UNIT = ("unit", "contract", "service", "browser", "project", "security", "fuzz")
UNIT = [f"tests/{name}" for name in _UNIT]
"""The tests that need no guest."""
NO_TESTS = 5
"""pytest's exit status if no test was selected."""
INTERRUPTED = 2
"""And if it was interrupted."""
ALL_ON_ZFS = 10800.0
"""Seconds that all tests on ZFS may take for one release."""
CLEAN_UP = 120.0
"""Seconds that an interrupted part has to remove what it made, and report."""
SLOWEST = ("--durations=20", "--durations-min=1")
"""What each part prints, the only report of a guest with ZFS."""
REASON = 200
"""Characters of the reason of a failure in the summary."""
KEPT = 50
"""Tests in ``durations.txt``."""
LEFT_OUT = re.compile(r"left for `make test-all`: (\d+)")

_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*)$", re.M)
_DURATION = re.compile(r"^(\d+\.\d+)s (setup|call|teardown) +(\S.*)$", re.M)
_SUMMARY = re.compile(
    r"^=+ .*(?:passed|failed|error|skipped|no tests ran).* in [\d.]+s.* =+$", re.M
)


@dataclass
class Result:
    """How a part ended.

    ``skipped``: how many tests for each reason; ``counts``: by outcome; ``durations``: seconds and
    name of each test; in a guest with ZFS those of the longest, each phase by itself.
    """

    part: str
    status: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    durations: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """A line for each test that failed: its name, and why."""

    @property
    def line(self) -> str:
        """It in one line."""
        parts = [f"{count} {outcome}" for outcome, count in self.counts.items() if count]
        parts += [f"{self.left_out} left out"] if self.left_out else []
        failed = f", exit status {self.status}" if self.status else ""
        return f"  {self.part:5} {', '.join(parts) or 'no tests'} in {self.seconds:.0f} s{failed}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts that the command line names; the first exit status that is not 0.

    That of pytest without tests if no part had any, as with a ``-k`` that is misspelt.
    """
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, _interrupted)
    # Each command that a test starts would compile the program again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen = Options.parse(options.words, everything=options.all, releases=options.releases)
    began = time.monotonic()
    results = run_parts(options.only or PARTS, chosen, timeout=options.timeout)
    (RESULTS / "durations.txt").write_text(longest(results))
    _say(summary(results, chosen, seconds=time.monotonic() - began))
    return status_of(results)


def status_of(results: Sequence[Result]) -> int:
    """The exit status of all parts."""
    selected = any(result.counts or result.skipped for result in results)
    good = 0 if selected else NO_TESTS
    return next((result.status for result in results if result.status), good)


@dataclass(frozen=True)
class Options:
    """The request. ``mark``: an expression of markers; ``words``: options of pytest."""

    everything: bool
    mark: str
    releases: str
    words: Sequence[str]

    @staticmethod
    def parse(words: Sequence[str], *, everything: bool = False, releases: str = "") -> Options:
        """Options with the last ``-m EXPRESSION`` taken out of pytest's ``words``."""
        rest, mark = list(words), ""
        while "-m" in rest[:-1]:
            at = rest.index("-m")
            mark = rest[at + 1]
            del rest[at : at + 2]
        return Options(everything, mark, releases, rest)

    def marks(self, *more: str) -> list[str]:
        """Options of pytest that select by markers."""
        wanted = [*more, *([f"({self.mark})"] if self.mark else [])]
        tier = [] if self.everything else ["--no-rare"]
        return [*tier, *(["-m", " and ".join(wanted)] if wanted else [])]

    def split(self) -> tuple[list[str], list[str], list[str]]:
        """Paths of platform tests, paths of other tests, and what is no path of a test."""
        platform, others, rest = [], [], []
        for word in self.words:
            path = Path(word.split("::")[0])
            if word.startswith("-") or not (ROOT / path).exists():
                rest.append(word)
            elif path.as_posix().startswith(PLATFORM):
                platform.append(word)
            else:
                others.append(word)
        return platform, others, rest

    @property
    def needs_guests(self) -> bool:
        """Whether the tests on ZFS need guests, for this host has none, or not the one wanted."""
        return bool(self.releases or host.why_not())

    @property
    def suites(self) -> str:
        """The releases in whose guests the tests on ZFS run; empty: all, or on this host."""
        if self.releases or self.everything or not host.why_not():
            return self.releases
        return RELEASES[-1].suite


def command(part: str, options: Options) -> list[str]:
    """The command that runs a part, empty if no test of it is selected."""
    platform, others, rest = options.split()
    if part == "zfs":
        if others and not platform:
            return []
        argv = [sys.executable, "-m", "testvm", "test", "--releases", options.suites]
        # All of them beside two other guests: they share two cores.
        argv += ["--timeout", f"{ALL_ON_ZFS:g}"] if options.everything else []
        return [*argv, "--", *SLOWEST, *options.marks(), *platform, *rest]
    if platform and not others:
        return []
    reports = [f"--junitxml={RESULTS / part}.xml", f"--left-out={RESULTS / part}.left-out"]
    argv = [sys.executable, "-m", "pytest", *reports, *SLOWEST]
    if part == "unit":
        # Two more than processors: a third of the time tests wait, for what they started.
        argv += ["-n", str(len(os.sched_getaffinity(0)) + 2), "--dist", "loadfile"]
        argv += ["--no-loadscope-reorder"] if options.everything else []
        return [
            *argv,
            *options.marks("not e2e"),
            *(others or UNIT),
            *rest,
        ]
    if part == "qemu":
        its = [word for word in others or ON_QEMU if word.split("::")[0] in ON_QEMU]
        there = [sys.executable, "-m", "tests.support.qemu_host", QEMU, "--", *argv]
        wanted = its and options.everything and os.geteuid() == 0
        return [*there, *options.marks("e2e"), *its, *rest] if wanted else []
    ignored = [f"--ignore={PLATFORM}"]
    return [*argv, *ignored, *options.marks("e2e"), *(others or ["tests"]), *rest]


def run_parts(parts: Iterable[str], options: Options, *, timeout: float) -> list[Result]:
    """Run ``parts``, the one on ZFS beside those on real guests; ``timeout``: seconds for all."""
    parts, end = set(parts), time.monotonic() + timeout
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.iterdir():
        old.unlink()
    zfs = command("zfs", options) if "zfs" in parts else []
    image = None
    if zfs and options.needs_guests:
        build = [sys.executable, "-m", "testvm", "build", "--releases", options.suites]
        image = Beside(build, timeout=timeout)
    results, stopped = run_each({"unit"} & parts, options, end)
    behind = None
    if zfs and not stopped:
        behind = Beside(zfs, timeout=max(1.0, end - time.monotonic())), time.monotonic()
        _say("tests: those on real ZFS run in the background; their output follows at the end")
    if not stopped:
        more, stopped = run_each(parts - {"unit"}, options, end)
        results += more
    if behind:
        results.append(end_behind(image, *behind, interrupted=stopped))
    return results


def run_each(parts: Container[str], options: Options, end: float) -> tuple[list[Result], bool]:
    """Run ``parts`` one after the other, until the moment ``end``; whether all is to end now."""
    results: list[Result] = []
    for part in ("unit", "e2e", "qemu"):
        if part in parts and (argv := command(part, options)):
            began = time.monotonic()
            status = run_one(argv, end - time.monotonic())
            report = RESULTS / f"{part}.xml"
            results.append(read(part, status, time.monotonic() - began, report))
            if status == INTERRUPTED or (status != 0 and "-x" in options.words):
                return results, True
    return results, False


def run_one(argv: Sequence[str], seconds: float) -> int:
    """Run one pytest; an interrupt, or the end of its time, reaches it once."""
    own = ["setpriv", "--pdeathsig", "INT", *argv]
    with subprocess.Popen(own, cwd=ROOT, preexec_fn=_alone) as process:  # noqa: PLW1509
        try:
            status = process.wait(max(1.0, seconds))
            # Not by us: a file could not be collected, or -x stopped several processes.
            return 1 if status == INTERRUPTED else status
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(CLEAN_UP)
            except subprocess.TimeoutExpired:
                process.kill()
            return INTERRUPTED


def _alone() -> None:
    # A process group of its own: Ctrl-C would reach it and its workers by itself, and by us.
    os.setpgrp()
    # After `nohup make test &` these are ignored: it could not be interrupted, nor test signals.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def end_behind(image: Beside | None, behind: Beside, began: float, *, interrupted: bool) -> Result:
    """What ran in the background, ended; ``interrupted``: it is not waited for.

    ``image``: what built the guest before. If it failed, so did the tests, with the reason.
    """
    out, built = io.BytesIO(), io.BytesIO()
    try:
        if image and not interrupted and image.end(built) == 0:
            out.write(built.getvalue())
        waits = not interrupted or behind.ended
        status = behind.end(out) if waits else INTERRUPTED  # it ends with us
    except KeyboardInterrupt:
        status = INTERRUPTED
    text = out.getvalue().decode(errors="replace")
    (RESULTS / "zfs.log").write_text(text)
    _say(text)
    return read_text(text, status, time.monotonic() - began)


def read_text(text: str, status: int, seconds: float) -> Result:
    """The result of the part on ZFS, from its output: no file is copied out of a guest."""
    result = Result("zfs", status, seconds)
    for line in _SUMMARY.findall(text):
        for count, outcome in _COUNTS.findall(line):
            result.counts[outcome.rstrip("s") if outcome == "errors" else outcome] += int(count)
    for reason in re.findall(r"^test-zfs: (\w+: skipped because .*)$", text, re.M):
        result.skipped[reason] += 1
    for count, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+ (.*)$", text, re.M):
        result.skipped[reason] += int(count)
    for seconds_, phase, test in _DURATION.findall(text):
        result.durations.append((float(seconds_), f"{test} ({phase})"))
    result.failures = [line[: 2 * REASON] for line in _FAILED.findall(text)]
    result.left_out = sum(int(count) for count in LEFT_OUT.findall(text))
    return result


def read(part: str, status: int, seconds: float, path: Path) -> Result:
    """The result of a part that wrote a JUnit report to ``path``."""
    result = Result(part, 0 if status == NO_TESTS else status, seconds)
    try:
        root = ET.parse(path).getroot()  # noqa: S314  written by pytest, a moment ago
    except (OSError, ET.ParseError):
        # It did not come to its end, whatever its status is: a test may have called os._exit.
        result.status = status or 1
        return result
    outcomes = {"failure": "failed", "error": "error", "skipped": "skipped"}
    for case in root.iter("testcase"):
        found = next((child for child in case if child.tag in outcomes), None)
        result.counts["passed" if found is None else outcomes[found.tag]] += 1
        result.durations.append((float(case.get("time", "0")), _nodeid(case)))
        if found is not None and found.tag == "skipped":
            result.skipped[found.get("message", "")] += 1
        elif found is not None:
            why = " ".join(found.get("message", "").split())
            result.failures.append(f"{_nodeid(case)}: {why[:REASON]}")
    left_out = path.with_suffix(".left-out")
    result.left_out = int(left_out.read_text()) if left_out.exists() else 0
    return result


def _nodeid(case: ET.Element) -> str:
    names = case.get("classname", "").split(".")
    classes = [name for name in names if name[:1].isupper()]
    path = "/".join(names[: len(names) - len(classes)])
    return "::".join([f"{path}.py", *classes, case.get("name", "")])


def longest(results: Iterable[Result]) -> str:
    """The tests that took longest, a line each."""
    all_ = [(*duration, result.part) for result in results for duration in result.durations]
    ranked = sorted(all_, reverse=True)[:KEPT]
    return "".join(f"{seconds:8.2f} s  {part:5} {test}\n" for seconds, test, part in ranked)


def summary(results: Sequence[Result], options: Options, *, seconds: float) -> str:
    """The whole result, whose last line has the form of pytest's."""
    tier = "all tests (`make test-all`)" if options.everything else "per push (`make test`)"
    lines = ["", f"tests: {tier}; reports and logs: {RESULTS}"]
    lines += [result.line for result in results]
    # Of a long log often only the end is kept.
    lines += [f"failed: {failure}" for result in results for failure in result.failures]
    left_out = sum(result.left_out for result in results)
    if not options.everything:
        older = [
            r.zfs for r in RELEASES if r not in (find(options.suites) if options.suites else ())
        ]
        named = f", and OpenZFS {', '.join(older)}" if options.suites and older else ""
        lines.append(f"left for `make test-all`: {left_out} tests marked `rare` (above){named}")
    skipped: Counter[str] = Counter()
    for result in results:
        skipped += result.skipped
    lines += [f"skipped: {count} x {reason}" for reason, count in sorted(skipped.items())]
    total: Counter[str] = Counter()
    for result in results:
        total += result.counts
        if result.status not in (0, INTERRUPTED) and not result.counts["failed"]:
            total["error"] += not result.counts["error"]  # such as a guest that does not boot
    order = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
    sums = ", ".join(f"{total[outcome]} {outcome}" for outcome in order if total[outcome])
    interrupted = any(result.status == INTERRUPTED for result in results)
    words = f" {sums or 'no tests ran'}{', interrupted' if interrupted else ''} in {seconds:.2f}s "
    return "\n".join([*lines, words.center(80, "=")])


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the tests marked `rare` as well")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part of the tests")
    parser.add_argument("--releases", default="", metavar="SUITES", help="guests with ZFS")
    parser.add_argument("--timeout", type=float, default=86400.0, metavar="SECONDS")
    parser.add_argument("words", nargs="*", metavar="PYTEST", help="for pytest; after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
