"""What all tests share: golden files, and asserts that explain themselves.

A golden file is what a test expects, kept in ``tests/golden`` for people to read.
``python -m pytest --update-golden`` rewrites the files of the tests that run; look at
``git diff`` before you commit. A file that is missing fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

# Modules that hold tests or parts of them, but are not found as test files.
pytest.register_assert_rewrite(
    "e2e_site",
    "killed_service",
    "page_browser",
    "pool_world",
    "serve_world",
    "lifecycle_world",
    "hypervisor_basics",
    "hypervisor_cold",
    "hypervisor_contract",
    "hypervisor_memory",
    "hypervisor_redirects",
    "hypervisor_site",
    "storage_basics",
    "storage_contract",
    "storage_crashes",
    "storage_imports",
    "storage_place",
    "storage_streams",
    "user_site",
    "zfs_site",
)

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


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
