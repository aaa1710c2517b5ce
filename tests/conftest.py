"""What all tests share: golden files, the tier, short paths, asserts that explain themselves.

A golden file is what a test expects, kept in ``tests/golden`` for people to read.
``python -m pytest --update-golden`` rewrites the files of the tests that run; look at
``git diff`` before you commit. A file that is missing fails the test.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

# Modules that hold tests or parts of them, but are not found as test files.
pytest.register_assert_rewrite("tests.contract", "tests.e2e", "tests.security", "tests.support")

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket (107 bytes), wherever tests keep files."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as path:
        yield Path(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where xdist keeps our order: files of rare tests first, since the longest are among them."""
    if config.getoption("loadscopereorder", True):
        return
    all_, rare = Counter[Path](), Counter[Path]()
    for item in items:
        all_[item.path] += 1
        rare[item.path] += item.get_closest_marker("rare") is not None
    items.sort(key=lambda item: -rare[item.path] / all_[item.path])


LEFT_OUT = pytest.StashKey[list[str]]()
"""The tests that were not selected because they are marked ``rare``."""


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    rare = [item for item in items if item.get_closest_marker("rare") and _else_selected(item)]
    if rare:
        rare[0].config.stash.setdefault(LEFT_OUT, []).extend(item.nodeid for item in rare)


def _else_selected(item: pytest.Item) -> bool:
    """Whether ``-k`` and ``-m`` would select a test if it were not marked ``rare``."""
    keywords, marks = item.config.option.keyword, item.config.option.markexpr
    if keywords and not Expression.compile(keywords).evaluate(KeywordMatcher.from_item(item)):
        return False
    names = {mark.name for mark in item.iter_markers()} - {"rare"}

    def is_marked(name: str, /, **_: object) -> bool:
        return name in names

    return bool(marks) and Expression.compile(marks).evaluate(is_marked)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the deselected tests to the process that prints the summary: under xdist another."""
    left_out = session.config.stash.get(LEFT_OUT, [])
    worker: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker["left_out"] = left_out
        return
    if xml := session.config.stash.get(xml_key, None):
        xml.add_global_property("left_out", str(len(left_out)))


class FromWorkers:
    """Under xdist each worker deselects the same."""

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
