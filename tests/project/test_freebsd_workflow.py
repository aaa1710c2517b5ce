"""The workflow for FreeBSD: it cannot be run here, so what can be said of it without is checked."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from lab.run import run
from tests import ROOT

FILE = ROOT / ".github/workflows/freebsd.yml"
PAGE = ROOT / "docs/freebsd.md"
SECONDS = 120.0

LACKING = (
    "libvirt", "dbos", "psycopg", "fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client",
    "playwright", "schemathesis",
)  # fmt: skip
"""What is not installed there: libvirt is for Linux, the rest is left out."""

WITHOUT = f"""
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LACKING!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Lacking())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def guest() -> dict[str, Any]:
    """What the step that runs in the guest is given."""
    workflow = yaml.safe_load(FILE.read_text())
    # YAML 1.1 takes the word `on` for true, and so does the reader of workflows, which allows it.
    assert set(workflow) == {"name", True, "permissions", "jobs"}
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    assert job["timeout-minutes"] <= 90
    checkout, step = job["steps"]
    assert checkout["uses"].startswith("actions/checkout@v")
    assert step["uses"].startswith("vmactions/freebsd-vm@v")
    found = step["with"]
    assert isinstance(found, dict)
    return found


def lines(script: str) -> list[list[str]]:
    """The commands of a script, as words."""
    return [shlex.split(line) for line in script.replace("\\\n", " ").splitlines() if line.strip()]


def given_to_pytest(guest: dict[str, Any]) -> list[str]:
    """What pytest is given."""
    (words,) = (words for words in lines(guest["run"]) if "pytest" in words)
    return words[words.index("pytest") + 1 :]


def test_its_scripts_are_shell(guest: dict[str, Any]) -> None:
    for script in (guest["prepare"], guest["run"]):
        run(["sh", "-n"], timeout=SECONDS, stdin=script.encode())


def test_it_installs_what_the_documentation_installs(guest: dict[str, Any]) -> None:
    """Protects who follows the page from a package that only CI has."""
    prepare = guest["prepare"].replace("install -y", "install").splitlines()
    before = PAGE.read_text().partition("**2. bhyve.**")[0].splitlines()
    assert [line for line in prepare if line] == [
        line for line in before if line.startswith(("pkg ", "PY="))
    ]


def test_no_version_of_python_is_named() -> None:
    """Protects from the day on which FreeBSD's packages are for the next one, and py311-* gone."""
    commands = "\n".join(re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    assert re.findall(r"\bpy(?:thon)?3\.?\d+", commands + FILE.read_text()) == []


def test_the_versions_are_those_of_the_project(guest: dict[str, Any]) -> None:
    (pip,) = (words for words in lines(guest["run"]) if words[0].endswith("pip"))
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in pip[pip.index(".[host]") + 1 :]:
        assert f'"{requirement}"' in text


def test_what_it_runs_is_there(guest: dict[str, Any]) -> None:
    words = given_to_pytest(guest)
    places = [ROOT / word for word in words if word.startswith("tests")]
    files = [path for place in places for path in place.rglob("*.py")]
    for word in words:
        if word.startswith("--ignore-glob="):
            pattern = word.partition("=")[2]
            assert any(fnmatch(str(path), pattern) for path in files), (
                f"{pattern} leaves out nothing"
            )
        elif word.startswith("tests"):
            assert (ROOT / word).is_dir()
    assert {"tests/unit", "tests/contract", "tests/security"} <= set(words)


@pytest.mark.rare
def test_its_tests_can_be_read_without_what_is_missing_there(guest: dict[str, Any]) -> None:
    """Protects a first run on FreeBSD from ending before its first test."""
    words = [word for word in given_to_pytest(guest) if word not in ("-n", "auto")]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    said = run(
        [sys.executable, "-c", WITHOUT, "--collect-only", *words],
        timeout=SECONDS, cwd=ROOT, env=env,
    ).stdout  # fmt: skip
    assert " error" not in said.splitlines()[-1]
    (there,) = re.findall(r"(\d+)(?:/\d+)? tests collected", said)
    assert int(there) > 1500, "most of the tests are left out"


def test_no_python_that_is_newer_than_there() -> None:
    """Protects from syntax that the Python named there cannot read."""
    for path in sorted((ROOT / "lab").rglob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 10))
