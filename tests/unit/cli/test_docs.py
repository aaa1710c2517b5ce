"""docs/cli.md says what the program does."""

from __future__ import annotations

from lab import errors
from lab.cli.commands import RootVerbs
from lab.lifecycle.core.environment import environment
from tests import ROOT
from tests.support.cli_views import lab_view

PAGE = (ROOT / "docs" / "cli.md").read_text()


def test_every_verb_and_variable_is_documented() -> None:
    """Protects the page from falling behind."""
    for verb in RootVerbs.table:
        assert f"\n| `lab {verb}" in PAGE
    for name in environment(lab_view()):
        assert f"`{name}`" in PAGE


def test_every_exit_code_is_documented() -> None:
    """Protects scripts that look codes up."""
    codes = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    table = PAGE.split("## Exit codes")[1].split("##")[0]
    listed = {code.strip() for line in table.splitlines() if line.startswith("| ")
              for code in line.split("|")[1].split(",")}  # fmt: skip
    assert {str(code) for code in codes} <= listed
