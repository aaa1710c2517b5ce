"""What `make test` selects, and how it sums up."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests import suite
from tests.suite import ROOT, Options, Result
from testvm.beside import Beside

SAMPLE = """
import pytest

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.rare)])
def test_one(case): pass

@pytest.mark.rare
def test_rare(): pass

def test_skipped(): pytest.skip("needs a moon")

class TestMore:
    def test_failing(self): assert False
"""
MARKS = "[pytest]\nmarkers =\n    rare\n"


def selection(argv: list[str]) -> tuple[str, bool]:
    """The expression of markers in a command, and whether rare tests are left out."""
    return argv[argv.index("-m", 3) + 1] if "-m" in argv[3:] else "", "--no-rare" in argv


@pytest.mark.parametrize(
    ("words", "everything", "unit", "zfs"),
    [
        ([], False, "not e2e", ""),
        ([], True, "not e2e", ""),
        (["-x", "-m", "a or b"], False, "not e2e and (a or b)", "(a or b)"),
    ],
)
def test_the_tier_selects(words: list[str], everything: bool, unit: str, zfs: str) -> None:
    """Protects the two tiers: an expression of one's own narrows them, and does not widen them."""
    options = Options.parse(words, everything=everything)
    assert selection(suite.command("unit", options)) == (unit, not everything)
    assert selection(suite.command("zfs", options)) == (zfs, not everything)
    assert ("-x" in suite.command("e2e", options)) == ("-x" in words)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("tests/platform/test_guest.py", {"zfs"}),
        ("tests/project/test_suite.py::test_the_tier_selects", {"unit", "e2e"}),
        ("--lf", {"unit", "zfs", "e2e"}),
    ],
)
def test_named_tests_run_where_they_belong(path: str, parts: set[str]) -> None:
    """A test file that is named runs in its own part, not in a guest without its requirements."""
    options = Options.parse([path])
    assert {part for part in suite.PARTS if path in suite.command(part, options)} == parts


def test_captures_run_on_another_qemu_with_all_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects hosts of the newer release: what is only run on this host's QEMU is not known there.

    Only root can put another QEMU in the place of the host's.
    """
    files = list(suite.ON_QEMU)
    assert all((ROOT / path).is_file() for path in files)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert suite.command("qemu", Options.parse([])) == []
    argv = suite.command("qemu", Options.parse(["-x"], everything=True))
    assert argv[:5] == [sys.executable, "-m", "tests.support.qemu_host", "trixie", "--"]
    assert (argv[-5:-1], argv[-1]) == (files, "-x")
    named = suite.command("qemu", Options.parse([f"{files[1]}::test_it"], everything=True))
    assert named[-1] == f"{files[1]}::test_it"
    assert files[0] not in named
    other = Options.parse(["tests/e2e/test_dr.py"], everything=True)
    assert suite.command("qemu", other) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert suite.command("qemu", Options.parse([], everything=True)) == []


def ran(argv: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Pytest with a copy of our conftest.py, which imports what the tests share."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, check=False)


@pytest.mark.rare
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_report_covers_all_tests(tmp_path: Path, workers: str) -> None:
    """Protects the sum: what passed, what failed, what was skipped and why, what was left out."""
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "pytest.ini").write_text(MARKS)
    report = tmp_path / "unit.xml"
    argv = [sys.executable, "-m", "pytest", f"--junitxml={report}", "--no-rare", "-n", workers]
    done = ran([*argv, f"--left-out={tmp_path / 'unit.left-out'}"], tmp_path)
    assert "   1 test_sample.py::test_one\n   1 test_sample.py::test_rare\n" in done.stdout
    found = suite.read("unit", done.returncode, 1.0, report)
    assert found.counts == {"passed": 1, "failed": 1, "skipped": 1}
    assert found.skipped == {"needs a moon": 1}
    assert (found.status, found.left_out) == (1, 2)
    assert {test for _, test in found.durations} == {
        "test_sample.py::test_one[1]", "test_sample.py::test_skipped",
        "test_sample.py::TestMore::test_failing",
    }  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        (["--no-rare", "-k", "one"], 1),
        (["--no-rare", "-k", "typo"], 0),
        (["-k", "one"], 0),
        (["--no-rare", "-m", "e2e"], 0),
        (["--no-rare", "-m", "not e2e"], 2),
    ],
)
def test_only_what_is_rare_and_asked_for_is_left_out(
    tmp_path: Path, words: list[str], left_out: int
) -> None:
    """Protects the summary: what `-k` or another part's mark deselects was not left out."""
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "pytest.ini").write_text(MARKS + "    e2e\n")
    report = tmp_path / "unit.xml"
    argv = [sys.executable, "-m", "pytest", f"--junitxml={report}", *words, "-n", "0"]
    done = ran([*argv, f"--left-out={tmp_path / 'unit.left-out'}"], tmp_path)
    assert suite.read("unit", done.returncode, 1.0, report).left_out == left_out


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    """Protects who misspells `-k`: nothing was tested."""
    none = tmp_path / "unit.xml"
    none.write_text("<testsuites><testsuite/></testsuites>")
    unit, zfs = suite.read("unit", suite.NO_TESTS, 1.0, none), suite.read_text("", 0, 1.0)
    assert suite.status_of([unit, zfs]) == suite.status_of([]) == suite.NO_TESTS
    assert suite.status_of([unit, suite.read_text(GUEST, 0, 300.0)]) == 0
    skipped = suite.read_text("test-zfs: trixie: skipped because there is no QEMU\n", 0, 1.0)
    assert suite.status_of([unit, skipped]) == 0
    assert suite.status_of([unit, Result("e2e", suite.INTERRUPTED, 1.0)]) == suite.INTERRUPTED


