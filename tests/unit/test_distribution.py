"""Hints for missing packages name an install that works, and never a stranger's package."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lab.distribution import TARGETS, extra
from lab.errors import HostUnfit
from lab.run import run
from tests import ROOT

PRINT = "import sys; sys.prefix = {prefix!r}\nfrom lab.distribution import {code}"


def printed(
    root: Path, origin: dict[str, Any] | None, code: str, prefix: str = "/elsewhere"
) -> str:
    """What ``code`` prints where the installer has written down ``origin``."""
    metadata = root / "mysql_lab-7.8.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mysql-lab\nVersion: 7.8\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    argv = [sys.executable, "-c", PRINT.format(prefix=prefix, code=code)]
    return run(argv, timeout=60, env={"PYTHONPATH": f"{root}:{ROOT}"}).stdout.strip()


@pytest.mark.parametrize(
    ("origin", "what"),
    [
        (
            {"url": "file:///src/my%20lab", "dir_info": {}},
            "'mysql-lab[datasets] @ file:///src/my%20lab'",
        ),
        (
            {"url": "file:///src/my%20lab", "dir_info": {"editable": True}},
            "--editable '/src/my lab[datasets]'",
        ),
        (
            {"url": "file:///tmp/mysql_lab-7.8-py3-none-any.whl", "archive_info": {}},
            "'mysql-lab[datasets] @ file:///tmp/mysql_lab-7.8-py3-none-any.whl'",
        ),
    ],
    ids=["directory", "editable", "wheel"],
)
def test_an_extra_comes_from_where_the_program_came_from(
    tmp_path: Path, origin: dict[str, Any], what: str
) -> None:
    """Protects from code of strangers: the package index has another project called `lab`."""
    said = printed(tmp_path, origin, "install; print(install('datasets'))")
    assert said == f"run `{sys.executable} -m pip install {what}`"


@pytest.mark.parametrize("origin", [None, {}, {"url": "https://labs.example/lab.git"}])
def test_without_a_place_no_install_is_named(tmp_path: Path, origin: dict[str, Any] | None) -> None:
    said = printed(tmp_path, origin, "install; print(install('datasets'))")
    assert said == "install the extra datasets of mysql-lab, see docs/client.md"


@pytest.mark.parametrize("name", TARGETS)
def test_in_a_checkout_it_is_a_target_of_make(tmp_path: Path, name: str) -> None:
    """Protects pins: `make` installs what they say, and pip the newest."""
    origin = {"url": "file:///src/lab", "dir_info": {"editable": True}}
    said = printed(tmp_path, origin, f"install; print(install({name!r}))", "/src/lab/.venv")
    target = said.removeprefix("run `make -C /src/lab ").removesuffix("`")
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_version_is_that_of_our_distribution(tmp_path: Path) -> None:
    assert printed(tmp_path, None, "version; print(version())") == "7.8"


def test_a_missing_package_is_named() -> None:
    """Protects who installed without an extra: package and remedy, no traceback."""
    what = "^a dump requires the Python package nothing, which is not installed$"
    with pytest.raises(HostUnfit, match=what), extra("datasets", "a dump"):
        import_module("nothing.below")
    what = "the Python package json, which cannot be loaded: cannot import name 'nothing'"
    with pytest.raises(HostUnfit, match=what), extra("datasets", "a dump"):
        from json import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_a_fault_of_ours_is_no_missing_package() -> None:
    with pytest.raises(ImportError, match="lab"), extra("datasets", "a dump"):
        from lab import nothing  # type: ignore[attr-defined]  # noqa: F401
