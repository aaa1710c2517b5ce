"""`make test` does not report success for what did not run."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from lab.errors import NotReady
from tests import suite
from tests.suite import ROOT, Options, Result
from testvm import runner
from testvm.beside import Beside
from testvm.release import RELEASES


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
FAILED tests/platform/test_zfs_made.py::test_it[a b] - assert 1 == 2
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
    assert found.failures == ["tests/platform/test_zfs_made.py::test_it[a b] - assert 1 == 2"]


REPORT = """\
<testsuites><testsuite><testcase classname="tests.e2e.test_x" name="test_y[1]" time="3">
<error message="failed on setup&#10;  with 'no template'">...</error></testcase>
<testcase classname="tests.e2e.test_x" name="test_z" time="3"/></testsuite></testsuites>
"""


def test_why_tests_failed_is_at_the_end(tmp_path: Path) -> None:
    """Protects who has only the end of a long log."""
    report = tmp_path / "e2e.xml"
    report.write_text(REPORT)
    found = suite.read("e2e", 1, 5.0, report)
    assert found.failures == ["tests/e2e/test_x.py::test_y[1]: failed on setup with 'no template'"]
    (line,) = [
        line
        for line in suite.summary([found], Options.parse([]), seconds=5.0).splitlines()
        if line.startswith("failed: ")
    ]
    assert line == f"failed: {found.failures[0]}"


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


def test_what_cannot_be_started_in_the_background_is_an_error() -> None:
    """Protects from a success without the tests on ZFS: no memory for a process, no program."""
    out = io.BytesIO()
    long = "x" * (1 << 20)  # E2BIG, as of any error of the system
    assert Beside([long], timeout=60).end(out) == 1
    assert b"too long" in out.getvalue()
    assert Beside(["true"], timeout=60).end(out) == 0
    assert Beside(["sh", "-c", "exit 7"], timeout=60).end(out) == 7


@pytest.mark.parametrize("version", ["", "2.2.1", "2.30.1"])
def test_a_guest_with_another_zfs_is_refused(version: str) -> None:
    """Protects the claim of two OpenZFS versions: a guest without ZFS would only skip."""
    with pytest.raises(NotReady, match="ZFS"):
        runner.check({"zfs": version}, RELEASES[-1])
    runner.check({"zfs": "2.3.9-0+deb13u1"}, RELEASES[-1])
