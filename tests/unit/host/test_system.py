"""Which system this is: asked in one place, so that the rest runs anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from lab.host.system import describe, system
from tests import ROOT

PACKAGES = ("lab", "api", "images", "bench")
DRIVERS = ("lab/host/", "lab/storage/", "lab/hypervisor/")
"""Where systems may differ: the host, and the drivers behind the seams."""
ASKS = {
    ("sys", "platform"),
    ("os", "name"),
    ("os", "uname"),
    ("platform", "system"),
    ("platform", "uname"),
    ("platform", "platform"),
}


def asks(source: str) -> Iterator[int]:
    """The lines that ask for the operating system."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in ASKS:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and any(
            (node.module, alias.name) in ASKS for alias in node.names
        ):
            yield node.lineno


def test_only_drivers_ask_for_the_system() -> None:
    """Protects the lifecycle from knowing hosts: what differs is behind a seam."""
    found = []
    for path in sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(DRIVERS):
            found += [f"{name}:{line}" for line in asks(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nif sys.platform == 'linux': pass",
        "import platform\nplatform.system()",
        "from sys import platform",
        "def f():\n    from platform import system as s",
        "import os\nos.uname().sysname",
    ],
)
def test_the_check_sees_every_form(source: str) -> None:
    """Protects the check itself."""
    assert list(asks(source))


def test_the_check_does_not_cry_wolf() -> None:
    assert not list(asks("import platform, sys\nplatform.python_version(), sys.argv\nx.platform"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("linux", "linux"), ("freebsd14", "freebsd"), ("freebsd15", "freebsd"), ("darwin", "other")],
)
def test_systems(name: str, expected: str) -> None:
    assert system(name) == expected


def test_a_description_for_people() -> None:
    assert len(describe().split()) >= 2