GUEST = """\
test-zfs: trixie: booting
SKIPPED [2] tests/platform/test_guests_zfs.py:9: no template was handed over
left for `make test-all`: 7 tests marked `rare`
=========== 1 failed, 50 passed, 2 skipped, 7 deselected in 300.10s (0:05:00) ===========
test-zfs: bookworm: skipped because there is no QEMU
12.50s call     tests/platform/test_zfs_made.py::test_it[a b]
0.10s setup    tests/platform/test_guests_zfs.py::test_that
"""


def test_the_output_of_guests_counts() -> None:
    """Protects from a failure on ZFS that the sum does not show."""
    found = suite.read_text(GUEST, 1, 300.0)
    assert found.counts == {"failed": 1, "passed": 50, "skipped": 2}
    assert found.skipped == {
        "no template was handed over": 2,
        "bookworm: skipped because there is no QEMU": 1,
    }
    assert found.left_out == 7


def test_the_longest_tests_of_all_parts_are_kept() -> None:
    """Protects who looks for the time that a run lost: an earlier run's file says what changed."""
    unit = Result("unit", 0, 5.0, durations=[(n / 10, f"tests/t.py::test_{n}") for n in range(60)])
    lines = suite.longest([unit, suite.read_text(GUEST, 0, 300.0)]).splitlines()
    assert lines[0] == "   12.50 s  zfs   tests/platform/test_zfs_made.py::test_it[a b] (call)"
    assert lines[1] == "    5.90 s  unit  tests/t.py::test_59"
    assert len(lines) == suite.KEPT


def test_the_last_line_is_as_pytest_s() -> None:
    """Protects `.ci/run`, and others who read the last line."""
    unit, zfs = Result("unit", 0, 5.0), suite.read_text(GUEST, 1, 300.0)
    unit.counts["passed"] = 7
    text = suite.summary([unit, zfs], Options.parse([]), seconds=301.25)
    *lines, last = text.splitlines()
    assert last.strip("=") == " 1 failed, 57 passed, 2 skipped in 301.25s "
    pattern = re.search(r"grep -E '(\^=\+.*?\$)'", (ROOT / ".ci/run").read_text())
    assert pattern
    assert re.search(pattern[1], last)
    assert "skipped: 2 x no template was handed over" in lines
    assert any("7 tests marked `rare`" in line for line in lines)


def test_a_part_that_does_not_run_is_an_error() -> None:
    """Protects from a sum in which a guest that did not boot is missing."""
    text = suite.summary([Result("zfs", 7, 5.0)], Options.parse([]), seconds=5.0)
    assert text.splitlines()[-1].strip("=") == " 1 error in 5.00s "


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite"])
def test_a_part_without_a_report_is_an_error(tmp_path: Path, text: str | None) -> None:
    """Protects from a success in which tests are missing: one called ``os._exit(0)``."""
    report = tmp_path / "e2e.xml"
    if text is not None:
        report.write_text(text)
    found = suite.read("e2e", 0, 5.0, report)
    assert found.status == 1
    assert suite.read("e2e", -9, 5.0, report).status == -9
    text = suite.summary([found], Options.parse([]), seconds=5.0)
    assert text.splitlines()[-1].strip("=") == " 1 error in 5.00s "


@pytest.mark.rare
def test_a_file_that_cannot_be_collected_is_no_interrupt(tmp_path: Path) -> None:
    """Protects the results of the other parts, which an interrupt would throw away."""
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    assert suite.run_one(argv, 60.0) == 1


def test_what_cannot_be_started_in_the_background_is_an_error() -> None:
    """Protects from a success without the tests on ZFS: no memory for a process, no program."""
    out = io.BytesIO()
    long = "x" * (1 << 20)  # E2BIG, as of any error of the system
    assert Beside([long], timeout=60).end(out) == 1
    assert b"too long" in out.getvalue()
    assert Beside(["true"], timeout=60).end(out) == 0
    assert Beside(["sh", "-c", "exit 7"], timeout=60).end(out) == 7


def test_what_has_ended_in_the_background_is_read_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an hour of results from the interrupt of the tests beside them."""
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    behind = Beside(["printf", GUEST], timeout=60)
    assert until(lambda: behind.ended or None, Deadline.after(20))
    found = suite.end_behind(behind, time.monotonic(), interrupted=True)
    assert (found.status, found.counts["passed"]) == (0, 50)
    lasting = Beside(["sleep", "600"], timeout=1)
    assert suite.end_behind(lasting, 0.0, interrupted=True).status == suite.INTERRUPTED
    lasting.end(io.BytesIO())


SLOW = """
import time, pathlib

def test_slow():
    pathlib.Path("{here}/began").touch()
    try:
        time.sleep(600)
    finally:
        pathlib.Path("{here}/cleaned").touch()
"""


@pytest.mark.rare
def test_a_run_out_of_time_cleans_up(tmp_path: Path) -> None:
    """Protects the machine: what a test made is removed, below `nohup` and `&`, too."""
    (tmp_path / "test_slow.py").write_text(SLOW.format(here=tmp_path))
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from tests import suite; raise SystemExit(suite.run_one("
        f"[{sys.executable!r}, '-m', 'pytest', '-p', 'no:cacheprovider', "
        f"'{tmp_path}/test_slow.py'], 12.0))"
    )
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, check=False
    )
    assert done.returncode == suite.INTERRUPTED
    assert time.monotonic() - began < 300
    assert (tmp_path / "began").exists()
    assert (tmp_path / "cleaned").exists()
