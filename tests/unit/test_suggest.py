"""What a hint says a mistyped word may stand for."""

from __future__ import annotations

import pytest

from lab.suggest import did_you_mean


@pytest.mark.parametrize(
    ("word", "found"),
    [("pxd", "'pxc'"), ("gal", "'galera'"), ("galeera", "'galera'"), ("pxc-d", "'pxc-dr'")],
)
def test_the_nearest_word(word: str, found: str) -> None:
    """Of equally near ones the one of the same length."""
    known = ("single", "pxc-dr", "pxc", "group", "galera")
    assert did_you_mean(word, known) == f"did you mean {found}?"
    assert did_you_mean("zzz", known, otherwise="no") == "no"
