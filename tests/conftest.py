"""What all tests share: golden files, the tier, short paths, asserts that explain themselves.

A golden file is what a test expects, kept in ``tests/golden`` for people to read.
``python -m pytest --update-golden`` rewrites the files of the tests that run; look at
``git diff`` before you commit. A file that is missing fails the test.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Modules that hold tests or parts of them, but are not found as test files.
pytest.register_assert_rewrite("tests.contract", "tests.e2e", "tests.security", "tests.support")

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket (107 bytes), wherever tests keep files."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as path:
        yield Path(path)


LEFT_OUT = pytest.StashKey[list[str]]()
"""The rare tests that ``--no-rare`` left out."""


@pytest.hookimpl(trylast=True)  # what `-k` and `-m` deselect was not left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out rare tests, or run files of rare tests first: the longest are among them."""
    rare = [item for item in items if item.get_closest_marker("rare")]
    if config.getoption("no_rare"):
        config.stash[LEFT_OUT] = [item.nodeid for item in rare]
        items[:] = [item for item in items if item.get_closest_marker("rare") is None]
        config.hook.pytest_deselected(items=rare)
    elif not config.getoption("loadscopereorder", True):  # else xdist has an order of its own
        all_, its = Counter(item.path for item in items), Counter(item.path for item in rare)
        items.sort(key=lambda item: -its[item.path] / all_[item.path])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the tests left out to the process that prints the summary: under xdist another."""
    left_out = session.config.stash.get(LEFT_OUT, [])
    worker: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker["left_out"] = left_out
    elif path := session.config.getoption("left_out"):
        path.write_text(f"{len(left_out)}\n")


class FromWorkers:
    """Under xdist each worker leaves out the same."""

    def pytest_testnodedown(self, node: Any) -> None:
        left_out = getattr(node, "workeroutput", {}).get("left_out")
        if left_out:
            node.config.stash[LEFT_OUT] = left_out


def pytest_configure(config: pytest.Config) -> None:
    # One installation for all tests on real guests; a test runs a copy of this file without them.
    if find_spec("tests.e2e") is not None:
        config.pluginmanager.import_plugin("tests.e2e.e2e_fixtures")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(FromWorkers())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many rare tests were not run."""
    left_out = config.stash.get(LEFT_OUT, [])
    if not left_out:
        return
    tests = Counter(nodeid.partition("[")[0] for nodeid in left_out)
    terminalreporter.section("rare tests that were left out")
    for test, count in tests.items():
        terminalreporter.line(f"{count:4} {test}")
    terminalreporter.line(f"left for `make test-all`: {len(left_out)} tests marked `rare`")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    parser.addoption("--no-rare", action="store_true", help="leave out tests marked `rare`")
    parser.addoption(
        "--left-out", type=Path, metavar="FILE", help="write the number of these to FILE"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the golden file of that name, or rewrites the file."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: pytest --update-golden writes it"
        assert text == path.read_text()

    return compare
