"""The check of `make release`: version, changelog, pages and tag agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.run import run
from tests import ROOT

PROJECT = '[project]\nversion = "1.2.3"\n'
RELEASED = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n- More.\n"
COMING = "# Changelog\n\n## [Unreleased]\n\nTo be 1.2.3.\n\n- More.\n\n## [1.2.2] - 2026-11-01\n"
PAGE = "Install `mysql_lab-1.2.3-py3-none-any.whl`; `lab --version` prints `lab 1.2.3`.\n"


def checked(root: Path) -> str:
    """What ``scripts/release --check`` of a checkout finds."""
    argv = [sys.executable, str(root / "scripts/release"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode != 0) == bool(done.stderr), done.stderr
    return done.stderr


def tagged(root: Path, tag: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    run(["git", "init", "-q", root], timeout=30)
    run(["git", "-C", root, *who, "commit", "-q", "--allow-empty", "-m", "All"], timeout=30)
    run(["git", "-C", root, *who, "tag", "--no-sign", tag], timeout=30)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        "pyproject.toml": PROJECT,
        "CHANGELOG.md": COMING,
        "docs/a.md": PAGE,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/release", tmp_path / "scripts")
    return tmp_path


def test_this_checkout_agrees_with_itself() -> None:
    """Protects a release from the day on which its version is raised in one place only."""
    assert checked(ROOT) == ""


@pytest.mark.parametrize("changes", [COMING, RELEASED], ids=["coming", "released"])
def test_what_agrees_is_no_error(checkout: Path, changes: str) -> None:
    (checkout / "CHANGELOG.md").write_text(changes)
    assert checked(checkout) == ""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("CHANGELOG.md", COMING.replace("1.2.3", "1.3.0"), '"To be 1.2.3"'),
        ("CHANGELOG.md", RELEASED.replace("1.2.3", "1.2.2"), "newest section is"),
        ("CHANGELOG.md", RELEASED.replace(" - 2026-12-01", ""), "newest section is"),
        ("docs/a.md", PAGE.replace("lab-1.2.3", "lab-1.2.2"), "docs/a.md: 1.2.2"),
        ("SECURITY.md", "Fixed in `lab 1.2`, `lab 1.1.9`.\n", "SECURITY.md: 1.1.9"),
    ],
)
def test_another_version_is_named_with_its_place(
    checkout: Path, name: str, text: str, found: str
) -> None:
    """Protects users who compare what they have with what they read."""
    (checkout / name).write_text(text)
    assert found in checked(checkout)


def test_a_tag_is_of_its_version_and_of_a_dated_section(checkout: Path) -> None:
    """Protects the name under which others find a release."""
    tagged(checkout, "v1.2.3")
    assert 'the changes of v1.2.3 are still "Unreleased"' in checked(checkout)
    (checkout / "CHANGELOG.md").write_text(RELEASED)
    assert checked(checkout) == ""
    run(["git", "-C", checkout, "tag", "-d", "v1.2.3"], timeout=30)
    run(["git", "-C", checkout, "tag", "--no-sign", "v1.2.4"], timeout=30)
    assert "the tag is v1.2.4, not v1.2.3" in checked(checkout)
